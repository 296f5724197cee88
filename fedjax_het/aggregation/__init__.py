"""Aggregation parts: rules by which a cohort's uploads become one message, most of them robust to liars."""

from fedjax_het.aggregation.bulyan import bulyan
from fedjax_het.aggregation.centered_clipping import centered_clipping
from fedjax_het.aggregation.coordinates import mean, median, trimmed_mean
from fedjax_het.aggregation.geometric_median import geometric_median

__all__ = ["bulyan", "centered_clipping", "geometric_median", "mean", "median", "trimmed_mean"]
