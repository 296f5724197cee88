r"""What a task is: the loss of an example, what metrics are made of, and which labels are valid.

The mean loss of a batch, with real_n = 1 for its examples and 0 for what only fills it up, is

    L = Σ_n real_n total_n / Σ_n real_n weight_n.

An example counts once (weight 1, or None for all of them), by its class (class weights), or as often as it
has labels that count (the tokens of a text).
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.errors import SettingError, check_range
from fedjax_het.metrics.catalogue import METRICS

PyTree = Any


class Task(NamedTuple):
  """What is learnt. All functions but the checks are pure, safe under `jit`, `vmap` and `scan`.

  Attributes:
    name: for reports and configs.
    losses: (outputs [B, ...], y [B, ...]) -> (total, weight), float32 [B] each, see above; a weight of None
      is 1 each.
    scores: (outputs [B, ...], y [B, ...]) -> what `metrics` needs of each example, a tree of arrays [B, ...];
      outputs themselves are not kept.
    metrics: (scores of N examples, y [N, ...], mask, bool [N]) -> dict of float32 scalars of one client;
      NaN where its examples do not define a metric. One is `loss`; `metrics.catalogue` knows them all.
    headline: names in order of preference: λ is picked, and progress shown, by the first that there is.
    check: (y, N, rows, num_classes) -> None; raises `SettingError`, which names label, row and remedy, for
      labels of those rows that the task does not have. A `num_classes` of None leaves open how many.
    check_outputs: (y, rows, shape, num_classes) -> None; likewise where y does not fit a model whose outputs
      are [B, *shape].
    outputs: (num_classes) -> the number of a model's outputs.
    dtype: of the labels as they are stored.
    classes: whether a label is one class: what a partition, a stratified split or a generator goes by.
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


def mean_loss(task: Task, outputs: jax.Array, y: jax.Array, real: jax.Array) -> jax.Array:
  """L of a batch, float32 scalar; 0 where nothing counts.

  Args:
    task: what is learnt.
    outputs: the model's, [B, ...].
    y: labels, [B, ...].
    real: which rows are examples, 1 or 0, float32 [B].
  """
  total, weight = task.losses(outputs, y)
  return jnp.sum(total * real) / or_one(jnp.sum(real if weight is None else weight * real))


def check_metrics(task: Task, outputs: jax.ShapeDtypeStruct, y: jax.ShapeDtypeStruct) -> None:
  """Raises `SettingError` where a task's metrics of an example cannot be shown, or none is its headline."""

  def metrics(outputs, y):
    return task.metrics(task.scores(outputs, y), y, jnp.ones(1, bool))

  names = jax.eval_shape(metrics, outputs, y)
  for name in set(names) - set(METRICS):
    raise SettingError(
      "task", task.name, f"nobody has said whether a high {name!r} is good",
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


def check_weights(setting: str, weights: Any, axes: tuple[int, ...], **bounds: float) -> None:
  """Raises `SettingError` unless a weight, or each in a row of them, is finite and within `bounds`.

  `axes` says which is taken, one (0), a row (1), or both. A traced weight passes.
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


def or_one(weight: jax.Array) -> jax.Array:
  """What to divide by: the weight, or 1 where it is 0."""
  return jnp.where(weight > 0, weight, 1.0)


def mean_over(values: jax.Array, mask: jax.Array, weight: jax.Array | float = 1.0) -> jax.Array:
  """Σ mask·values / Σ mask·weight, float32 scalar; NaN where nothing counts."""
  count = jnp.sum(jnp.where(mask, weight, 0.0))
  mean = jnp.sum(jnp.where(mask, values, 0.0)) / or_one(count)
  return jnp.where(count > 0, mean, jnp.nan)
