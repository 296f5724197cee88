"""Study of a metric over a simplex of models, with the clients' points and regions (SosicFL, figure 5)."""

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from rich.console import RenderableType
from rich.text import Text

from fedjax_het.engine.base import OfFn
from fedjax_het.engine.lambda_selection import mean_over_clients
from fedjax_het.metrics.catalogue import shown
from fedjax_het.parts import ClientUpdate
from fedjax_het.studies.simplex_plots import plot_clients, plot_line, plot_triangles
from fedjax_het.studies.study import Moment, Study, Watched
from fedjax_het.studies.text import named, number

DIVISIONS = {2: 10, 3: 6}  # grid divisions of an edge, by the number of endpoints; no grid for more
MOST_CLUSTERS = 3  # clusters that are shown besides all clients, largest first


class SimplexMap(Study):
  """Study that adds `simplex` to the summary, and simplex.png, for two or three endpoints.

  The server's models on a grid of α are evaluated once, at the end, on all clients' test parts. Before the
  first round the clients are drawn in the simplex, of two or more endpoints: simplex_clients.png.
  """

  name = "simplex"

  @classmethod
  def fits(cls, run: Watched) -> bool:
    """Returns whether the client part has a simplex of at least two endpoints."""
    simplex = run.algorithm.client.studies.simplex
    return simplex is not None and np.shape(simplex.centers)[1] > 1

  def __init__(self, run: Watched):
    super().__init__(run)
    assert run.algorithm.client.studies.simplex is not None
    self._simplex = run.algorithm.client.studies.simplex
    self._count = np.shape(self._simplex.centers)[1]

  def draw_first(self) -> None:
    """Draws simplex_clients.png, the clients' points and regions in the simplex."""
    epsilon = self.run.config.client.settings.get("epsilon")
    path = self.run.figures / "simplex_clients.png"
    plot_clients(self._simplex, path, title=self.run.title, epsilon=epsilon)

  def section(self, now: Moment) -> dict[str, Any]:
    """Returns {"simplex": grid points α [n, M + 1], and the metric's means [n] over clients and clusters}."""
    assert now.evaluations is not None
    if self._count not in DIVISIONS or now.diverged:
      return {}
    metric, alphas = now.evaluations.headline, grid(self._count, DIVISIONS[self._count])
    values = now.evaluations.of_honest(now.evaluate(on_grid(self._count))).personalized[metric]
    own = np.asarray(self._simplex.clusters)
    clusters, sizes = np.unique(own, return_counts=True)
    largest = clusters[np.argsort(-sizes, kind="stable")][:MOST_CLUSTERS]
    means = {int(c): mean_over_clients(values[own == c]).tolist() for c in largest}
    every = mean_over_clients(values).tolist()
    return {"simplex": {"metric": metric, "alphas": alphas.tolist(), "all": every, "clusters": means}}

  @classmethod
  def rows(cls, summary: Mapping[str, Any]) -> RenderableType | None:
    """Returns a terminal line with the best and the worst point of the grid."""
    found = summary.get("simplex")
    if not found:
      return None
    metric, alphas, values = found["metric"], found["alphas"], np.array(found["all"], np.float64)
    if not np.isfinite(values).any():
      return None
    worth = values if shown(metric).higher_is_better else -values
    ends = [
      f"{what} {number(values[place], metric)} at α = ({', '.join(f'{a:.2f}' for a in alphas[place])})"
      for what, place in (("best", np.nanargmax(worth)), ("worst", np.nanargmin(worth)))
    ]
    return Text(f"global {named(metric)} over the simplex, {len(values)} points: {', '.join(ends)}")

  def draw(self, lines: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> None:
    """Draws simplex.png: curves for two endpoints, triangles for three."""
    found = summary.get("simplex")
    finite = np.isfinite(np.array(found["all"] if found else [], np.float64))
    if found and (finite.any() if self._count == 2 else finite.all()):
      plot = plot_line if self._count == 2 else plot_triangles
      plot(found, self._simplex, self.run.figures / "simplex.png", title=self.run.title)


def grid(count: int, divisions: int) -> np.ndarray:
  """Returns all points of the simplex with coordinates in multiples of 1 / divisions, float32 [n, count]."""
  points = itertools.product(range(divisions + 1), repeat=count)
  return np.array([point for point in points if sum(point) == divisions], np.float32) / divisions


@functools.cache
def on_grid(count: int) -> OfFn:
  """Returns (client part) -> a client part whose λ indexes grid points of the server's simplex."""
  alphas = grid(count, DIVISIONS[count])

  def of(client: ClientUpdate) -> ClientUpdate:
    simplex = client.studies.simplex
    assert simplex is not None

    def personalize(broadcast, state, data, context, lam):
      return simplex.at(broadcast, jnp.asarray(alphas)[lam.astype(int)])

    studies = client.studies._replace(lambdas=tuple(map(float, range(len(alphas)))))
    return client._replace(personalize=personalize, studies=studies)

  return of
