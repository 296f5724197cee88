"""Comparison of a sweep's runs: a table, and a figure over the fields in which they differ."""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

from fedjax_het.engine.divergence import Divergence
from fedjax_het.metrics.catalogue import shown
from fedjax_het.studies.client_metrics import headline_of
from fedjax_het.studies.late import WHAT, marked
from fedjax_het.studies.plots import GREY, STYLES, axis_label, band, decorate, save, spelled
from fedjax_het.studies.synthetic import Synthetic
from fedjax_het.studies.text import named, number, spread

Members = Sequence[Mapping[str, Any]]
MODELS = {
  "personalized": f"the {spelled('personalized')} models",
  "synthetic": "a classifier of the synthetic examples alone",
}

LEDGERS = {"privacy": "ε", "privacy_of_records": "ε of a record"}  # section of a summary -> its column


class Grid(NamedTuple):
  """Metrics of a sweep's runs, arranged by the fields in which the runs differ.

  Attributes:
    fields: name -> its values in increasing order, for each numeric field but the seed with several values.
    figures: metric -> mean and std over the clients, float64 [V_1, ..., V_F, seeds, 2]; NaN for a run without
      a value.
    model: a key of `MODELS`, the model that the metrics are of.
  """

  fields: dict[str, list[float]]
  figures: dict[str, np.ndarray]
  model: str = "personalized"


def judged(summaries: Members) -> tuple[str, list[str], list[Mapping[str, Any]]]:
  """Returns the model whose metrics are compared, the names of its metrics, and each run's metrics.

  If examples are synthesised, it is a classifier trained on them; otherwise the personalised models.
  """
  found: list[Mapping[str, Any]] = [Synthetic.judged(summary).get("synthetic", {}) for summary in summaries]
  if any(found):
    return "synthetic", ["top1"], found
  metrics = [*dict.fromkeys((headline_of(summaries[0]["metrics"]), "loss"))]
  return "personalized", metrics, [summary["metrics"]["personalized"] for summary in summaries]


def members_table(members: Members, summaries: Members) -> Table:
  """Returns a table that compares a sweep's runs, one row per run with its varied fields; see `judged`."""
  model, (metric, *others), found = judged(summaries)
  columns = [f"{named(name)}, mean ± std" for name in (metric, *others)]
  title = f"{MODELS[model].capitalize()}, over the clients"
  ledgers = [name for name in LEDGERS if any(name in summary for summary in summaries)]
  columns = [columns[0], "worst 10 %", *columns[1:], *(LEDGERS[name] for name in ledgers)]
  table = Table(*members[0], *columns, "", box=None, title=title, title_justify="left")
  for values, summary, own in zip(members, summaries, found):

    def both(name: str, own: Mapping[str, Any] = own, summary: Mapping[str, Any] = summary) -> str:
      mean, std = (number(own.get(name, {}).get(figure), name) for figure in ("mean", "std"))
      return f"{mean} ± {std} {marked(summary, model, name)}".rstrip()

    gone = f"{Divergence(**summary['diverged'])}." if "diverged" in summary else ""
    table.add_row(
      *map(str, values.values()), both(metric), number(own.get(metric, {}).get("worst10"), metric),
      *map(both, others), *(_epsilon(summary.get(name)) for name in ledgers), gone,
    )  # fmt: skip
  if any(marked(summary, model, name) for summary in summaries for name in (metric, *others)):
    table.caption, table.caption_justify = WHAT, "left"
  return table


def _epsilon(told: Mapping[str, Any] | None) -> str:
  """Returns the ε of a summary's section as text: "∞" where there is no bound, "" without the section."""
  if told is None:
    return ""
  return "∞" if told["epsilon"] is None or told["epsilon"] == math.inf else f"{told['epsilon']:.3g}"


def grid_of_members(members: Members, summaries: Members) -> Grid:
  """Arranges the metrics of a sweep's runs by the fields in which they differ, see `judged`.

  Args:
    members: each run's varied fields, field -> value: every combination of some values and seeds.
    summaries: the runs' summaries, as in summary.json or in sweep.json.
  """
  each = {name: sorted({own[name] for own in members}) for name in members[0] if name != "seed"}
  fields = {name: values for name, values in each.items() if len(values) > 1}
  seeds = sorted({own.get("seed", 0) for own in members})
  shape = (*map(len, fields.values()), len(seeds), 2)
  model, metrics, found = judged(summaries)
  figures = {metric: np.full(shape, np.nan) for metric in metrics}
  for own, seen in zip(members, found):
    at = *(values.index(own[name]) for name, values in fields.items()), seeds.index(own.get("seed", 0))
    for metric, values in figures.items():
      known = seen.get(metric) or {}
      values[at] = [np.nan if known.get(name) is None else known[name] for name in ("mean", "std")]
  return Grid(fields, figures, model)


def plot_members(grid: Grid, path: str | os.PathLike[str], *, title: str = "A sweep") -> Path | None:
  """Draws a sweep over one field as curves, or over two as heat maps, with one panel per metric.

  A curve shows the mean over seeds, a point for each seed, and a band of one std over clients (its mean over
  seeds); a cell of a heat map shows this mean and std as numbers, and bright is good. Values are drawn at
  equal distances. If some seeds have no value, such as diverged runs, the figure notes how many the mean is
  over.

  Args:
    grid: metrics over one or two fields.
    path: the PNG to write; its folder is created if missing.
    title: the figure's title.

  Returns:
    `path`; None, and no file, unless one or two fields vary.
  """
  if len(grid.fields) not in (1, 2):
    return None
  panels = len(grid.figures)
  if len(grid.fields) == 1:
    figure = Figure(figsize=(6.4, 1.0 + 2.6 * panels), layout="constrained")
    axes = figure.subplots(panels, 1, sharex=True, squeeze=False)[:, 0]
  else:
    rows, columns = map(len, grid.fields.values())
    wide = max(panels * (1.2 + max(columns, 3.3)), 6.4)  # for the title and all panels
    figure = Figure(figsize=(wide, max(4.0, 1.4 + 0.8 * rows)), layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False)[0]
  figure.suptitle(title, fontsize=12, fontweight="bold")
  draw = _curve if len(grid.fields) == 1 else _heat_map
  for ax, (metric, figures) in zip(axes, grid.figures.items()):
    draw(ax, grid, figures, metric)
  if len(grid.fields) == 1:
    seeds = next(iter(grid.figures.values())).shape[1]
    seen = f"mean over {seeds} seeds, points: each" if seeds > 1 else "mean over clients"
    seen = f"{MODELS[grid.model]} · {seen} · band: std over clients"
    axes[0].set_title(seen, fontsize=9, color=GREY, loc="left")
    ((field, values),) = grid.fields.items()
    apart = np.diff(np.asarray(values, float))
    axes[-1].set_xlabel(field if np.allclose(apart, apart[:1]) else f"{field} (not to scale)")
  return save(figure, path)


def _curve(ax: Axes, grid: Grid, figures: np.ndarray, metric: str) -> None:
  (values,) = grid.fields.values()
  factor, style, place = shown(metric).factor, STYLES["personalized"], np.arange(len(values))
  means, stds = np.moveaxis(factor * figures, -1, 0)
  mean, std = _over_seeds(means), _over_seeds(stds)
  band(ax, place, mean, std, metric, style["color"])
  ax.plot(place, mean, linewidth=1.8, markersize=5, **style)
  if means.shape[1] > 1:
    ax.plot(place, means, color=GREY, marker=".", markersize=6, linestyle="none", zorder=5)
  ax.set_xticks(place, [f"{value:g}{_of_how_many(own)}" for value, own in zip(values, means)])
  decorate(ax, ylabel=axis_label(metric))


def _heat_map(ax: Axes, grid: Grid, figures: np.ndarray, metric: str) -> None:
  (down, rows), (across, columns) = grid.fields.items()
  mean, std = (_over_seeds(part) for part in np.moveaxis(figures, -1, 0))
  colours = mpl.colormaps["cividis" if shown(metric).higher_is_better else "cividis_r"]
  image = ax.imshow(shown(metric).factor * mean, cmap=colours, aspect="auto")
  for row, column in np.ndindex(mean.shape):
    value = shown(metric).factor * mean[row, column]
    dark = np.isfinite(value) and sum(colours(image.norm(value))[:3]) < 1.5
    text = spread({"mean": mean[row, column], "std": std[row, column]}, metric).replace(" ", "\n", 1)
    text += _of_how_many(figures[row, column, :, 0])
    ax.text(
      column, row, text, ha="center", va="center", fontsize=8, color="white" if dark else "black"
    )  # fmt: skip
  ax.set_xticks(range(len(columns)), [f"{value:g}" for value in columns])
  ax.set_yticks(range(len(rows)), [f"{value:g}" for value in rows])
  ax.set_xlabel(across)
  ax.set_ylabel(down)
  seen = f"{axis_label(metric)}\n{MODELS[grid.model]}, mean ± std over clients"
  ax.set_title(seen, fontsize=9, color=GREY, loc="left")


def _of_how_many(values: np.ndarray) -> str:
  """Returns a line with the number of seeds that have a value, or "" if all have one."""
  known = int(np.isfinite(values).sum())
  return "" if known == len(values) else f"\n({known} of {len(values)} seeds)"


def _over_seeds(values: np.ndarray) -> np.ndarray:
  """Returns the mean of the finite values along the last axis; NaN if there are none."""
  known = np.isfinite(values)
  total = np.where(known, values, 0.0).sum(-1)
  return np.where(known.any(-1), total / np.maximum(known.sum(-1), 1), np.nan)
