"""Clients' metrics: their distribution over the clients, the learning curve, and clients without a value."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedjax_het.engine.lambda_selection import Evaluations, headline
from fedjax_het.engine.run import judged, per_client
from fedjax_het.metrics.catalogue import METRICS, shown
from fedjax_het.metrics.fairness import left_out_of_models, weighted_of_models
from fedjax_het.metrics.fairness import summarize as over_clients
from fedjax_het.studies.late import WHAT, marked
from fedjax_het.studies.plots import GREY, axis_label, decorate, plain, reading, save, spelled, styles
from fedjax_het.studies.stored import arrays_of, write_arrays
from fedjax_het.studies.study import Curve, Moment, Study, series
from fedjax_het.studies.text import named, number

_BAND = ("mean", "worst10", "best10")
_COLUMNS = ("worst10", "best10", "gini", "gap")
FILE = "clients.npz"
HANDFUL = 12  # up to this many clients, each is a point over its name instead of a part of a curve


def write_clients(folder: Path, evaluations: Evaluations, names: Sequence[str] = ()) -> None:
  """Writes clients.npz, see `ClientMetrics`, of a run's last evaluations and its clients' names."""
  every: dict[str, Any] = {
    f"{model}/{name}": np.asarray(own, np.float32)
    for model, metrics in per_client(evaluations).items()
    for name, own in metrics.items()
  }
  if names:
    every["names"] = np.array(names)
  write_arrays(folder / FILE, **every)


def read_clients(folder: Path) -> tuple[np.ndarray | None, dict[str, np.ndarray]]:
  """Returns (clients' names, [K], or None without them; "MODEL/METRIC" -> values, [K]) of clients.npz."""
  arrays = arrays_of(folder / FILE, "biufU")
  names = arrays.get("names")
  values = {name: own for name, own in arrays.items() if own.dtype.kind != "U"}
  return None if names is None or names.dtype.kind != "U" or names.ndim != 1 else names, values


class ClientMetrics(Study):
  """Study of all clients' metrics: `metrics` and `valid` of line and summary, `left_out`, a figure, a file.

  It writes accuracy_over_clients.png and clients.npz, whose arrays "MODEL/METRIC" hold each client's value at
  the end, float32 [K], NaN for a client without one, and `names` the clients' names where they have some.
  """

  name = "client_metrics"

  def watch(self, infos, now: Moment) -> dict[str, Any]:
    """Returns {"metrics": model -> metric -> figures of `fairness.summarize`} after an evaluation.

    Where clients have validation parts, `valid` has these figures on them. `evaluated` is how many clients
    were evaluated if not all were.
    """
    return {} if now.evaluations is None else {**judged(now.evaluations)}

  def section(self, now: Moment) -> dict[str, Any]:
    """Returns `metrics`, `valid`, means `weighted` by test examples, and how many clients are `left_out`.

    `left_out` is model -> metric -> number of clients without a value, and `evaluated`, with `eval_clients`,
    how many clients were evaluated at the end and before. Also writes clients.npz.
    """
    assert now.evaluations is not None
    values = per_client(now.evaluations)
    if self.run.writes:
      write_clients(self.run.folder, now.evaluations, self.run.data.encoder.clients)
    missing = left_out_of_models(values, now.evaluations.dishonest)
    sizes = np.asarray(self.run.data.test.size)
    found: dict[str, Any] = {**judged(now.evaluations)}
    if not now.diverged:
      found["weighted"] = weighted_of_models(values, sizes)
    if (dishonest := now.evaluations.dishonest) is not None:
      found["honest"] = int((~dishonest).sum())
    if missing and not now.diverged:
      found["left_out"] = missing
    if (before := self.run.config.eval_clients) is not None:
      found["evaluated"] = {"end": self.run.data.num_clients, "before": before}
    return found

  @classmethod
  def rows(cls, summary: Mapping[str, Any]) -> RenderableType:
    """Returns a table with a block of rows per model, or one block if both models' figures are equal."""
    notes = [Text(_weighted(summary["weighted"]))] if summary.get("weighted") else []
    if summary.get("valid"):
      notes.append(Text(_on_validation(summary["valid"])))
    if own := summary.get("evaluated"):
      notes.append(Text(f"evaluated clients: {own['end']} at the end, before {own['before']}"))
    if (honest := summary.get("honest")) is not None:
      notes.append(Text(f"means over the {honest} honest of {summary.get('num_clients', '?')} clients"))
    if summary.get("left_out"):
      notes.append(Text(_left_out(summary["left_out"])))
    metrics = summary.get("metrics") or {}
    moving = {
      model: {name: text for name in own or () if (text := marked(summary, model, name))}
      for model, own in metrics.items()
    }
    if any(moving.values()):
      notes.insert(0, Text(WHAT))
    table = metrics_table(metrics, moving)
    return Group(table, *notes) if notes else table

  def curves(self, lines: Sequence[Mapping[str, Any]]) -> list[Curve]:
    """Returns each model's curve of the headline metric: mean over clients, worst and best tenth as band."""
    known = [line["metrics"] for line in lines if line.get("metrics")]
    if not known:
      return []
    metric = headline_of(known[-1])
    return [
      Curve(metric, model, *(series(lines, "metrics", model, metric, name) for name in _BAND))
      for model in known[-1]
    ]

  def draw(self, lines: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> None:
    """Draws accuracy_over_clients.png, the headline metric of the clients sorted from worst to best."""
    metric = headline_of(summary["metrics"])
    with np.load(self.run.folder / FILE) as file:
      values = {model: file[f"{model}/{metric}"] for model in summary["metrics"]}
    path = self.run.figures / "accuracy_over_clients.png"
    names = self.run.data.encoder.clients
    accuracy_over_clients(values, path, metric=metric, title=self.run.title, names=names)


def headline_of(metrics: Mapping[str, Mapping[str, Any]]) -> str:
  """Returns the name of the headline metric from `summarize`'s result, for figures and progress."""
  return headline(metrics["personalized"])


def metrics_table(metrics: Mapping[str, Any], moving: Mapping[str, Mapping[str, str]] | None = None) -> Table:
  """Returns a table with one row per metric and a heading per model; missing values are omitted or dashes.

  Args:
    metrics: model -> metric -> figures.
    moving: model -> metric -> the range of a mean that has not settled, which stands beside it.
  """
  moving = {model: own for model, own in (moving or {}).items() if own}
  table = Table(box=SIMPLE_HEAD, caption="over all clients' local test sets", caption_justify="left")
  table.add_column("")
  for name in ("mean ± std", *["last fifth"] * bool(moving), "worst 10 %", "best 10 %", "Gini", "gap"):
    table.add_column(name, justify="right", no_wrap=True)
  blocks = {name: block for name, block in metrics.items() if block}
  if len(blocks) == 2 and len({json.dumps(block, sort_keys=True) for block in blocks.values()}) == 1:
    blocks = {"personalized = global": blocks["global"]}
    moving = {"personalized = global": moving["global"]} if "global" in moving else {}
  # Top-5 accuracy of five classes or fewer is always 1.
  certain = all((block.get("top5") or {}).get("mean") == 1.0 for block in blocks.values())
  for model, block in blocks.items():
    table.add_row(spelled(model), style="bold cyan")
    known = [name for name in METRICS if name in block]
    for name in [*known, *sorted(set(block) - set(known))]:
      figures = block[name] or {}
      if name == "top5" and certain:
        continue
      table.add_row(
        f"  {named(name)}",
        f"{number(figures.get('mean'), name)} ± {number(figures.get('std'), name)}",
        *[moving.get(model, {}).get(name, "")] * bool(moving),
        *(number(figures.get(column), "gini" if column == "gini" else name) for column in _COLUMNS),
        style="bold" if name == headline(block) else None,
      )
    table.add_section()
  return table


def _weighted(means: Mapping[str, Mapping[str, float]]) -> str:
  """Returns a sentence with the headline's mean of each model, weighted by numbers of test examples."""
  told = {model: headline(own) for model, own in means.items() if own}
  return "each client counting by its test examples: " + ", ".join(
    f"{spelled(model)} {named(name)} {number(means[model][name], name)}" for model, name in told.items()
  )


def _on_validation(metrics: Mapping[str, Mapping[str, Any]]) -> str:
  """Returns a sentence with the headline's mean of each model over the clients' validation parts."""
  told = {model: headline(own) for model, own in metrics.items() if own}
  return "over the clients' validation parts: " + ", ".join(
    f"{spelled(model)} {named(name)} {number((metrics[model][name] or {}).get('mean'), name)}"
    for model, name in told.items()
  )


def _left_out(counts: Mapping[str, Mapping[str, int]]) -> str:
  """Returns the sentence that counts clients without a value; counts are equal for both models."""
  metrics = {name: count for own in counts.values() for name, count in own.items()}
  names = {
    count: [shown(name).label for name in metrics if metrics[name] == count] for count in metrics.values()
  }
  return "left out for want of test examples (for AUROC, of both classes): " + "; ".join(
    f"{count} client{'s' if count > 1 else ''} of {', '.join(own)}" for count, own in names.items()
  )


def accuracy_over_clients(
  values: Mapping[str, ArrayLike],
  path: str | os.PathLike[str],
  metric: str = "top1",
  *,
  title: str = "How evenly the clients are served",
  names: Sequence[str] = (),
) -> Path:
  """Draws each client's metric, sorted from worst to best, to show how evenly a model serves the clients.

  The level of the curve is the accuracy, its slope the unfairness. The legend and the marks give the mean
  (horizontal line) and the mean of the worst 10 % of clients (cross in the shaded part). A handful of
  clients, at most `HANDFUL`, are points over their names, in the order of the first model's values, and
  nothing joins them.

  Args:
    values: model -> one value per client, [K]; NaN, a client without test examples, is left out.
    path: the PNG to write, which is returned; its folder is created if missing.
    metric: name of the metric, which defines the unit and which end is the worst.
    title: the figure's title.
    names: the clients' names, [K]; by default their numbers.
  """
  arrays = {model: shown(metric).factor * np.asarray(own, np.float64) for model, own in values.items()}
  arrays = {model: own for model, own in arrays.items() if np.isfinite(own).any()}
  figure = Figure(figsize=(7.0, 4.2 + 0.2 * len(arrays)), layout="constrained")
  ax = figure.subplots()
  most = max((int(np.isfinite(own).sum()) for own in arrays.values()), default=0)
  few = 0 < most <= HANDFUL and len({own.shape for own in arrays.values()}) == 1
  if few:
    _points(ax, arrays, metric, names)
  elif most:
    _sorted_curves(ax, arrays, metric)
  else:
    ax.set_xlabel("no client has a value")
  decorate(ax, ylabel=axis_label(metric))
  figure.suptitle(title, fontsize=12, fontweight="bold")
  cross = "" if few else " · cross: mean of the worst 10 %"
  ax.set_title(f"each client's own test set · dotted: mean{cross}", fontsize=9, color=GREY, loc="left")
  if most:
    figure.legend(frameon=False, fontsize=9, loc="outside lower center")
  return save(figure, path)


def _label(model: str, values: np.ndarray, metric: str) -> tuple[str, float, float]:
  """Returns a model's entry in the legend, its mean, and the mean of its worst tenth, in the shown unit."""
  figures = over_clients(values, shown(metric).higher_is_better)
  mean, worst = figures["mean"], figures["worst10"]
  tenth = "worst 10 %" if len(values) >= 20 else "worst client"
  return f"{spelled(model)}: mean {reading(mean, metric)}, {tenth}: {reading(worst, metric)}", mean, worst


def _points(ax: Axes, arrays: Mapping[str, np.ndarray], metric: str, names: Sequence[str]) -> None:
  """Draws a handful of clients as points over their names, worst first by the first model."""
  known = np.flatnonzero(np.isfinite([*arrays.values()]).any(0))
  first = next(iter(arrays.values()))[known] * (1 if shown(metric).higher_is_better else -1)
  order = known[np.argsort(first, kind="stable")]
  shift = np.linspace(-0.08, 0.08, len(arrays)) if len(arrays) > 1 else [0.0]
  for (model, own), style, aside in zip(arrays.items(), styles(arrays), shift):
    label, mean, _ = _label(model, own[np.isfinite(own)], metric)
    place = np.arange(len(order)) + aside
    ax.plot(place, own[order], **style | {"linestyle": "none"}, markersize=7, label=label)
    ax.axhline(mean, color=style["color"], linewidth=0.9, linestyle=":")
  told = [plain(str(names[i])) if len(names) > i else str(i) for i in order]
  ax.set_xticks(range(len(order)), told, rotation=30 if max(map(len, told)) > 60 // len(told) else 0)
  ax.set_xlim(-0.6, len(order) - 0.4)
  ax.set_xlabel("client")
  ax.margins(y=0.12)


def _sorted_curves(ax: Axes, arrays: Mapping[str, np.ndarray], metric: str) -> None:
  """Draws each model's values over the share of clients, worst first, with the worst tenth shaded."""
  higher, most, tails = shown(metric).higher_is_better, 0, []
  for (model, own), style in zip(arrays.items(), styles(arrays)):
    x = np.sort(own[np.isfinite(own)])[:: 1 if higher else -1]
    most = max(most, len(x))
    label, mean, worst = _label(model, x, metric)
    place = 100 * (np.arange(len(x)) + 0.5) / len(x)
    color, marks = style["color"], {"marker": style["marker"], "markersize": 5} if len(x) <= 50 else {}
    ax.plot(place, x, color=color, linewidth=1.8, linestyle=style["linestyle"], label=label, **marks)
    ax.axhline(mean, color=color, linewidth=0.9, linestyle=":")
    tail = 100 * max(1, len(x) // 10) / len(x)
    tails.append(tail)
    ax.plot(
      [tail / 2], [worst], marker="X", markersize=10, color=color, markeredgecolor="white", zorder=5,
      clip_on=False,
    )  # fmt: skip
  ax.axvspan(0, max(tails), color="#000000", alpha=0.06, linewidth=0)
  ax.text(
    max(tails) / 2, 0.985 if higher else 0.015, "worst\n10 %" if most >= 20 else "worst\nclient",
    transform=ax.get_xaxis_transform(), ha="center", va="top" if higher else "bottom",
    fontsize=8, color=GREY,
  )  # fmt: skip
  ax.margins(y=0.12)
  ax.set_xlim(0, 100)
  ax.set_xlabel(f"share of the {most} clients, worst first (%)")
