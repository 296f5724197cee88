"""Study of the models θ(λ) on the line between a federated and a local model: a metric at every λ."""

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
from fedjax_het.engine.lambda_selection import Evaluations, Pick, mean_over_clients, pick, picking
from fedjax_het.metrics.catalogue import shown
from fedjax_het.metrics.fairness import summarize
from fedjax_het.parts import ClientUpdate
from fedjax_het.studies.plots import GREY, STYLES, axis_label, band, decorate, save
from fedjax_het.studies.study import Moment, Study, Watched
from fedjax_het.studies.text import named, spread

GRID = tuple(i / 10 for i in range(11))


class LambdaLine(Study):
  """Study that adds `lambda` to the summary and lambda_curve.png, for client parts with a line of models.

  A client part has such a line if its `Studies` have several `lambdas` or a `line`. If personalised models
  are at one λ, or at a λ specific to each client, the line is evaluated once, at the end.
  """

  name = "lambda_line"

  @classmethod
  def fits(cls, run: Watched) -> bool:
    """Returns whether the client part has several λ or a line of models."""
    client = run.algorithm.client
    return len(client.studies.lambdas) > 1 or client.studies.line is not None

  def section(self, now: Moment) -> dict[str, Any]:
    """Returns {"lambda": the report of `lambda_report` or `own_report`}."""
    assert now.evaluations is not None
    client = self.run.algorithm.client
    statistics = {"statistics": "own"} if "personalize" in client.needs.sees_data else {}
    if len(client.studies.lambdas) > 1:
      return {"lambda": lambda_report(client.studies.lambdas, now.evaluations) | statistics}
    line = now.evaluations.of_honest(now.evaluate(between_endpoints))
    return {"lambda": own_report(GRID, line, now.evaluations) | statistics}

  @classmethod
  def rows(cls, summary: Mapping[str, Any]) -> RenderableType | None:
    """Returns a table of the metric at every λ and of the results of choosing λ per client."""
    return lambda_table(summary["lambda"]) if summary.get("lambda") else None

  def draw(self, lines: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> None:
    """Draws lambda_curve.png, the headline metric over λ."""
    curve = summary["lambda"]
    lambda_curve(
      curve["grid"], curve["mean"], curve["std"], self.run.figures / "lambda_curve.png",
      metric=curve["metric"], common=curve["common"], picked_on=curve["picked_on"], own=curve.get("own"),
      title=self.run.title, statistics=curve.get("statistics", ""),
    )  # fmt: skip


def between_endpoints(client: ClientUpdate) -> ClientUpdate:
  """Returns the client part with its personalised models on its `line`, at the λ of `GRID`."""
  assert client.studies.line is not None
  return client._replace(personalize=client.studies.line, studies=client.studies._replace(lambdas=GRID))


def lambda_report(grid: tuple[float, ...], evaluations: Evaluations) -> dict[str, Any]:
  """Reports the headline metric on the test parts at every λ, and the result of each way of choosing λ.

  `common` is the λ of the headline: one for all clients, see `pick`; `picked_on`, `picked_by` and
  `picked_clients` say how it was picked. `validation` picks each client's λ on its validation part;
  `per_client_test_optimistic` picks it on the same test part that it is then reported on, as the authors'
  code does. `least_loss` is the loss at the λ whose mean loss over the clients' test parts is least, and that
  λ, `at`; table 2.7 may mean it. Its `valid` has the same at the λ whose mean loss over the validation parts
  is least.

  Args:
    grid: λ, [Λ].
    evaluations: all clients' metrics at each λ.
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
  losses = [_over_clients(column) for column in test.personalized["loss"].T]

  def least(seen: Evaluation) -> dict[str, Any] | None:
    means = mean_over_clients(seen.personalized["loss"])
    if np.isnan(means).all():
      return None
    column = int(np.nanargmin(means))
    return losses[column] | {"at": grid[column]}

  if own := least(test):
    report["least_loss"] = own | ({"valid": least(valid)} if valid is not None else {})
  if valid is not None:
    chosen = best_lambda(valid, picked)
    report["validation"] = _over_clients(np.take_along_axis(values, chosen[:, None], axis=1)[:, 0])
  return report


def own_report(grid: tuple[float, ...], line: Evaluation, evaluations: Evaluations) -> dict[str, Any]:
  """Reports the metric at every λ when no λ is picked: the headline, `own`, is of the personalised models.

  Args:
    grid: λ, [Λ].
    line: evaluation of the models at each λ, on the test parts.
    evaluations: evaluations of the personalised models.
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
  """Returns each client's best column by the picking metric, int [K], or the common one where it is NaN.

  Ties are broken by the lower loss.
  """
  values, loss = valid.personalized[picked.by], valid.personalized["loss"]
  best = np.lexsort((loss, -values if shown(picked.by).higher_is_better else values), axis=-1)[:, 0]
  return np.where(np.isnan(values).any(axis=1), picked.column, best)


def lambda_table(sweep: Mapping[str, Any]) -> RenderableType:
  """Returns a table of the headline metric at every λ and of the results of choosing λ per client."""
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
  """Draws a metric over λ with an error band, the common λ marked (as thesis figure 2.5).

  Args:
    grid: λ, [Λ], in [0, 1].
    mean: the metric's mean over the clients' test parts at each λ, [Λ].
    std: its population standard deviation over the clients, [Λ].
    path: the PNG to write, which is returned; its folder is created if missing.
    metric: name of the metric.
    common: the λ to mark; by default the one with the best mean.
    picked_on: the part that `common` was picked on, "validation" or "test".
    own: mean and std of the personalised models if they are the headline; drawn as a line instead of the
      mark.
    title: the figure's title.
    statistics: "own" if running statistics are estimated from each client's examples, which the figure notes.
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
