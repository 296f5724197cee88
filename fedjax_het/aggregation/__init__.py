"""Aggregation parts: rules by which a cohort's uploads become one message, robust to liars, or private."""

from fedjax_het.aggregation.bulyan import bulyan
from fedjax_het.aggregation.centered_clipping import centered_clipping
from fedjax_het.aggregation.coordinates import mean, median, trimmed_mean
from fedjax_het.aggregation.gaussian import gaussian, multiplier_of
from fedjax_het.aggregation.geometric_median import geometric_median

__all__ = [
  "bulyan",
  "centered_clipping",
  "gaussian",
  "geometric_median",
  "mean",
  "median",
  "multiplier_of",
  "trimmed_mean",
]
