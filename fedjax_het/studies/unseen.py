"""Study of clients that never train: the global model's metrics on them, before and after local steps."""

import functools
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from matplotlib.figure import Figure
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedjax_het.clients.local_settings import LocalSettings, at_evaluations
from fedjax_het.clients.recipe import recipe_of
from fedjax_het.clients.sgd import run_steps, start
from fedjax_het.data.container import FederatedData
from fedjax_het.engine.evaluate import evaluate_model
from fedjax_het.engine.lambda_selection import headline
from fedjax_het.engine.round import RoundInfo
from fedjax_het.metrics.catalogue import shown
from fedjax_het.metrics.fairness import summarize_all
from fedjax_het.models import Model
from fedjax_het.parts import ClientUpdate, Context, Message
from fedjax_het.studies.plots import GREY, STYLES, axis_label, decorate, reading, save, spelled
from fedjax_het.studies.study import Curve, Moment, Study, Watched, series
from fedjax_het.studies.text import named, number, spread


class Unseen(Study):
  """Study that adds `unseen` to metrics.jsonl and, also after local steps, to the summary; unseen.png."""

  name = "unseen"

  def __init__(self, run: Watched):
    """Compiles the evaluation and the local steps with the run's settings of local training."""
    super().__init__(run)
    assert run.unseen is not None
    self._steps, given = run.config.unseen_steps, run.config.client.settings
    local = cast(LocalSettings, at_evaluations(given))
    judge = functools.partial(
      after_steps, jax.random.fold_in(run.key, 1_000_004), client=run.algorithm.client,
      model=run.model if isinstance(run.model, Model) else None,
      local=local,
    )  # fmt: skip
    self._judge, self._tune = jax.jit(judge), jax.jit(functools.partial(judge, steps=self._steps))

  @classmethod
  def fits(cls, run: Watched) -> bool:
    """Returns whether the run has clients that never train."""
    return run.unseen is not None

  def watch(self, infos: RoundInfo, now: Moment) -> dict[str, Any]:
    """Returns {"unseen": metric -> figures over the unseen clients, of the global model} at an evaluation."""
    if now.evaluations is None or now.diverged:
      return {}
    return {"unseen": self._figures(self._judge, now)[0]}

  def section(self, now: Moment) -> dict[str, Any]:
    """Returns {"unseen": the number of `clients`, `steps` from 0, and `metrics` after each of them}."""
    if now.diverged:
      return {}
    assert self.run.unseen is not None
    figures = self._figures(self._tune, now)
    count = self.run.unseen.num_clients
    return {"unseen": {"clients": count, "steps": [0, *self._steps], "metrics": figures}}

  def _figures(self, judge: Callable[..., Any], now: Moment) -> list[dict[str, dict[str, float]]]:
    """Returns the figures over the clients per number of steps, the headline metric first."""
    found = judge(self.run.unseen, jax.tree.map(np.asarray, now.broadcast()))
    first = next(name for name in self.run.algorithm.client.task.headline if name in found[0])
    return [
      summarize_all(
        {name: np.asarray(own[name], np.float64) for name in sorted(own, key=lambda n: n != first)}
      )
      for own in found
    ]

  @classmethod
  def rows(cls, summary: Mapping[str, Any]) -> RenderableType | None:
    """Returns a table of the headline metric after each number of local steps."""
    return unseen_table(summary["unseen"]) if summary.get("unseen") else None

  def curves(self, lines: Sequence[Mapping[str, Any]]) -> list[Curve]:
    """Returns a curve of the global model's headline metric on the unseen clients."""
    known = [line["unseen"] for line in lines if line.get("unseen")]
    if not known:
      return []
    metric = headline(known[-1])
    return [Curve(metric, "global, unseen clients", series(lines, "unseen", metric, "mean"))]

  def draw(self, lines: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> None:
    """Draws unseen.png, the metric over the number of local steps."""
    if self._steps and summary.get("unseen"):
      path = self.run.figures / "unseen.png"
      plot_unseen(summary["unseen"], summary["metrics"], path, title=self.run.title)


def after_steps(
  key: jax.Array,
  data: FederatedData,
  broadcast: Message,
  *,
  client: ClientUpdate,
  model: Model | None = None,
  steps: Sequence[int] = (),
  local: LocalSettings | None = None,
) -> list[dict[str, jax.Array]]:
  """Evaluates a global model on each client, before and after local steps of fine-tuning.

  The steps minimise F_i(θ) from the global model, as FedAvg's clients do in the first round: on
  mini-batches of the client's training part, reshuffled in every epoch, and with η not decayed, since a
  client that joins late starts afresh. A longer training continues a shorter one. To be called under `jit`.

  Args:
    key: typed PRNG key of the order of examples.
    data: the clients' data.
    broadcast: the server's broadcast.
    client: the client part, which defines the global model.
    model: the model that is trained; needed if there are steps.
    steps: increasing numbers of local steps after which to evaluate.
    local: settings of local training, which is done at the learning rate of round 0; by default its defaults.

  Returns:
    For each of (0, *steps): metric of the clients' test parts -> float32 [U].
  """

  def one(i: jax.Array) -> list[dict[str, jax.Array]]:
    own, test = data.clients(i), data.clients(i, "test")

    def judged(params: Any) -> dict[str, jax.Array]:
      return evaluate_model(client.task, client.apply, params, test)

    assert client.global_model is not None
    received = client.global_model(broadcast)
    found = [judged(received)]
    if model is not None and steps:
      recipe, order = recipe_of(model, {**(local or {}), "epochs": steps[-1]}), jax.random.fold_in(key, i)
      optimizer = recipe.optimizer(Context())
      work = start(*model.split(received), optimizer)
      for first, last in itertools.pairwise((0, *steps)):
        work = run_steps(order, recipe, own, work, optimizer, first=first, last=last)
        found.append(judged(model.joined(work.params, work.stats)))
    return found

  return lax.map(one, jnp.arange(data.num_clients))


def unseen_table(found: Mapping[str, Any]) -> RenderableType:
  """Returns a table of the headline metric, one row per number of local steps."""
  metric = headline(found["metrics"][0])
  table = Table("local steps", f"{named(metric)}, mean ± std", "worst 10 %", "best 10 %", box=SIMPLE_HEAD)
  for column in table.columns:
    column.justify = "right"
  for count, metrics in zip(found["steps"], found["metrics"]):
    figures = metrics[metric]
    tails = (number(figures[name], metric) for name in ("worst10", "best10"))
    table.add_row(str(count), spread(figures, metric), *tails)
  return Group(Text(f"\n{found['clients']} clients that never trained, from the global model on"), table)


def plot_unseen(
  found: Mapping[str, Any],
  seen: Mapping[str, Any],
  path: str | os.PathLike[str],
  *,
  title: str = "Clients that never trained",
) -> Path:
  """Draws the headline metric over the number of local steps, and the metric of the clients that trained.

  Args:
    found: section `unseen` of a summary.
    seen: section `metrics` of the summary.
    path: the PNG to write, which is returned; its folder is created if missing.
    title: the figure's title.
  """
  metric = headline(found["metrics"][0])
  factor = shown(metric).factor
  mean, worst, best = (
    factor * np.array([own[metric][name] for own in found["metrics"]], np.float64)
    for name in ("mean", "worst10", "best10")
  )
  figure = Figure(figsize=(6.0, 4.0), layout="constrained")
  ax = figure.subplots()
  color = "#009E73"
  ax.fill_between(found["steps"], worst, best, color=color, alpha=0.13, linewidth=0)
  ax.plot(
    found["steps"],
    mean,
    color=color,
    marker="D",
    markersize=5,
    linewidth=1.8,
    label=f"{found['clients']} unseen clients",
  )
  alike = seen["personalized"] == seen["global"]
  for model, block in ({"global": seen["global"]} if alike else seen).items():
    value = factor * block[metric]["mean"]
    style = {name: STYLES[model][name] for name in ("color", "linestyle")}
    label = f"clients that trained, {spelled(model)}: {reading(value, metric)}"
    ax.axhline(value, linewidth=1.2, label=label, **style)
  ax.set_xscale("symlog", linthresh=1)
  ax.set_xticks(found["steps"], [str(count) for count in found["steps"]])
  ax.minorticks_off()
  ax.set_xlim(-0.2, 1.2 * found["steps"][-1])
  ax.set_xlabel("local steps from the global model on")
  decorate(ax, ylabel=axis_label(metric))
  figure.suptitle(title, fontsize=12, fontweight="bold")
  ax.set_title("mean over clients, band: worst 10 % to best 10 %", fontsize=9, color=GREY, loc="left")
  figure.legend(frameon=False, fontsize=9, loc="outside lower center")
  return save(figure, path)
