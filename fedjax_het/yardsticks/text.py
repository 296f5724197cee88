"""Figures as people read them."""

import math
from collections.abc import Mapping
from typing import Any

from fedjax_het.metrics.catalogue import shown

MISSING = "–"


def number(value: float | None, metric: str) -> str:
  """A figure of `metric`, in percent where that is; a dash where there is none."""
  if value is None or math.isnan(value):
    return MISSING
  return f"{100 * value:.2f}" if shown(metric).unit == "%" else f"{value:.4f}"


def spread(figures: float | Mapping[str, Any], metric: str = "top1") -> str:
  """A figure of `metric`, with its std where there is one."""
  if not isinstance(figures, Mapping):
    return number(figures, metric)
  mean, std = number(figures.get("mean"), metric), figures.get("std")
  return mean if std is None else f"{mean} ± {number(std, metric)}"


def named(metric: str) -> str:
  """A metric's short name with its unit."""
  return shown(metric).with_unit(shown(metric).label)
