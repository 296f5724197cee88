"""Common style of figures, and the learning curve; they need no display and no global pyplot state."""

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from fedjax_het.data.container import Array
from fedjax_het.metrics.catalogue import shown
from fedjax_het.studies.study import Curve

# Okabe & Ito's palette, which colour-blind readers can distinguish; lines and markers differ as well.
STYLES: dict[str, dict[str, Any]] = {
  "personalized": {"color": "#0072B2", "linestyle": "-", "marker": "o"},
  "global": {"color": "#D55E00", "linestyle": "--", "marker": "s"},
  "cohort": {"color": "#000000", "linestyle": "-", "marker": "."},
}
OTHERS = ("#009E73", "#CC79A7", "#E69F00", "#56B4E9")
COLORS = (STYLES["personalized"]["color"], STYLES["global"]["color"], *OTHERS)
GREY = "#555555"
FEW = 25  # up to this many evaluations, each has a marker


def learning_curve(
  rounds: ArrayLike, curves: Sequence[Curve], path: str | os.PathLike[str], *,
  title: str = "Learning curve", milestones: Mapping[str, float | Array] = MappingProxyType({}),
) -> Path:  # fmt: skip
  """Draws curves over the rounds, one panel per metric; the first panel is the tallest.

  Args:
    rounds: rounds of the evaluations, [R].
    curves: values at each evaluation, see `Curve`. A curve without any finite value is not drawn.
    path: the PNG to write, which is returned; its folder is created if missing.
    title: the figure's title.
    milestones: symbol -> a round to mark in all panels, if it lies within the evaluated rounds.
  """
  panels: dict[str, list[Curve]] = {}
  for curve in curves:
    if np.isfinite(curve.values).any():
      panels.setdefault(curve.metric, []).append(curve)
  figure = Figure(figsize=(8.8, 2.0 + 2.2 * max(len(panels), 1)), layout="constrained")
  figure.suptitle(title, fontsize=12, fontweight="bold")
  if not panels:
    figure.text(0.5, 0.4, "no evaluation was recorded", ha="center", color=GREY)
    return save(figure, path)
  ratios = [2.0] + [1.0] * (len(panels) - 1)
  axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=ratios)[:, 0]
  for ax, (metric, own) in zip(axes, panels.items()):
    _panel(ax, np.asarray(rounds), metric, own)
    for symbol, value in milestones.items():
      if 0 < value < np.max(rounds):
        ax.axvline(int(value), color=GREY, linewidth=1.0, linestyle=":")
        if ax is axes[0]:
          ax.annotate(f"{symbol} = {int(value)}", (int(value), 0.03), (4, 0), ax.get_xaxis_transform(),
                      "offset points", fontsize=9, color=GREY)  # fmt: skip
  axes[-1].set_xlabel("communication round")
  axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
  return save(figure, path)


def _panel(ax: Axes, rounds: np.ndarray, metric: str, curves: list[Curve]) -> None:
  """Draws one metric's curves in a panel."""
  factor, note = shown(metric).factor, shown(metric).note
  for curve, style in zip(curves, styles([curve.of for curve in curves])):
    finite = np.isfinite(curve.values)
    there = finite if curve.there is None else curve.there  # a late evaluation has not every curve's value
    if len(rounds) > FEW and finite[there].all():  # a value between two gaps is a marker alone
      style = style | {"marker": ""}
    values, at = factor * curve.values[there], rounds[there]
    label = f"{spelled(curve.of)} (last: {reading(factor * curve.values[finite][-1], metric)})"
    ax.plot(at, values, markersize=4, linewidth=1.8, label=label, **style)
    if curve.low is not None and curve.high is not None:
      edges = factor * curve.low[there], factor * curve.high[there]
      ax.fill_between(at, *edges, color=style["color"], alpha=0.13, linewidth=0)
      for edge in edges:
        ax.plot(at, edge, color=style["color"], linewidth=0.7, alpha=0.5, linestyle=style["linestyle"])
      note = "mean over clients, band: worst 10 % to best 10 %"
  ax.set_title(note, fontsize=9, color=GREY, loc="left")
  decorate(ax, ylabel=axis_label(metric))
  ax.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.0))  # beside the curves
  known = np.concatenate([curve.values[np.isfinite(curve.values)] for curve in curves])
  if shown(metric).unit != "%" and known.min() > 0 and known.max() > 30 * known.min():
    ax.set_yscale("log")


def decorate(ax: Axes, ylabel: str) -> None:
  """Applies the common style of panels: label of the y axis, grid and spines."""
  ax.set_ylabel(ylabel)
  ax.grid(True, color="#dddddd", linewidth=0.6)
  ax.set_axisbelow(True)
  ax.spines[["top", "right"]].set_visible(False)


def band(ax: Axes, x: ArrayLike, mean: np.ndarray, std: np.ndarray, metric: str, color: Any) -> None:
  """Shades mean ± std, clipped to the metric's range; both are in the unit that is shown."""
  least, most = (shown(metric).factor * end for end in shown(metric).range)
  low, high = np.clip(mean - std, least, most), np.clip(mean + std, least, most)
  ax.fill_between(x, low, high, color=color, alpha=0.13, linewidth=0)


def save(figure: Figure, path: str | os.PathLike[str]) -> Path:
  """Writes the figure as a PNG and returns its path; creates the folder if missing."""
  path = Path(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  figure.savefig(path, dpi=150, format="png")
  return path


def styles(names: Iterable[str]) -> list[dict[str, Any]]:
  """Returns the style (colour, line, marker) of each named model or other curve."""
  others = itertools.cycle(OTHERS)
  return [STYLES.get(name) or {"color": next(others), "linestyle": "-.", "marker": "D"} for name in names]


def spelled(model: str) -> str:
  """Returns a model's name as legends spell it ("personalised")."""
  return model.replace("personalized", "personalised")


def plain(name: str) -> str:
  """Returns a name of at most 24 printable characters in which a dollar sign opens no formula."""
  name = "".join(sign if sign.isprintable() else "?" for sign in name)
  return (name if len(name) <= 24 else f"{name[:23]}…").replace("$", r"\$")


def axis_label(metric: str) -> str:
  """Returns a metric's long name with its unit, as an axis label."""
  return shown(metric).with_unit(shown(metric).title)


def reading(value: float, metric: str) -> str:
  """Formats a value to which the metric's factor has been applied, with its unit."""
  return f"{value:.1f} %" if shown(metric).unit == "%" else f"{value:.4g}"


def colours_of(count: int) -> np.ndarray:
  """Returns `count` RGBA colours: up to twenty categorical ones, more along a rainbow colour map."""
  if count <= 20:
    return colormaps["tab10" if count <= 10 else "tab20"](np.arange(count))
  return colormaps["turbo"](np.linspace(0, 1, count))
