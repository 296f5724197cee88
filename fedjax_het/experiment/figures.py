"""The figures of a run, drawn without a display and without pyplot's global state."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from fedjax_het.metrics.catalogue import shown
from fedjax_het.metrics.fairness import summarize

# Okabe & Ito's palette, which colour-blind readers can tell apart; lines and markers differ besides.
_STYLES: dict[str, dict[str, Any]] = {
  "personalized": {"color": "#0072B2", "linestyle": "-", "marker": "o"},
  "global": {"color": "#D55E00", "linestyle": "--", "marker": "s"},
}
_OTHER_COLORS = ("#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_GREY = "#555555"
_LABELS = {
  "top1": "top-1 accuracy (%)",
  "top5": "top-5 accuracy (%)",
  "auroc": "AUROC (%)",
  "loss": "test loss (nats)",
  "ece": "expected calibration error (%)",
  "mce": "maximum calibration error (%)",
}
_DPI = 150


def learning_curve(
  records: Sequence[Mapping[str, Any]],
  path: str | os.PathLike[str],
  *,
  metric: str = "top1",
  title: str = "Learning curve",
) -> Path:
  """Draws a metric over rounds, its mean and its worst-to-best 10 % band, and the training loss below.

  Args:
    records: lines of metrics.jsonl: `round`, and where there are `metrics` (model -> metric -> figures of
      `fairness.summarize`) and `train_loss`; what is missing or null is a hole in the curve, and a model or
      a panel that nothing is known of is not drawn.
    path: the PNG to write; its folder is made where missing.
    metric: which metric.
    title: the figure's title.

  Returns:
    `path`.
  """
  models = [m for m in _STYLES if any(_dig(r, "metrics", m, metric) is not None for r in records)]
  losses = _series(records, "train_loss")
  panels = [name for name, there in (("metric", models), ("loss", np.isfinite(losses).any())) if there]
  figure = Figure(figsize=(7.0, 2.0 + 2.2 * max(len(panels), 1)), layout="constrained")
  figure.suptitle(title, fontsize=12, fontweight="bold")
  if not panels:
    figure.text(0.5, 0.4, "no evaluation was recorded", ha="center", color=_GREY)
    return _save(figure, path)
  ratios = [2.0, 1.0] if len(panels) == 2 else [1.0]
  grid = figure.subplots(len(panels), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": ratios})
  axes = dict(zip(panels, grid[:, 0]))
  rounds = _series(records, "round")
  markers = len(records) <= 25

  if "metric" in axes:
    ax, scale = axes["metric"], _scale(metric)
    for model in models:
      style = _STYLES[model] if markers else {**_STYLES[model], "marker": ""}
      mean, worst, best = (
        scale * _series(records, "metrics", model, metric, s) for s in ("mean", "worst10", "best10")
      )
      last = mean[np.isfinite(mean)]
      label = f"{_model_name(model)} (last: {_text(last[-1], metric)})" if len(last) else _model_name(model)
      ax.plot(rounds, mean, markersize=4, linewidth=1.8, label=label, **style)
      ax.fill_between(rounds, worst, best, color=style["color"], alpha=0.13, linewidth=0)
      for edge in (worst, best):
        ax.plot(rounds, edge, color=style["color"], linewidth=0.7, alpha=0.5, linestyle=style["linestyle"])
    _decorate(ax, ylabel=_LABELS.get(metric, metric))
    ax.set_title("mean over clients, band: worst 10 % to best 10 %", fontsize=9, color=_GREY, loc="left")
    ax.legend(frameon=False, fontsize=9, loc="best")
  if "loss" in axes:
    ax = axes["loss"]
    ax.plot(rounds, losses, color="black", linewidth=1.5, marker="." if markers else "")
    _decorate(ax, ylabel="training loss (nats)")
    known = losses[np.isfinite(losses)]
    if known.min() > 0 and known.max() > 30 * known.min():
      ax.set_yscale("log")
  axes[panels[-1]].set_xlabel("communication round")
  axes[panels[-1]].xaxis.set_major_locator(MaxNLocator(integer=True))
  return _save(figure, path)


def accuracy_over_clients(
  values: Mapping[str, ArrayLike],
  path: str | os.PathLike[str],
  metric: str = "top1",
  *,
  title: str | None = None,
) -> Path:
  """Draws each client's metric, clients sorted from worst to best: how evenly a model serves them.

  The level of the curve is the accuracy, its slope the unfairness. The legend and the marks give the mean
  (horizontal line) and the mean of the worst 10 % of clients (cross in the shaded part).

  Args:
    values: model -> one value a client, [K]; NaN, a client without test examples, is left out.
    path: the PNG to write; its folder is made where missing.
    metric: what the values are; says the unit and which end is the worst one.
    title: the figure's title.

  Returns:
    `path`.
  """
  figure = Figure(figsize=(7.0, 4.4), layout="constrained")
  ax = figure.subplots()
  scale, higher = _scale(metric), shown(metric).higher_is_better
  most, tails, others = 0, [], iter(_OTHER_COLORS * len(values))
  for model, per_client in values.items():
    x = np.asarray(per_client, np.float64)
    x = np.sort(x[np.isfinite(x)])[:: 1 if higher else -1]
    if not len(x):
      continue
    most = max(most, len(x))
    style = _STYLES.get(model) or {"color": next(others), "linestyle": "-.", "marker": "D"}
    color, figures = style["color"], summarize(x, higher)
    mean, worst = figures["mean"], figures["worst10"]
    label = (
      f"{_model_name(model)}: mean {_text(scale * mean, metric)}, worst 10 %: {_text(scale * worst, metric)}"
    )
    place = 100 * (np.arange(len(x)) + 0.5) / len(x)
    marks = {"marker": style["marker"], "markersize": 5} if len(x) <= 50 else {}
    ax.plot(place, scale * x, color=color, linewidth=1.8, linestyle=style["linestyle"], label=label, **marks)
    ax.axhline(scale * mean, color=color, linewidth=0.9, linestyle=":")
    tail = 100 * max(1, len(x) // 10) / len(x)
    tails.append(tail)
    ax.plot(
      [tail / 2], [scale * worst], marker="X", markersize=10, color=color, markeredgecolor="white", zorder=5,
      clip_on=False,
    )  # fmt: skip
  if tails:
    ax.axvspan(0, max(tails), color="#000000", alpha=0.06, linewidth=0)
    ax.text(
      max(tails) / 2, 0.985 if higher else 0.015, "worst\n10 %" if most >= 20 else "worst\nclient",
      transform=ax.get_xaxis_transform(), ha="center", va="top" if higher else "bottom",
      fontsize=8, color=_GREY,
    )  # fmt: skip
    ax.margins(y=0.12)
  ax.set_xlim(0, 100)
  ax.set_xlabel(f"share of the {most} clients, worst first (%)")
  _decorate(ax, ylabel=_LABELS.get(metric, metric))
  figure.suptitle(title or "How evenly the clients are served", fontsize=12, fontweight="bold")
  ax.set_title(
    "each client's own test set · dotted: mean · cross: mean of the worst 10 %",
    fontsize=9, color=_GREY, loc="left",
  )  # fmt: skip
  if most:
    ax.legend(frameon=False, fontsize=9, loc="lower right" if higher else "upper right")
  return _save(figure, path)


def lambda_curve(
  grid: ArrayLike,
  mean: ArrayLike,
  std: ArrayLike,
  path: str | os.PathLike[str],
  *,
  metric: str = "top1",
  common: float | None = None,
  picked_on: str = "test",
  title: str = "Personalised models between federated and local",
) -> Path:
  """Draws a metric against λ with error bars, the common λ marked (as thesis figure 2.5).

  Args:
    grid: λ, [Λ], in [0, 1].
    mean: the metric's mean over the clients' test parts at each λ, [Λ].
    std: its population std over the clients, [Λ].
    path: the PNG to write; its folder is made where missing.
    metric: which metric.
    common: the λ to mark; by default the one with the highest mean.
    picked_on: what that was picked on, "validation" or "test".
    title: the figure's title.

  Returns:
    `path`.
  """
  lam = np.asarray(grid, np.float64)
  scale = _scale(metric)
  mean, std = scale * np.asarray(mean, np.float64), scale * np.asarray(std, np.float64)
  color, mark = _STYLES["personalized"]["color"], _STYLES["global"]["color"]
  figure = Figure(figsize=(6.0, 4.0), layout="constrained")
  ax = figure.subplots()
  ax.fill_between(lam, mean - std, mean + std, color=color, alpha=0.12, linewidth=0)
  ax.errorbar(
    lam, mean, yerr=std, color=color, marker="o", markersize=5, linewidth=1.8, elinewidth=1.0, capsize=3
  )
  if np.isfinite(mean).any():
    best = int(np.nanargmax(mean) if common is None else np.abs(lam - common).argmin())
    text = f"common $\\lambda$ = {lam[best]:.2g}, best on {picked_on}:  {mean[best]:.2f} ± {std[best]:.2f} %"
    ax.axvline(lam[best], color=mark, linewidth=1.0, linestyle="--", zorder=1)
    ax.plot(
      lam[best], mean[best], marker="*", markersize=15, color=mark, markeredgecolor="white",
      linestyle="none", zorder=5, label=text,
    )  # fmt: skip
    ax.legend(fontsize=9, loc="lower center", framealpha=1.0, edgecolor="none")
  ax.set_xlabel(r"$\lambda$   (0: federated model $\theta^f$,  1: local model $\theta^l$)")
  _decorate(ax, ylabel=_LABELS.get(metric, metric))
  figure.suptitle(title, fontsize=12, fontweight="bold")
  formula = r"$\theta(\lambda) = (1-\lambda)\,\theta^f + \lambda\,\theta^l$"
  ax.set_title(f"{formula} · mean ± std over clients", fontsize=9, color=_GREY, loc="left")
  return _save(figure, path)


def _decorate(ax: Axes, ylabel: str) -> None:
  """The look that all panels share."""
  ax.set_ylabel(ylabel)
  ax.grid(True, color="#dddddd", linewidth=0.6)
  ax.set_axisbelow(True)
  ax.spines[["top", "right"]].set_visible(False)


def _save(figure: Figure, path: str | os.PathLike[str]) -> Path:
  """Writes the PNG."""
  path = Path(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  figure.savefig(path, dpi=_DPI, format="png")
  return path


def _dig(record: Any, *names: str) -> Any:
  """The entry under a path of names, None where it stops early."""
  for name in names:
    record = record.get(name) if isinstance(record, Mapping) else None
  return record


def _series(records: Sequence[Mapping[str, Any]], *names: str) -> np.ndarray:
  """One number a record, NaN where there is none, [R]."""
  found = (_dig(record, *names) for record in records)
  return np.array([np.nan if value is None else value for value in found], np.float64)


def _scale(metric: str) -> float:
  """Fractions are drawn in percent, the loss as it is."""
  return 100.0 if metric in _LABELS and metric != "loss" else 1.0


def _text(value: float, metric: str) -> str:
  """A value that `_scale` has been applied to."""
  return f"{value:.3f}" if _scale(metric) == 1 else f"{value:.1f} %"


def _model_name(model: str) -> str:
  """The name in a legend."""
  return model.replace("personalized", "personalised")
