"""Study of a method's clusters: who is where over the rounds, beside the truth where it is known."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike
from rich.console import RenderableType
from rich.text import Text

from fedjax_het.engine.round import RoundInfo
from fedjax_het.parts import ClientUpdate
from fedjax_het.studies.plots import GREY, colours_of, decorate, save
from fedjax_het.studies.study import Curve, Moment, Study, Watched, series
from fedjax_het.studies.text import percent, rounded

MANY = 100  # largest number of clients whose clusters are recorded one by one
NAMED = 12  # up to this many clusters, a legend names them


class Clusters(Study):
  """Study that adds `clusters` to metrics.jsonl and to the summary, and clusters.png.

  A client's cluster is the group that it belongs to most. The fields are those of `report`, and `moved`, the
  share of the clients whose cluster is another than at the evaluation before.
  """

  name = "clusters"

  def __init__(self, run: Watched):
    super().__init__(run)
    self._before: list[int] | None = None

  @classmethod
  def fits(cls, run: Watched) -> bool:
    """Returns whether the client part has groups: `Studies.membership` or `Studies.groups`."""
    return offers_groups(run.algorithm.client)

  def checkpoint_state(self) -> list[int] | None:
    """Returns the clients' clusters at the last evaluation, for the checkpoint."""
    return self._before

  def resume(self, rounds_done: int, checkpoint_state: Any) -> None:
    """Restores the clients' clusters at the last evaluation."""
    self._before = checkpoint_state

  def watch(self, infos: RoundInfo, now: Moment) -> dict[str, Any]:
    """Returns {"clusters": report} for an evaluation."""
    if now.evaluations is None or now.diverged:
      return {}
    weights = self._weights(now)
    found = report(weights, self.run.hidden)
    own = clusters_of(weights)
    if self._before is not None:
      found["moved"] = float(np.mean(own != np.array(self._before)))
    self._before = own.tolist()
    return {"clusters": found}

  def section(self, now: Moment) -> dict[str, Any]:
    """Returns {"clusters": report} for the finished run."""
    return {} if now.diverged else {"clusters": report(self._weights(now), self.run.hidden)}

  def _weights(self, now: Moment) -> np.ndarray:
    """Returns how much each client belongs to each group, float64 [K, M]."""
    client = self.run.algorithm.client
    if client.studies.groups is not None:
      state = now.state()
      return np.asarray(client.studies.groups(state.broadcast, state.server, state.clients), np.float64)
    found = now.evaluate(memberships).personalized
    count = len(found) - 1  # beside the loss
    return np.stack([np.asarray(found[str(m)])[:, 0] for m in range(count)], axis=1)

  @classmethod
  def rows(cls, summary: Mapping[str, Any]) -> RenderableType | None:
    """Returns a terminal line with the sizes of the clusters, and how pure they are."""
    found = summary.get("clusters")
    if not found:
      return None
    sizes = ", ".join(map(str, found["sizes"][:NAMED])) + (", ..." if len(found["sizes"]) > NAMED else "")
    told = f"clusters of {sizes} clients"
    if "purity" in found:
      told += f"; {percent(found['purity'])} pure, Rand index {rounded(found['rand'], '.2f')}"
    return Text(told)

  def curves(self, lines: Sequence[Mapping[str, Any]]) -> list[Curve]:
    """Returns the curves of the clusters' purity and of the clients that moved."""
    return [Curve(name, "clusters", series(lines, "clusters", name)) for name in ("purity", "moved")]

  def draw(self, lines: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> None:
    """Draws clusters.png: every client's cluster over the rounds, or the clusters' sizes for many clients."""
    known = [line for line in lines if "clusters" in line]
    if known:
      found = {name: [line["clusters"].get(name) for line in known] for name in ("of", "sizes")}
      most = max(map(len, found["sizes"]))  # clusters may come to be
      found["sizes"] = [[*own, *[0] * (most - len(own))] for own in found["sizes"]]
      plot_clusters(
        [line["round"] for line in known], found["sizes"], self.run.figures / "clusters.png",
        of=None if found["of"][0] is None else found["of"], hidden=self.run.hidden, title=self.run.title,
      )  # fmt: skip


def offers_groups(client: ClientUpdate) -> bool:
  """Returns whether a client part says which groups its clients are in."""
  return client.studies.membership is not None or client.studies.groups is not None


def memberships(client: ClientUpdate) -> ClientUpdate:
  """Returns a client part whose metrics "0", "1", ... are how much a client belongs to each group."""
  membership = client.studies.membership
  assert membership is not None

  def metrics(weights: jax.Array, y: Any, mask: jax.Array) -> dict[str, jax.Array]:
    return {str(m): weights[0, m] for m in range(weights.shape[1])} | {"loss": jnp.float32(0.0)}

  def apply(weights: jax.Array, x: Any) -> jax.Array:
    return jnp.broadcast_to(weights, (len(jax.tree.leaves(x)[0]), *weights.shape))

  return client._replace(
    personalize=lambda broadcast, state, data, context, lam: membership(broadcast, state, data, context),
    apply=apply, global_model=None, studies=client.studies._replace(lambdas=(0.0,)),
    task=client.task._replace(scores=lambda weights, y: weights, metrics=metrics),
  )  # fmt: skip


def clusters_of(weights: ArrayLike) -> np.ndarray:
  """Returns the group that each client belongs to most, int [K], of w [K, M]; -1 for a client of none.

  A group that does not exist has NaN for every client. A client is in no group if its weights for the others
  are NaN, as after a loss that is NaN.
  """
  w = np.asarray(weights, np.float64)
  nowhere = np.isnan(w[:, ~np.isnan(w).all(0)]).any(1) | np.isnan(w).all(1)
  return np.where(nowhere, -1, np.nan_to_num(w, nan=-1.0).argmax(1))


def report(weights: ArrayLike, hidden: ArrayLike | None = None) -> dict[str, Any]:
  """Describes the clusters of clients, where client i belongs to group m by w_im.

  The last groups may not exist, whose weights are NaN; they are left out. `of` is each client's group, see
  `clusters_of`, for up to a hundred clients. The other figures are of the clients that are in a group.
  `sizes` are the numbers of clients whose largest weight is that of each group, `sure` is the mean of the
  largest weights. With the hidden clusters h, `purity` is Σ_m max_h n_mh / Σ_m n_m and `rand` is
  `adjusted_rand`. All but `sizes` and `of` are NaN where no client is in a group.

  Args:
    weights: w, [K, M].
    hidden: the hidden cluster of each client, int [K]; None if it is not known.
  """
  w = np.asarray(weights, np.float64)
  every, groups = clusters_of(w), int((~np.isnan(w).all(0)).sum())
  there = every >= 0
  own, none = every[there], float("nan")
  found: dict[str, Any] = {
    "sizes": np.bincount(own, minlength=groups).tolist(),
    "sure": float(w[there, own].mean()) if len(own) else none,
  }
  if len(every) <= MANY:
    found["of"] = every.tolist()
  if hidden is not None:
    truth = np.asarray(hidden)[there]
    pure = crossed(own, truth).max(1).sum() / len(own) if len(own) else none
    found |= {"purity": float(pure), "rand": adjusted_rand(own, truth) if len(own) else none}
  return found


def crossed(first: ArrayLike, second: ArrayLike) -> np.ndarray:
  """Counts the clients in each group of one grouping and each of another, int [groups, groups]."""
  rows, columns = (np.unique(np.asarray(own), return_inverse=True)[1] for own in (first, second))
  table = np.zeros((rows.max() + 1, columns.max() + 1), int)
  np.add.at(table, (rows, columns), 1)
  return table


def adjusted_rand(first: ArrayLike, second: ArrayLike) -> float:
  """Computes the adjusted Rand index of two groupings: 1 if they are the same, 0 on average for random ones.

  Source: Hubert and Arabie, Comparing partitions, Journal of Classification, 1985.
  """
  pairs = lambda counts: (counts * (counts - 1) / 2).sum()  # noqa: E731
  table = crossed(first, second)
  both, rows, columns = pairs(table), pairs(table.sum(1)), pairs(table.sum(0))
  by_chance = rows * columns / max(pairs(table.sum()), 1)
  most = (rows + columns) / 2
  return 1.0 if most == by_chance else float((both - by_chance) / (most - by_chance))


def plot_clusters(
  rounds: ArrayLike,
  sizes: ArrayLike,
  path: str | os.PathLike[str],
  *,
  of: ArrayLike | None = None,
  hidden: ArrayLike | None = None,
  title: str = "",
) -> Path:
  """Draws the clients' clusters over the rounds.

  Args:
    rounds: rounds of the evaluations, [R].
    sizes: numbers of clients in each cluster, [R, M].
    path: the PNG to write, which is returned; its folder is created if missing.
    of: each client's cluster, int [R, K], -1 for none, in grey: a row for each client, sorted by hidden
      cluster, then by the last one. None draws the sizes alone.
    hidden: the hidden cluster of each client, int [K], marked beside the rows.
    title: the figure's title.
  """
  counts = np.asarray(sizes)
  palette = colours_of(counts.shape[1])
  figure = Figure(figsize=(8.0, 4.6), layout="constrained")
  figure.suptitle(f"{title}: clusters over the rounds", fontsize=11, fontweight="bold")
  axes = figure.subplots()
  steps = np.arange(len(counts))
  if of is None:
    axes.stackplot(steps, counts.T, colors=palette)
    decorate(axes, "clients")
  else:
    own = np.asarray(of)
    truth = np.zeros(own.shape[1], int) if hidden is None else np.asarray(hidden)
    order = np.lexsort((own[-1], truth))
    colours = np.vstack([palette, [to_rgba(GREY)]])  # -1 is the last
    axes.imshow(colours[own[:, order].T], aspect="auto", interpolation="nearest")
    axes.set_ylabel("client" if hidden is None else "client, by hidden cluster")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    if hidden is not None:
      borders = np.flatnonzero(np.diff(truth[order])) + 0.5
      axes.hlines(borders, -0.5, len(own) - 0.5, color="white", linewidth=2.5)
      places = [np.flatnonzero(truth[order] == h).mean() for h in np.unique(truth)]
      axes.set_yticks(places, [f"hidden {h}" for h in np.unique(truth)])
    elif own.shape[1] <= 40:
      axes.set_yticks(np.arange(own.shape[1]), [str(i) for i in order], fontsize=7)
  shown = steps[:: -(-len(steps) // 10)]
  axes.set_xticks(shown, [str(np.asarray(rounds)[i]) for i in shown])
  axes.set_xlabel("round of the evaluation")
  if counts.shape[1] <= NAMED:
    for m, colour in enumerate(palette[: counts.shape[1]]):
      axes.scatter([], [], marker="s", color=[colour], label=f"{m}: {counts[-1][m]}")
    figure.legend(
      loc="outside right center", frameon=False, fontsize=9, title="cluster: clients at last",
      title_fontsize=8, labelcolor=GREY,
    )  # fmt: skip
  return save(figure, path)
