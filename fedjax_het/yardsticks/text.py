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


def spread(figures: float | Mapping[str, Any], metric: str = "top1", unit: bool = False) -> str:
  """A figure of `metric`, with its std where there is one, and with its unit where asked."""
  mean, std = (figures.get("mean"), figures.get("std")) if isinstance(figures, Mapping) else (figures, None)
  text = number(mean, metric) if std is None else f"{number(mean, metric)} ± {number(std, metric)}"
  return f"{text} {shown(metric).unit}".strip() if unit else text


def named(metric: str) -> str:
  """A metric's short name with its unit."""
  return shown(metric).with_unit(shown(metric).label)
