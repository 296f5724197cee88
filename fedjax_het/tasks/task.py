r"""The task interface: per-example loss, inputs of the metrics, and checks of labels.

The mean loss of a batch, with real_n = 1 for its examples and 0 for padding, is

    L = Σ_n real_n total_n / Σ_n real_n weight_n.

An example's weight is 1 (None: for all of them), that of its class (class weights), or its number of labels
that are not ignored (the tokens of a text).
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.errors import SettingError, check_range
from fedjax_het.metrics.catalogue import METRICS

PyTree = Any


def most_likely(logits: jax.Array) -> jax.Array:
  """Returns the most likely class, int32 [B, ...], for logits [B, ..., C]; C = 1: whether it is > 0."""
  if logits.shape[-1] == 1:
    return (logits[..., 0] > 0).astype(jnp.int32)
  return jnp.argmax(logits, axis=-1).astype(jnp.int32)


def softmax(logits: jax.Array) -> jax.Array:
  """Returns the classes' probabilities, float32 [B, ..., C], [B, ..., 2] for one logit."""
  logits = logits.astype(jnp.float32)
  if logits.shape[-1] == 1:
    return jnp.concatenate([jax.nn.sigmoid(-logits), jax.nn.sigmoid(logits)], axis=-1)
  return jax.nn.softmax(logits, axis=-1)


class Task(NamedTuple):
  """A learning task; all functions but the checks are pure, safe under `jit`, `vmap` and `scan`.

  Attributes:
    name: name of the task in reports and configurations.
    losses: (outputs [B, ...], y [B, ...]) -> (total, weight), float32 [B] each, see the module's docstring; a
      weight of None is 1 each.
    scores: (outputs [B, ...], y [B, ...]) -> the per-example quantities that `metrics` needs, a tree of
      arrays [B, ...]; outputs themselves are not kept.
    metrics: (scores of N examples, y [N, ...], mask, bool [N]) -> dict of float32 scalars of one client; NaN
      if its examples do not define a metric. One is `loss`; all names are in `metrics.catalogue`.
    headline: metric names in order of preference: the first available one selects λ and is shown as progress.
    check: (y, N, rows, num_classes) -> None; raises `SettingError`, naming label, row and remedy, for labels
      of those rows that are invalid. A `num_classes` of None leaves the number open.
    check_outputs: (y, rows, shape, num_classes) -> None; likewise if y does not fit a model whose outputs are
      [B, *shape].
    outputs: (num_classes) -> the number of a model's outputs.
    dtype: dtype of the labels as they are stored.
    classes: whether a label is one class, which partitions, stratified splits and generators require.
    weights: class weights, or the weight of positive labels alone, if they are numbers other than the
      default; None otherwise.
    decide: (outputs [B, ...]) -> the predicted labels, [B, ...].
    probabilities: (outputs [B, ...]) -> probabilities of the labels, [B, ...]; None if a task has none.
  """

  name: str
  losses: Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array | None]]
  scores: Callable[[jax.Array, jax.Array], PyTree]
  metrics: Callable[[PyTree, jax.Array, jax.Array], dict[str, jax.Array]]
  headline: tuple[str, ...]
  check: Callable[..., None]
  check_outputs: Callable[..., None]
  outputs: Callable[[int], int] = int
  dtype: Any = np.int32
  classes: bool = False
  weights: tuple[float, ...] | None = None
  decide: Callable[[jax.Array], jax.Array] = most_likely
  probabilities: Callable[[jax.Array], jax.Array] | None = softmax


def mean_loss(task: Task, outputs: jax.Array, y: jax.Array, real: jax.Array) -> jax.Array:
  """Computes the mean loss L of a batch, float32 scalar; 0 if all weights are 0.

  Args:
    task: the learning task.
    outputs: the model's outputs, [B, ...].
    y: labels, [B, ...].
    real: 1 for an example and 0 for padding, float32 [B].
  """
  total, weight = task.losses(outputs, y)
  return jnp.sum(total * real) / or_one(jnp.sum(real if weight is None else weight * real))


def check_metrics(task: Task, outputs: jax.ShapeDtypeStruct, y: jax.ShapeDtypeStruct) -> None:
  """Raises `SettingError` if a task's metrics include an unknown one, or lack the loss or a headline."""

  def metrics(outputs, y):
    return task.metrics(task.scores(outputs, y), y, jnp.ones(1, bool))

  names = jax.eval_shape(metrics, outputs, y)
  for name in set(names) - set(METRICS):
    raise SettingError(
      "task", task.name, f"the catalogue does not say whether a high {name!r} is good",
      f"Set metrics.catalogue.METRICS[{name!r}] = Metric(...).",
    )  # fmt: skip
  if "loss" not in names or not set(task.headline) & set(names):
    raise SettingError(
      "task", task.name, f"its metrics {sorted(names)} lack loss, or a headline of {task.headline}",
      "Let its metrics give both.",
    )  # fmt: skip


def _axes(weights: Any) -> int:
  if (
    isinstance(weights, Sequence) and not isinstance(weights, str | bytes) and not hasattr(weights, "_fields")
  ):
    return 1 + max(map(_axes, weights), default=0)
  return len(getattr(weights, "shape", ())) if isinstance(weights, jax.Array | np.ndarray) else 0


def check_weights(setting: str, weights: Any, axes: tuple[int, ...], **bounds: Any) -> None:
  """Raises `SettingError` unless a weight, or each in a sequence of weights, is finite and within `bounds`.

  `axes` states what is allowed: one number (0), a sequence (1), or both. A traced weight passes unchecked.
  """
  if isinstance(weights, str):
    remedy = "Give numbers: fh.tasks.balanced and fh.tasks.balanced_positive make them of labels."
    raise SettingError(setting, weights, "a word that only configurations know", remedy)
  found = _axes(weights)
  if found not in axes:
    remedy = "Give one each, such as (1.0, 5.0)." if 1 in axes else "Give one."
    raise SettingError(setting, weights, f"not {'a row of numbers' if 1 in axes else 'a number'}", remedy)
  for weight in weights if found else (weights,):
    check_range(setting, weight, below=np.inf, **bounds)


def numbers_of(weights: Any) -> tuple[float, ...] | None:
  """Returns weights as a tuple of plain numbers; None for None and for traced weights."""
  if weights is None or isinstance(weights, jax.core.Tracer):
    return None
  several = weights if _axes(weights) else (weights,)
  return None if any(isinstance(own, jax.core.Tracer) for own in several) else tuple(map(float, several))


def or_one(weight: jax.Array) -> jax.Array:
  """Replaces a weight of 0 by 1, for use as a divisor."""
  return jnp.where(weight > 0, weight, 1.0)


def mean_over(values: jax.Array, mask: jax.Array, weight: jax.Array | float = 1.0) -> jax.Array:
  """Computes Σ mask·values / Σ mask·weight, float32 scalar; NaN if the divisor is 0."""
  count = jnp.sum(jnp.where(mask, weight, 0.0))
  mean = jnp.sum(jnp.where(mask, values.astype(jnp.float32), 0.0)) / or_one(count)
  return jnp.where(count > 0, mean, jnp.nan)
