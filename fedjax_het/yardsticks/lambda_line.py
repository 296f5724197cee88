"""The line of models θ(λ) between a federated and a local one: its metric at every λ."""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedjax_het.engine.evaluate import Evaluation
from fedjax_het.engine.pick import Evaluations, Pick, pick, picking
from fedjax_het.metrics.catalogue import shown
from fedjax_het.metrics.fairness import summarize
from fedjax_het.parts import ClientUpdate
from fedjax_het.yardsticks.plots import GREY, STYLES, axis_label, band, decorate, save
from fedjax_het.yardsticks.text import named, spread
from fedjax_het.yardsticks.yardstick import Moment, Watched, Yardstick

GRID = tuple(i / 10 for i in range(11))


class LambdaLine(Yardstick):
  """`lambda` of the summary, for a client part with several `lambdas` or with a `line`; lambda_curve.png.

  Where the client's models are at one λ, or one of each client's own, the line is evaluated once, at the end.
  """

  name = "lambda_line"

  @classmethod
  def fits(cls, run: Watched) -> bool:
    """Whether there is a line of models."""
    client = run.algorithm.client
    return len(client.lambdas) > 1 or client.line is not None

  def section(self, now: Moment) -> dict[str, Any]:
    """{"lambda": see `lambda_report`}."""
    assert now.evaluations is not None
    client = self.run.algorithm.client
    statistics = {"statistics": "own"} if "personalize" in client.sees_data else {}
    if len(client.lambdas) > 1:
      return {"lambda": lambda_report(client.lambdas, now.evaluations) | statistics}
    return {"lambda": own_report(GRID, now.evaluate(between_endpoints), now.evaluations) | statistics}

  @classmethod
  def rows(cls, summary: Mapping[str, Any]) -> RenderableType | None:
    """The metric at every λ, and what choosing λ per client gives."""
    return lambda_table(summary["lambda"]) if summary.get("lambda") else None

  def draw(self, lines: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> None:
    """The curve."""
    curve = summary["lambda"]
    lambda_curve(
      curve["grid"], curve["mean"], curve["std"], self.run.figures / "lambda_curve.png",
      metric=curve["metric"], common=curve["common"], picked_on=curve["picked_on"], own=curve.get("own"),
      title=self.run.title, statistics=curve.get("statistics", ""),
    )  # fmt: skip


def between_endpoints(client: ClientUpdate) -> ClientUpdate:
  """The client part whose models are on its `line`, at the λ of `GRID`."""
  assert client.line is not None
  return client._replace(personalize=client.line, lambdas=GRID)


def lambda_report(grid: tuple[float, ...], evaluations: Evaluations) -> dict[str, Any]:
  """The curve of the headline's metric over λ on the test parts, and what each way of choosing λ gives.

  `common` is the λ of the headline: one for all clients, see `pick`; `picked_on`, `picked_by` and
  `picked_clients` say what picked it. `validation` picks each client's λ on its validation part;
  `per_client_test_optimistic` on the very test part that it is then reported on, as the authors' code does.
  """
  test, valid = evaluations.test, evaluations.valid
  picked, metric = pick(evaluations), evaluations.headline
  values = test.personalized[metric]
  report = _curve(grid, metric, values) | {
    "common": None if np.isnan(values).all() else grid[picked.column],
    "picked_on": picked.on,
    "picked_by": picked.by,
    "picked_clients": int(picking(evaluations, picked).sum()),
  }
  if valid is not None:
    chosen = best_lambda(valid, picked)
    report["validation"] = _over_clients(np.take_along_axis(values, chosen[:, None], axis=1)[:, 0])
  return report


def own_report(grid: tuple[float, ...], line: Evaluation, evaluations: Evaluations) -> dict[str, Any]:
  """The same curve where no evaluation picks λ: the headline, `own`, is of the clients' own models.

  Args:
    grid: λ, [Λ].
    line: the models at each λ, on the test parts.
    evaluations: the clients' own models.
  """
  metric = evaluations.headline
  own = _over_clients(evaluations.test.personalized[metric][:, 0])
  nobody = {"common": None, "picked_on": "own", "picked_by": None, "picked_clients": None}
  return _curve(grid, metric, line.personalized[metric]) | nobody | {"own": own}


def _curve(grid: tuple[float, ...], metric: str, values: np.ndarray) -> dict[str, Any]:
  curve, best = [_over_clients(column) for column in values.T], shown(metric).higher_is_better
  return {
    "grid": list(grid),
    "metric": metric,
    "mean": [own["mean"] for own in curve],
    "std": [own["std"] for own in curve],
    "per_client_test_optimistic": _over_clients((np.max if best else np.min)(values, axis=1)),
  }


def _over_clients(values: np.ndarray) -> dict[str, float]:
  return {name: summarize(values)[name] for name in ("mean", "std")}


def best_lambda(valid: Evaluation, picked: Pick) -> np.ndarray:
  """Each client's best column by the same metric, ties by the lower loss, int [K]; else the common one."""
  values, loss = valid.personalized[picked.by], valid.personalized["loss"]
  best = np.lexsort((loss, -values if shown(picked.by).higher_is_better else values), axis=-1)[:, 0]
  return np.where(np.isnan(values).any(axis=1), picked.column, best)


def lambda_table(sweep: Mapping[str, Any]) -> RenderableType:
  """The headline's metric against λ, and what choosing λ per client gives."""
  metric = sweep.get("metric", "top1")
  table = Table(box=None, padding=(0, 2, 0, 0))
  table.add_column("λ", justify="right")
  table.add_column(f"{named(metric)}, mean ± std", justify="right")
  table.add_column("")
  common, note = sweep.get("common"), "best common λ"
  if common is not None and sweep.get("picked_on"):
    clients = f" of {sweep['picked_clients']} clients" if sweep.get("picked_clients") else ""
    note += f" on the {sweep['picked_on']} parts{clients}, by {shown(sweep['picked_by']).label}"
  means = sweep.get("mean") or []
  stds = sweep.get("std") or [None] * len(means)
  for value, mean, std in zip(sweep.get("grid") or [], means, stds):
    best = common is not None and math.isclose(value, common, abs_tol=1e-6)
    row = (f"{value:.2f}", spread({"mean": mean, "std": std}, metric), note if best else "")
    table.add_row(*row, style="bold green" if best else None)
  lines = [
    f"{what}: {spread(sweep[name], metric, unit=True)}"
    for name, what in (
      ("own", "the clients' own models, at the method's λ"),
      ("validation", "λ chosen per client on its validation part"),
      ("per_client_test_optimistic", "λ chosen per client on its own test part (optimistic)"),
    )
    if sweep.get(name) is not None
  ]
  if sweep.get("statistics") == "own":
    lines.append("running statistics are each client's own: λ = 0 is not the global model")
  return Group(Text("\nmodels θ(λ) = (1 - λ) θf + λ θl"), table, *map(Text, lines))


def lambda_curve(
  grid: ArrayLike,
  mean: ArrayLike,
  std: ArrayLike,
  path: str | os.PathLike[str],
  *,
  metric: str = "top1",
  common: float | None = None,
  picked_on: str = "test",
  own: Mapping[str, float] | None = None,
  title: str = "Personalised models between federated and local",
  statistics: str = "",
) -> Path:
  """Draws a metric against λ with error bars, the common λ marked (as thesis figure 2.5).

  Args:
    grid: λ, [Λ], in [0, 1].
    mean: the metric's mean over the clients' test parts at each λ, [Λ].
    std: its population std over the clients, [Λ].
    path: the PNG to write; its folder is made where missing.
    metric: which metric.
    common: the λ to mark; by default the one with the best mean.
    picked_on: what that was picked on, "validation" or "test".
    own: mean and std of the clients' own models, where these are the headline: a line instead of the mark.
    title: the figure's title.
    statistics: "own" for models with running statistics of each client's examples; then said.

  Returns:
    `path`.
  """
  lam = np.asarray(grid, np.float64)
  factor, best_of = shown(metric).factor, np.nanargmax if shown(metric).higher_is_better else np.nanargmin
  mean, std = factor * np.asarray(mean, np.float64), factor * np.asarray(std, np.float64)
  color, mark = STYLES["personalized"]["color"], STYLES["global"]["color"]
  figure = Figure(figsize=(6.0, 4.0), layout="constrained")
  ax = figure.subplots()
  band(ax, lam, mean, std, metric, color)
  ax.plot(lam, mean, color=color, marker="o", markersize=5, linewidth=1.8)
  if own is not None:
    text = f"the clients' own models:  {spread(own, metric, unit=True)}"
    ax.axhline(factor * own["mean"], color=mark, linewidth=1.2, linestyle="--", zorder=1, label=text)
  elif np.isfinite(mean).any():
    best = int(best_of(mean) if common is None else np.abs(lam - common).argmin())
    figures = spread({"mean": mean[best] / factor, "std": std[best] / factor}, metric, unit=True)
    text = f"common $\\lambda$ = {lam[best]:.2g}, best on {picked_on}:  {figures}"
    ax.axvline(lam[best], color=mark, linewidth=1.0, linestyle="--", zorder=1)
    ax.plot(
      lam[best], mean[best], marker="*", markersize=15, color=mark, markeredgecolor="white",
      linestyle="none", zorder=5, label=text,
    )  # fmt: skip
  if ax.get_legend_handles_labels()[0]:
    figure.legend(fontsize=9, loc="outside lower center", frameon=False)
  ax.set_xlabel(r"$\lambda$   (0: federated model $\theta^f$,  1: local model $\theta^l$)")
  decorate(ax, ylabel=axis_label(metric))
  figure.suptitle(title, fontsize=12, fontweight="bold")
  formula = r"$\theta(\lambda) = (1-\lambda)\,\theta^f + \lambda\,\theta^l$"
  whose = " · each client's own running statistics" if statistics == "own" else ""
  ax.set_title(f"{formula} · mean ± std over clients{whose}", fontsize=9, color=GREY, loc="left")
  return save(figure, path)
