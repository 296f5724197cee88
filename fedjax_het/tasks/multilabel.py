"""Multi-label task: A binary labels per example, each with a logit, P(y_a = 1) = sigmoid(z_a)."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_het.errors import SettingError
from fedjax_het.metrics.classification import auroc
from fedjax_het.tasks.labels import (
  check_axes,
  check_classes,
  check_count,
  check_rows,
  check_shape,
  check_whole_labels,
)
from fedjax_het.tasks.task import Task, check_weights, mean_over, or_one


def multilabel(positive_weight: float | Sequence[float] = 1.0) -> Task:
  """Multi-label classification: labels in {0, 1}, [B, A], and one logit for each, [B, A].

  The loss is the mean over examples and labels. A label is predicted if its logit is above 0. Metrics of a
  client: `accuracy` over all labels of all examples; `exact`, the fraction of examples with all labels right;
  `f1_macro` and `auroc`, means over the labels that define them (those with a true or predicted positive;
  those with examples of both kinds); `f1_micro`; `loss`.

  Args:
    positive_weight: w > 0, factor on the training loss of labels that are 1, or one factor per label.

  Raises:
    SettingError: a weight is not above 0; from `check_outputs`, there are not as many weights as labels.
  """
  check_weights("positive_weight", positive_weight, (0, 1), above=0.0)

  def losses(logits: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    loss = optax.sigmoid_binary_cross_entropy(logits, y.astype(logits.dtype))
    weight = jnp.where(y == 1, jnp.asarray(positive_weight, jnp.float32), 1.0)
    total = jnp.sum(weight * loss, axis=-1)
    return total, jnp.full_like(total, logits.shape[-1])

  def check_outputs(y: np.ndarray, rows: np.ndarray, shape: tuple[int, ...], num_classes: int) -> None:
    check_shape("multilabel", shape, f"[B, {y.shape[1]}], one a label", shape == y.shape[1:])
    count = shape[0]
    if isinstance(positive_weight, Sequence) or np.ndim(positive_weight):
      count = len(positive_weight)  # type: ignore[arg-type]
    if count != shape[0]:
      raise SettingError("positive_weight", count, f"there are {shape[0]} labels", "Give one a label.")

  return Task(
    "multilabel", losses, scores, metrics, ("auroc", "accuracy"), check, check_outputs,
    outputs=lambda num_labels: num_labels, decide=lambda logits: (logits > 0).astype(jnp.int32),
    probabilities=jax.nn.sigmoid,
  )  # fmt: skip


def scores(logits: jax.Array, y: jax.Array) -> dict[str, jax.Array]:
  """Returns the logits, [B, A], and their cross-entropies, [B, A]; NaN logits have the loss inf."""
  logits = logits.astype(jnp.float32)
  loss = optax.sigmoid_binary_cross_entropy(logits, y.astype(jnp.float32))
  return {"logits": logits, "loss": jnp.where(jnp.isnan(logits), jnp.inf, loss)}


def metrics(scores: dict[str, jax.Array], y: jax.Array, mask: jax.Array) -> dict[str, jax.Array]:
  """Computes the metrics that `multilabel` lists, for one client's examples in the mask."""
  truth, logits, rows = y == 1, scores["logits"], mask[:, None]
  guess = jnp.where(jnp.isnan(logits), ~truth, logits > 0)
  right = guess == truth
  hits = jnp.sum(rows & guess & truth, axis=0, dtype=jnp.float32)
  wrong = jnp.sum(rows & ~right, axis=0, dtype=jnp.float32)
  each = jax.vmap(auroc, in_axes=(1, 1, None))(logits, y, mask)
  return {
    "accuracy": mean_over(jnp.mean(right, axis=-1), mask),
    "exact": mean_over(jnp.all(right, axis=-1), mask),
    "f1_macro": jnp.nanmean(f1(hits, wrong)),
    "f1_micro": f1(jnp.sum(hits), jnp.sum(wrong)),
    "auroc": jnp.nanmean(each),
    "loss": mean_over(jnp.mean(scores["loss"], axis=-1), mask),
  }


def f1(hits: jax.Array, wrong: jax.Array) -> jax.Array:
  """F1 = 2 TP / (2 TP + FP + FN); NaN if there is no true and no predicted positive."""
  some = 2.0 * hits + wrong
  return jnp.where(some > 0, 2.0 * hits / or_one(some), jnp.nan)


def check(y: np.ndarray, num_examples: int, rows: np.ndarray, num_classes: int | None = None) -> None:
  """Raises `SettingError` unless y is [N, A] of zeros and ones with A = `num_classes`."""
  check_rows(y, num_examples, rows)
  check_axes(y, "[N, A]")
  check_whole_labels(y, rows)
  check_classes(y, 2, rows, ", no and yes")
  if num_classes is not None:
    check_count(y.shape[1], num_classes, "labels")
