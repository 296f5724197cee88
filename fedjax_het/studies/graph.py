"""Study of a mixing graph: how much of what a client gets next is made of each other client."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike
from rich.console import RenderableType
from rich.text import Text

from fedjax_het.data.clients import label_counts
from fedjax_het.engine.round import RoundInfo
from fedjax_het.studies.mixture import entropy
from fedjax_het.studies.plots import save
from fedjax_het.studies.stored import write_arrays
from fedjax_het.studies.study import Curve, Moment, Study, Watched, series
from fedjax_het.studies.text import percent

FILE, PICTURE = "graph.npz", "graph.png"


class Graph(Study):
  """Study that adds `graph` to metrics.jsonl and to the summary, and writes graph.npz and graph.png.

  graph.npz holds `weights`, float32 [K, K], after the last round, and `order`, in which the picture has the
  clients: by hidden cluster, or else by the class that they hold most of.
  """

  name = "graph"

  @classmethod
  def fits(cls, run: Watched) -> bool:
    """Returns whether the client part has a graph of several clients."""
    return run.algorithm.client.studies.graph is not None and run.data.num_clients > 1

  def watch(self, infos: RoundInfo, now: Moment) -> dict[str, Any]:
    """Returns {"graph": report} for an evaluation."""
    if now.evaluations is None or now.diverged:
      return {}
    return {"graph": report(self._weights(now), self.run.hidden)}

  def section(self, now: Moment) -> dict[str, Any]:
    """Writes graph.npz, and returns {"graph": report} for the finished run."""
    if now.diverged:
      return {}
    weights = self._weights(now)
    if self.run.writes:
      write_arrays(self.run.folder / FILE, weights=np.float32(weights), order=self._order())
    return {"graph": report(weights, self.run.hidden)}

  def _weights(self, now: Moment) -> np.ndarray:
    """Returns the graph, float64 [K, K]."""
    state, graph = now.state(), self.run.algorithm.client.studies.graph
    assert graph is not None
    return np.asarray(graph(state.broadcast, state.server, state.clients), np.float64)

  def _order(self) -> np.ndarray:
    """Returns the clients in the picture's order, int [K]."""
    data, own = self.run.data, self.run.hidden
    if own is None and self.run.algorithm.client.task.classes:
      own = label_counts(data).argmax(1)
    return np.arange(data.num_clients) if own is None else np.argsort(own, kind="stable")

  @classmethod
  def rows(cls, summary: Mapping[str, Any]) -> RenderableType | None:
    """Returns a terminal line with what a client takes of itself and of its hidden cluster."""
    found = summary.get("graph")
    if not found:
      return None
    inside = f", {percent(found['inside'])} of the rest of its hidden cluster" if "inside" in found else ""
    return Text(f"mixing graph: a client takes {percent(found['self'])} of itself{inside}")

  def curves(self, lines: Sequence[Mapping[str, Any]]) -> list[Curve]:
    """Returns the curves of what a client takes of itself and, where known, of its hidden cluster."""
    return [Curve(name, "graph", series(lines, "graph", name)) for name in ("self", "inside")]

  def draw(self, lines: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> None:
    """Draws graph.png from graph.npz."""
    path = self.run.folder / FILE
    if "graph" in summary and path.exists():
      with np.load(path) as file:
        plot_graph(
          file["weights"], self.run.figures / PICTURE, order=file["order"], hidden=self.run.hidden,
          title=self.run.title,
        )  # fmt: skip


def report(weights: ArrayLike, hidden: ArrayLike | None = None) -> dict[str, float]:
  """Describes a graph w: `self`, mean w_ii; `entropy`, mean entropy of the rows, in nats; and `inside`.

  `inside` is the share of Σ_{i≠j} w_ij between clients of one hidden cluster; NaN where that sum is 0.

  Args:
    weights: w, [K, K].
    hidden: the hidden cluster of each client, int [K]; None if it is not known.
  """
  w = np.asarray(weights, np.float64)
  found = {"self": float(np.diag(w).mean()), "entropy": float(entropy(w).mean())}
  if hidden is not None:
    h = np.asarray(hidden)
    others = w * ~np.eye(len(w), dtype=bool)
    total = others.sum()
    found["inside"] = float((others * (h[:, None] == h)).sum() / total) if total else float("nan")
  return found


def plot_graph(
  weights: ArrayLike,
  path: str | os.PathLike[str],
  *,
  order: ArrayLike | None = None,
  hidden: ArrayLike | None = None,
  title: str = "",
) -> Path:
  """Draws a mixing graph as a heat map of what a client (row) takes of each client (column).

  The colours end at the largest weight between two different clients, so that a client's own weight does not
  hide the others'.

  Args:
    weights: [K, K].
    path: the PNG to write, which is returned; its folder is created if missing.
    order: the clients in the order of rows and columns; None for 0, 1, ...
    hidden: the hidden cluster of each client, int [K]; lines are drawn between clusters that are neighbours.
    title: the figure's title.
  """
  w = np.asarray(weights, np.float64)
  at = np.arange(len(w)) if order is None else np.asarray(order)
  figure = Figure(figsize=(6.6, 5.6), layout="constrained")
  figure.suptitle(f"{title}: mixing graph", fontsize=11, fontweight="bold")
  axes = figure.subplots()
  others = w[~np.eye(len(w), dtype=bool)]
  most = others.max() if others.size and others.max() > 0 else 1.0
  more = "max" if w.max() > most else "neither"
  image = axes.imshow(w[np.ix_(at, at)], cmap="Blues", vmin=0.0, vmax=most, interpolation="nearest")
  figure.colorbar(image, ax=axes, label="weight", extend=more)
  if hidden is not None:
    for border in np.flatnonzero(np.diff(np.asarray(hidden)[at])) + 0.5:
      axes.axhline(border, color="black", linewidth=0.8)
      axes.axvline(border, color="black", linewidth=0.8)
  if len(w) <= 40:
    axes.set_xticks(np.arange(len(w)), [str(i) for i in at], fontsize=7, rotation=90)
    axes.set_yticks(np.arange(len(w)), [str(i) for i in at], fontsize=7)
  by = ", by hidden cluster" if hidden is not None else ""
  axes.set(xlabel=f"client it is made of{by}", ylabel=f"client that gets it{by}")
  return save(figure, path)
