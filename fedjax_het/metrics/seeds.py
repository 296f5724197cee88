"""Statistics over seeds: means with standard errors, and paired differences of runs that share seeds."""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

LEVEL = 0.95


class OverSeeds(NamedTuple):
  """A mean over seeds, with its standard error.

  Attributes:
    mean: the mean; NaN for no seed.
    error: the standard error s / √n, with s the sample standard deviation; None for fewer than two seeds.
    seeds: n, the number of seeds.
  """

  mean: float
  error: float | None
  seeds: int

  @property
  def half(self) -> float | None:
    """Half the width of the mean's 95 % interval, t_{0.975, n-1} s / √n; None for fewer than two seeds."""
    return None if self.error is None else quantile(self.seeds - 1) * self.error


def over_seeds(values: Iterable[float]) -> OverSeeds:
  """Computes the mean of a figure, given one value per seed, with its standard error."""
  x = np.array([*values], np.float64)
  error = float(x.std(ddof=1)) / math.sqrt(len(x)) if len(x) > 1 else None
  return OverSeeds(float(x.mean()) if len(x) else math.nan, error, len(x))


def paired(own: Mapping[int, float], other: Mapping[int, float]) -> OverSeeds:
  """Computes the mean difference own - other over the seeds that both have; both map seed -> figure."""
  return over_seeds(own[seed] - other[seed] for seed in own if seed in other)


def quantile(degrees: int) -> float:
  """Returns the quantile t_{0.975} with `degrees` degrees of freedom, for 95 % confidence intervals."""
  return float(stdtrit(degrees, (1.0 + LEVEL) / 2.0))
