"""Binary task: two classes by one logit, P(y = 1) = sigmoid, with an optional positive-class weight."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.tasks.classification import classification, cross_entropy
from fedjax_het.tasks.labels import check_classes, check_shape, labels_of
from fedjax_het.tasks.task import Task, check_weights, numbers_of


def binary(positive_weight: float | jax.Array = 1.0) -> Task:
  """Binary classification: labels 0 and 1, and one logit, [B, 1].

  Args:
    positive_weight: w > 0, factor on the training loss of examples with y = 1: a batch's loss is -(Σ_{y=0}
      log P(0) + w·Σ_{y=1} log P(1)) / B. Metrics weight all examples equally.

  Raises:
    SettingError: the weight is not one number above 0.
  """
  check_weights("positive_weight", positive_weight, (0,), above=0.0)
  base = classification()

  def losses(logits: jax.Array, y: jax.Array) -> tuple[jax.Array, None]:
    return jnp.where(y == 1, positive_weight, 1.0) * cross_entropy(logits, y), None

  def check_outputs(y: np.ndarray, rows: np.ndarray, shape: tuple[int, ...], num_classes: int) -> None:
    check_shape("binary", shape, "[B, 1]", shape == (1,))
    base.check_outputs(y, rows, shape, num_classes)

  def check(y: np.ndarray, num_examples: int, rows: np.ndarray, num_classes: int | None = None) -> None:
    base.check(y, num_examples, rows, num_classes and 2)

  weights = numbers_of(positive_weight)
  return base._replace(
    name="binary", check=check, losses=losses, check_outputs=check_outputs, outputs=lambda num_classes: 1,
    weights=None if weights == (1.0,) else weights,
  )  # fmt: skip


def balanced_positive(y: np.ndarray) -> float | tuple[float, ...]:
  """Returns the weight n_0 / n_1 that balances negatives and positives; 1 if all labels are equal.

  Args:
    y: labels 0 and 1 of all clients' training examples, int [n], or several per example, [n, A], each of
      which gets a weight.
  """
  y = labels_of(y)
  check_classes(y, 2, np.arange(len(y)), ", no and yes")
  yes = np.sum(y == 1, axis=0)
  no = len(y) - yes
  return np.where((yes > 0) & (no > 0), no / np.maximum(yes, 1), 1.0).tolist()
