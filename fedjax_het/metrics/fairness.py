"""Distribution of a metric over the clients: mean, spread, tails, Gini coefficient, gap."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from fedjax_het.metrics.catalogue import known


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
  x = np.sort(np.asarray(values, np.float64))
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
    ValueError: `values` is not one-dimensional.

  Source: thesis chapter III, the columns of its tables.
  """
  x = np.asarray(values, np.float64)
  if x.ndim != 1:
    raise ValueError(f"values must be one number a client, [K]; got shape {x.shape}")
  x = np.sort(x[~np.isnan(x)])
  if not len(x):
    return dict.fromkeys(("mean", "std", "worst10", "best10", "gini", "gap"), float("nan"))
  tail = max(1, len(x) // 10)
  low, high = x[:tail], x[-tail:]
  worst, best = (low, high) if higher_is_better else (high, low)
  with np.errstate(invalid="ignore"):  # inf - inf is possible
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
  counts = {name: int(np.isnan(np.asarray(values, np.float64)).sum()) for name, values in metrics.items()}
  return {name: count for name, count in counts.items() if count}


def left_out_of_models(models: Mapping[str, Mapping[str, ArrayLike]]) -> dict[str, dict[str, int]]:
  """Applies `left_out` to every model; models of which no client is left out are omitted."""
  counts = {model: left_out(metrics) for model, metrics in models.items()}
  return {model: own for model, own in counts.items() if own}


def summarize_all(metrics: Mapping[str, ArrayLike]) -> dict[str, dict[str, float]]:
  """Applies `summarize` to every metric, in the direction that `catalogue` states.

  Args:
    metrics: name -> one value per client, [K].

  Raises:
    ValueError: the direction of a metric is not known.
  """
  return {name: summarize(values, known(name).higher_is_better) for name, values in metrics.items()}
