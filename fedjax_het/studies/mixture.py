"""Study of the mixing coefficients over the rounds."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from fedjax_het.engine.round import RoundInfo
from fedjax_het.mixing import observed
from fedjax_het.models import Generative, Model
from fedjax_het.parts import Mixing
from fedjax_het.studies.plots import COLORS, GREY, plain, save
from fedjax_het.studies.study import Moment, Options, Study

MANY = 100  # largest cohort for which single coefficients are recorded
LINES = [(color, dash) for dash in ("-", "--") for color in COLORS]  # a style per client, if few


def with_losses(mixing: Mixing, *, record_losses: bool = False) -> Mixing:
  """Returns a mixing part that requests the clients' losses, if asked to.

  Args:
    mixing: any mixing part.
    record_losses: ask for the clients' losses also where the mixing does not: `objective` of metrics.jsonl.
  """
  return observed(mixing) if record_losses else mixing


class Mixture(Study):
  """Study that adds `mixing`, a round's coefficients, to every line of metrics.jsonl, and mixing.png.

  If all clients take part in every round and their losses are known, `cumulative` is Σ_t Σ_i p_i F_i over all
  rounds so far, with the coefficients p that were decided before the round's losses: those of the round
  before, and `first_mixture` in the first.
  """

  name = "mixture"
  options = Options("record_losses", with_losses, single=True, silent=True)

  @classmethod
  def observed(cls, given: bool, mixing: Mixing, model: Model | Generative) -> Mixing:
    """Returns the mixing part, made to request the clients' losses if the configuration says so."""
    return with_losses(mixing, record_losses=given)

  def checkpoint_state(self) -> dict[str, Any] | None:
    """Returns the cumulative objective and the last coefficients, by client; None if they are not known."""
    return None if self._decided is None else {"sum": self._sum, "decided": self._decided.tolist()}

  def resume(self, rounds_done: int, checkpoint_state: Mapping[str, Any] | None) -> None:
    """Restores the cumulative objective; a checkpoint without one leaves it unknown."""
    self._decided: np.ndarray | None = None
    self._sum = 0.0
    if checkpoint_state:
      self._decided = np.asarray(checkpoint_state["decided"])
      self._sum = np.nan if checkpoint_state["sum"] is None else checkpoint_state["sum"]
    self._begins = not rounds_done

  def watch(self, infos: RoundInfo, now: Moment) -> dict[str, Any]:
    """Returns {"mixing": the report of `mixing_report`, with the cumulative objective if it is known}."""
    if self._begins:
      everybody = infos.cohort.shape[1] == self.run.data.num_clients
      if everybody and not np.isnan(infos.losses).all():
        self._decided = first_mixture(self.run.algorithm.mixing, self.run.data.train.size)
      self._begins = False
    report = mixing_report(infos)
    if self._decided is not None:
      order = np.argsort(infos.cohort, axis=1)
      p, losses = (np.take_along_axis(each, order, 1) for each in (infos.coefficients, infos.losses))
      self._sum = float(cumulative_objective(np.vstack([self._decided, p[:-1]]), losses, self._sum)[-1])
      self._decided = p[-1]
      report["cumulative"] = self._sum
    return {"mixing": report}

  def draw(self, lines: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> None:
    """Draws the coefficients over the rounds, if they are recorded and cohorts have several clients."""
    known = [line for line in lines if "coefficients" in line.get("mixing", {})]
    if known and summary["cohort_size"] > 1:
      plot_mixture(
        [line["mixing"]["coefficients"] for line in known],
        self.run.figures / "mixing.png",
        rounds=[line["round"] for line in known],
        names=self.run.data.encoder.clients,
        same_clients=summary["cohort_size"] == summary["num_clients"],
        title=f"{summary['mixing']} mixing, {self.run.title}",
      )


def entropy(mixture: ArrayLike) -> np.ndarray:
  """Entropy -Σ_i p_i log p_i over the last axis, in nats: log K if all count alike, 0 if one counts."""
  p = np.asarray(mixture, np.float64)
  return -np.sum(np.where(p == 0, 0.0, p * np.log(np.where(p == 0, 1.0, p))), axis=-1)


def cumulative_objective(mixtures: ArrayLike, losses: ArrayLike, before: float = 0.0) -> np.ndarray:
  """Cumulative objective Σ_{τ <= t} Σ_i p_{τ,i} F_{τ,i}, float64 [T], of mixtures and losses [T, S].

  It is the quantity of the thesis's figure 3.1. `before` is its value before the first of these rounds.
  """
  with np.errstate(over="ignore", invalid="ignore"):  # 0 times infinity is possible
    terms = (np.asarray(mixtures, np.float64) * np.asarray(losses, np.float64)).sum(axis=-1)
    return np.cumsum([before, *terms])[1:]


def first_mixture(mixing: Mixing, sizes: ArrayLike) -> np.ndarray:
  """Returns p_1, decided before any loss is known, float64 [K]: 1/K for a part with a state, else n_i/n."""
  n = np.asarray(sizes, np.float64)
  state = jax.eval_shape(mixing.init, jax.ShapeDtypeStruct(n.shape, np.int32))
  return np.full(len(n), 1.0 / len(n)) if mixing.even or jax.tree.leaves(state) else n / n.sum()


def mixing_report(infos: RoundInfo) -> dict[str, Any]:
  """Reports the coefficients of the last round in `infos`: entropy (nats), objective Σ_i p_i F_i, and values.

  `objective` is null if the mixing part requests no losses (`record_losses=True` in the configuration
  requests them), and single coefficients are omitted for cohorts of more than a hundred.
  """
  cohort, p, losses = infos.cohort[-1], infos.coefficients[-1], infos.losses[-1]
  with np.errstate(over="ignore", invalid="ignore"):  # 0 times infinity is possible
    objective = float((p * losses).sum())
  report: dict[str, Any] = {"entropy": float(entropy(p)), "objective": objective}
  if len(cohort) <= MANY:
    order = np.argsort(cohort)
    report |= {"cohort": cohort[order].tolist(), "coefficients": p[order].tolist()}
  return report


def plot_mixture(
  coefficients: ArrayLike,
  path: str | os.PathLike[str],
  *,
  rounds: ArrayLike | None = None,
  names: Sequence[str] | None = None,
  same_clients: bool = True,
  title: str = "Mixing coefficients",
) -> Path:
  """Draws the mixing coefficients p over the rounds, and their entropy below.

  Args:
    coefficients: [T, S], one row per round; a single row is drawn one round wide.
    path: the PNG to write, which is returned; its folder is created if missing.
    rounds: the rows' rounds, [T]; by default 1, ..., T.
    names: names of the clients, [S]. Up to 12 clients get a line each, more are shown by quantiles.
    same_clients: whether a column is the same client in all rows; otherwise quantiles are shown.
    title: the figure's title.
  """
  p = np.asarray(coefficients, np.float64)
  rounds = np.arange(1, len(p) + 1) if rounds is None else np.asarray(rounds)
  if len(p) == 1:  # a line needs two points
    p, rounds = p.repeat(2, axis=0), rounds + np.array([-0.5, 0.5])
  figure = Figure(figsize=(7.0, 5.0), layout="constrained")
  figure.suptitle(title, fontsize=12, fontweight="bold")
  above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
  each = p.shape[1] <= len(LINES) and same_clients
  if each:
    for i, (line, (color, dash)) in enumerate(zip(p.T, LINES)):
      label = plain(str(names[i])) if names else f"client {i}"
      above.plot(rounds, line, color=color, linestyle=dash, label=label)
  else:
    for low, high, shade in ((0, 100, 0.12), (10, 90, 0.25)):
      above.fill_between(
        rounds, *np.percentile(p, (low, high), axis=1), alpha=shade, color=COLORS[0], linewidth=0,
        label=f"{low} to {high} % of the cohort",
      )  # fmt: skip
    above.plot(rounds, np.median(p, axis=1), color=COLORS[0], label="median of the cohort")
  even = {"color": GREY, "linestyle": ":", "linewidth": 1}
  above.axhline(1.0 / p.shape[1], label=f"1/S, all {p.shape[1]} alike", **even)
  above.legend(
    frameon=False, ncols=4 if each else 2, fontsize="small", loc="lower center", bbox_to_anchor=(0.5, 1.0)
  )
  above.set_ylabel("coefficient p")
  below.plot(rounds, entropy(p), color=COLORS[1])
  below.axhline(np.log(p.shape[1]), label="log S", **even)
  below.legend(frameon=False, fontsize="small")
  below.set(xlabel="round", ylabel="entropy (nats)")
  below.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
  return save(figure, path)
