"""Distribution of a metric over the clients: mean, spread, tails, Gini coefficient, gap."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from fedjax_het.errors import SettingError, check_flag
from fedjax_het.metrics.catalogue import known

REMEDY = "Give a vector of numbers, [K]."


def gini(values: ArrayLike) -> float:
  """Gini coefficient of non-negative values, 0 if all are equal.

  G = Σ_ij |x_i - x_j| / (2 K² x̄) = Σ_{i=1}^{K-1} i (K - i) (x_(i+1) - x_(i)) / (K Σ_i x_i)

  with x_(1) <= ... <= x_(K) the sorted values. The second form is a sum of non-negative terms: no
  cancellation, and exactly 0 for equal values.

  Args:
    values: [K], K >= 1.

  Returns:
    A fraction in [0, 1 - 1/K] (papers print 100 times it); 0 if all values are 0, NaN if one is negative or
    not finite, since the coefficient is meaningless then.
  """
  x = np.sort(_numbers(values))
  if not len(x):
    raise SettingError("values", [], "has no client", "Give one number a client, [K].")
  if not np.isfinite(x).all() or x[0] < 0:
    return float("nan")
  if x[-1] == 0:
    return 0.0
  x = x / x[-1]
  i = np.arange(1, len(x))
  return float(np.sum(i * (len(x) - i) * np.diff(x)) / (len(x) * x.sum()))


def summarize(values: ArrayLike, higher_is_better: bool = True) -> dict[str, float]:
  """Summarises one metric by six figures over the clients.

  Clients whose value is NaN have no test example (or, for AUROC, examples of one class only) and are left
  out; K below counts the others, `left_out` counts these. Every client has equal weight, whatever its number
  of examples.

  Args:
    values: the metric of each client, [K]; computed with in float64 on the host.
    higher_is_better: whether the worst clients are those with the lowest values (accuracy) or, if False, with
      the highest (loss, calibration error).

  Returns:
    `mean`; `std`, the population standard deviation; `worst10` and `best10`, means over the max(1,
    floor(K/10)) worst and best clients; `gini` (see `gini`, of the raw values); `gap` >= 0, best minus worst
    client in absolute value. All are NaN if no client is left; an infinite value makes the figures that
    include it infinite or NaN.

  Raises:
    SettingError: `values` are not one number a client.

  Source: thesis chapter III, the columns of its tables.
  """
  x = _numbers(values)
  check_flag("higher_is_better", higher_is_better)
  x = np.sort(x[~np.isnan(x)])
  if not len(x):
    return dict.fromkeys(("mean", "std", "worst10", "best10", "gini", "gap"), float("nan"))
  tail = max(1, len(x) // 10)
  low, high = x[:tail], x[-tail:]
  worst, best = (low, high) if higher_is_better else (high, low)
  with np.errstate(invalid="ignore"):  # values may be infinite, and inf - inf is NaN
    return {
      "mean": float(x.mean()),
      "std": float(x.std()) if x[0] < x[-1] else 0.0,
      "worst10": float(worst.mean()),
      "best10": float(best.mean()),
      "gini": gini(x),
      "gap": float(x[-1] - x[0]),
    }


def left_out(metrics: Mapping[str, ArrayLike]) -> dict[str, int]:
  """Counts the clients that `summarize` leaves out of each metric; metrics with a count of 0 are omitted.

  Args:
    metrics: name -> one value per client, [K].
  """
  counts = {name: int(np.isnan(_numbers(values)).sum()) for name, values in _named(metrics).items()}
  return {name: count for name, count in counts.items() if count}


def left_out_of_models(
  models: Mapping[str, Mapping[str, ArrayLike]], dishonest: np.ndarray | None = None
) -> dict[str, dict[str, int]]:
  """Applies `left_out` to every model; models of which no client is left out are omitted.

  `dishonest` clients, bool [K], do not count: their metrics are reported apart.
  """
  if dishonest is not None:
    honest = {
      model: {name: np.asarray(values)[~dishonest] for name, values in own.items()}
      for model, own in models.items()
    }
    return left_out_of_models(honest)
  counts = {model: left_out(metrics) for model, metrics in models.items()}
  return {model: own for model, own in counts.items() if own}


def weighted_mean(values: ArrayLike, sizes: ArrayLike) -> float:
  """Σ_i n_i v_i / Σ_i n_i over the clients with a value, each counting by its examples; NaN for none.

  Args:
    values: a metric of each client, [K]; NaN for a client that has none.
    sizes: n, each client's number of examples, [K].
  """
  x, n = _numbers(values), _numbers(sizes)
  if x.shape != n.shape:
    raise SettingError("sizes", n.shape, f"not one for each of {len(x)} clients", REMEDY)
  there = ~np.isnan(x) & (n > 0)
  return float(np.average(x[there], weights=n[there])) if there.any() else float("nan")


def weighted_of_models(
  models: Mapping[str, Mapping[str, ArrayLike]], sizes: ArrayLike
) -> dict[str, dict[str, float]]:
  """`weighted_mean` of every metric of every model."""
  return {
    model: {name: weighted_mean(values, sizes) for name, values in metrics.items()}
    for model, metrics in models.items()
  }


def summarize_all(metrics: Mapping[str, ArrayLike]) -> dict[str, dict[str, float]]:
  """Applies `summarize` to every metric, in the direction that `catalogue` states.

  Args:
    metrics: name -> one value per client, [K].

  Raises:
    SettingError: a metric whose direction is not known, or values that are not one number a client.
  """
  return {name: summarize(values, known(name).higher_is_better) for name, values in _named(metrics).items()}


def _named(metrics: Any) -> Mapping[str, Any]:
  if not isinstance(metrics, Mapping):
    raise SettingError(
      "metrics", metrics, "not names with values", "Give a dict: name -> one value a client."
    )
  return metrics


def _numbers(values: Any) -> np.ndarray:
  """One number a client as float64 [K]; raises `SettingError` for anything else."""
  try:
    found = np.asarray(values)
    if found.ndim == 1 and (found.dtype.kind in "biuf" or found.dtype == jnp.bfloat16 or not found.size):
      return found.astype(np.float64)
  except Exception as error:  # whatever a foreign object raises
    raise SettingError("values", type(values).__name__, f"cannot be read ({error})", REMEDY) from error
  raise SettingError("values", values, f"not one number a client: {found.dtype} {found.shape}", REMEDY)
