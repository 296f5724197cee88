"""Classification task: C classes by C logits, P = softmax; two classes also by one, P(1) = sigmoid."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_het.errors import SettingError, check_whole, is_zero
from fedjax_het.metrics import classification as judged
from fedjax_het.tasks.labels import (
  check_axes,
  check_classes,
  check_rows,
  check_shape,
  check_whole_labels,
  labels_of,
)
from fedjax_het.tasks.task import Task, check_weights, numbers_of


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
  """Computes -log P(label) for logits [B, C] and integer labels [B], float32 [B].

  C > 1: P = softmax(logits); labels enter as one-hot rows, whose gradient needs no scatter. C = 1: labels are
  0 or 1 and P(1) = sigmoid(logit).
  """
  if logits.shape[-1] == 1:
    return optax.sigmoid_binary_cross_entropy(logits[:, 0], labels.astype(logits.dtype))
  return optax.softmax_cross_entropy(logits, jax.nn.one_hot(labels, logits.shape[-1]))


def classification(class_weights: Sequence[float] | None = None) -> Task:
  """Multi-class classification: classes 0 to C - 1 with C logits, [B, C], or two classes with one, [B, 1].

  Args:
    class_weights: c_0, ..., c_{C-1} >= 0, weights of the classes' examples in training: a batch's loss is Σ
      c_y·(-log P(y)) / Σ c_y. Metrics weight all examples equally. None: 1 each.

  Raises:
    SettingError: the weights are not a sequence of numbers, one is negative, or all are 0.
  """
  if class_weights is not None:
    check_weights("class_weights", class_weights, (1,), low=0.0)
    if all(map(is_zero, class_weights)):
      raise SettingError("class_weights", class_weights, "no class counts", "Give one of them more than 0.")

  def losses(logits: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array | None]:
    loss = cross_entropy(logits, y)
    if class_weights is None:
      return loss, None
    weights = jnp.asarray(class_weights, jnp.float32)
    weight = jnp.sum(jax.nn.one_hot(y, len(weights)) * weights, axis=-1)
    return weight * loss, weight

  def check_outputs(y: np.ndarray, rows: np.ndarray, shape: tuple[int, ...], num_classes: int) -> None:
    check_shape("classification", shape, "[B, C]", len(shape) == 1)
    count = max(shape[0], 2)
    because = (
      f", which the model's {count} logits stand for" if shape[0] > 1 else ", which one logit tells apart"
    )
    needed = max(num_classes, int(y[rows].max(initial=0)) + 1)
    check_classes(y, count, rows, because, f"give the model num_classes={needed}")
    if class_weights is not None and len(class_weights) != count:
      raise SettingError(
        "class_weights",
        len(class_weights),
        f"the model has {count} classes",
        "Give one each.",
      )

  return Task(
    "classification", losses, judged.scores, judged.metrics, ("auroc", "top1"), check, check_outputs,
    outputs=lambda num_classes: num_classes, classes=True, weights=numbers_of(class_weights),
  )  # fmt: skip


def check(y: np.ndarray, num_examples: int, rows: np.ndarray, num_classes: int | None = None) -> None:
  """Raises `SettingError` unless y is one integer per example, from 0 to `num_classes` - 1."""
  if y.ndim:
    check_axes(y, "[N]")
  check_rows(y, num_examples, rows)
  check_whole_labels(y, rows)
  if num_classes is not None:
    check_classes(y, num_classes, rows)


def balanced(y: np.ndarray, num_classes: int) -> tuple[float, ...]:
  """Returns class weights n / (C n_c), which balance the classes; 0 for a class without an example.

  Args:
    y: labels of all clients' training examples, int [n].
    num_classes: C, the number of classes.
  """
  check_whole("num_classes", num_classes, 1)
  y = labels_of(y)
  check(y, len(y), np.arange(len(y)), num_classes)
  counts = np.bincount(y, minlength=num_classes)
  return tuple((len(y) / (num_classes * np.maximum(counts, 1)) * (counts > 0)).tolist())
