"""Formats figures (metric values) as text."""

import math
from collections.abc import Mapping
from typing import Any

from fedjax_het.metrics.catalogue import shown

MISSING = "–"


def number(value: float | None, metric: str) -> str:
  """Formats a value of `metric`, in percent if its unit is "%"; None becomes a dash."""
  if value is None or math.isnan(value):
    return MISSING
  return f"{100 * value:.2f}" if shown(metric).unit == "%" else f"{value:.4f}"


def rounded(value: float | None, form: str) -> str:
  """Formats a number by a format such as ".3g"; NaN, and None in a stored summary, become a dash."""
  return MISSING if value is None or math.isnan(value) else format(value, form)


def percent(share: float | None) -> str:
  """Formats a share in percent with its unit; NaN, and None in a stored summary, become a dash."""
  return MISSING if share is None or math.isnan(share) else f"{100 * share:.1f} %"


def spread(figures: float | Mapping[str, Any], metric: str = "top1", unit: bool = False) -> str:
  """Formats a value of `metric`, with its std if given, and with its unit if requested."""
  mean, std = (figures.get("mean"), figures.get("std")) if isinstance(figures, Mapping) else (figures, None)
  text = number(mean, metric) if std is None else f"{number(mean, metric)} ± {number(std, metric)}"
  return f"{text} {shown(metric).unit}".strip() if unit else text


def named(metric: str) -> str:
  """Returns a metric's short name with its unit."""
  return shown(metric).with_unit(shown(metric).label)
