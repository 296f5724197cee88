"""Figures over seeds: means with their errors, and differences of runs that share seeds."""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

LEVEL = 0.95


class OverSeeds(NamedTuple):
  """A mean over seeds.

  Attributes:
    mean: NaN for no seed.
    error: its standard error s / √n, s the sample's standard deviation; None for fewer than two seeds.
    seeds: how many.
  """

  mean: float
  error: float | None
  seeds: int

  @property
  def half(self) -> float | None:
    """Half the width of the mean's 95 % interval, t_{0.975, n-1} s / √n; None for fewer than two seeds."""
    return None if self.error is None else quantile(self.seeds - 1) * self.error


def over_seeds(values: Iterable[float]) -> OverSeeds:
  """The mean of a figure, one value a seed, with its error."""
  x = np.array([*values], np.float64)
  error = float(x.std(ddof=1)) / math.sqrt(len(x)) if len(x) > 1 else None
  return OverSeeds(float(x.mean()) if len(x) else math.nan, error, len(x))


def paired(own: Mapping[int, float], other: Mapping[int, float]) -> OverSeeds:
  """The mean over the seeds that both have of own less other, each seed -> its figure; see `OverSeeds`."""
  return over_seeds(own[seed] - other[seed] for seed in own if seed in other)


def quantile(degrees: int) -> float:
  """t_{0.975} of so many degrees of freedom, by which an error becomes half a 95 % interval."""
  return float(stdtrit(degrees, (1.0 + LEVEL) / 2.0))
