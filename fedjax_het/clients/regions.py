"""Assigns clients to regions of the solution simplex from their label counts, before training.

SosicFL, sections 3.2 and 3.3. Label counts, the number of a client's examples per class, are disclosed to
whoever prepares the regions. They can be privatised first, see `noised`.
"""

import functools
import itertools
from typing import Annotated, NamedTuple, cast

import jax
import numpy as np
from numpy.typing import ArrayLike

from fedjax_het.clients.simplex import mean_distance
from fedjax_het.errors import SettingError, check_range, check_seed, checked_counts
from fedjax_het.parts import Release
from fedjax_het.settings import Choice, Count, Positive, checked

STARTS = 8  # LDA fits per endpoint beyond the first: most of five end with two groups at one point
TOGETHER = 0.25  # fraction of the radius within which two centers count as the same
REACH = 0.1  # distance within which DBSCAN puts two clients into one cluster
WIDEST = 2.0  # largest L1 distance between two points of a simplex
MOST_NAMED = 3  # pairs of clusters named in a remark


class Regions(NamedTuple):
  """Regions of the solution simplex Δ^M that are assigned to the clients.

  Attributes:
    centers: center μ_{z_k} of each client's region, float32 [K, M + 1].
    radius: η, the L1 radius of all regions.
    points: each client's point of the simplex, a function of its label counts alone, float32 [K, M + 1].
    clusters: z, the clients' clusters, int [K].
  """

  centers: np.ndarray | jax.Array
  radius: float | jax.Array
  points: np.ndarray
  clusters: np.ndarray


@checked
def regions(
  counts: ArrayLike,
  *,
  endpoints: Count = 2,
  clusters: Count | None = 2,
  distance: Annotated[str, Choice(("l1", "hilbert"))] = "l1",
  reach: Positive | None = None,
  rho: Positive = 0.4,
  epsilon: Positive | None = None,
  seed: int = 0,
) -> Regions:
  """Computes regions: label counts -> LDA -> points of the simplex -> clusters -> centers and radius.

  LDA is scikit-learn's online variational Bayes, the fit of least perplexity of 8·M random starts. A given
  number of clusters is found by average linkage, which needs no initialisation; otherwise DBSCAN finds
  clusters and their number (Ester et al. 1996; with one example a core, so that no client is noise). A center
  is the mean of its clients' points. η = ρ·δ, with δ the mean over the clusters of `mean_distance`.

  Args:
    counts: training examples per client and class, [K, C]; not fractions, with which all clients would lie
      near the middle.
    endpoints: M + 1 >= 1, the number of LDA topics; the paper states M = 1 for two folds, and no value
      elsewhere.
    clusters: number of clusters of clients, 1 to K, each with a region; None: as many as DBSCAN finds, which
      the paper recommends for folds, whose clients have one label distribution a group.
    distance: the distance between clients' points that clusters go by: "l1", Σ|p_i - q_i|, as the paper's
      radius, or "hilbert", see `hilbert_distances`, of the paper's reference for clustering.
    reach: DBSCAN's neighbourhood > 0, by default `REACH`: clients at most so far apart share a cluster. It is
      refused together with a number of clusters.
    rho: ρ > 0; the paper has 0.6 for two folds, else 0.4. From 2/δ on a region is the whole simplex.
    epsilon: ε > 0, privacy budget per example: the counts are noised first, see `noised`. None uses them as
      they are.
    seed: seed of the LDA starts and of the noise.

  Raises:
    SettingError: `counts` are not [K, C] numbers >= 0, have a client without examples, or are fractions; a
      setting is out of range; more clusters than clients or endpoints than classes; clusters or noise are set
      with one endpoint.
  """
  counts = checked_counts(counts)
  check_seed("seed", seed)
  check_regions(len(counts), counts.shape[1], endpoints, clusters, epsilon, reach)
  seed = int(seed)
  endpoints = int(endpoints)
  if epsilon is not None:
    counts = noised(counts, epsilon, seed)
  points = topics(counts, endpoints, seed) if endpoints > 1 else np.ones((len(counts), 1))
  z = np.zeros(len(counts), int) if clusters == 1 else _clustered(points, clusters, distance, reach or REACH)
  means = np.array([points[z == c].mean(0) for c in range(z.max() + 1)])
  radius = rho * float(np.mean([mean_distance(center) for center in means]))
  return Regions(means[z].astype(np.float32), radius, points.astype(np.float32), z)


def _clustered(points: np.ndarray, clusters: int | None, distance: str, reach: float) -> np.ndarray:
  """Returns the clients' clusters, int [K], numbered from 0; see `regions`."""
  from sklearn import cluster  # importing takes two seconds, and SosicFL alone needs it

  apart = hilbert_distances(points) if distance == "hilbert" else points
  metric = "precomputed" if distance == "hilbert" else "manhattan"
  if clusters is None:
    found = cluster.DBSCAN(eps=reach, min_samples=1, metric=metric).fit_predict(apart)
    if not found.any():
      raise SettingError(
        "reach", reach, f"DBSCAN puts all {len(points)} clients into one cluster",
        "Use a smaller reach, or set clusters.",
      )  # fmt: skip
    return found
  return cluster.AgglomerativeClustering(int(clusters), metric=metric, linkage="average").fit_predict(apart)


def hilbert_distances(points: np.ndarray) -> np.ndarray:
  """Computes Hilbert's metric of the simplex, log max_i(p_i/q_i) - log min_i(p_i/q_i), of all pairs, [K, K].

  Args:
    points: points inside the simplex, [K, M + 1], all coordinates > 0, as LDA's are.

  Source: Nielsen and Sun 2019, "Clustering in Hilbert's projective geometry", arXiv:1704.00454, which the
  paper names for its clustering.
  """
  logs = np.log(points)
  ratios = logs[:, None] - logs[None]
  return ratios.max(-1) - ratios.min(-1)


def topics(counts: np.ndarray, endpoints: int, seed: int) -> np.ndarray:
  """Returns each client's proportions of M + 1 LDA topics, [K, M + 1], of the best of `STARTS`·M fits."""
  return _topics(counts.tobytes(), counts.shape, endpoints, seed)


@functools.lru_cache  # cached for sweeps over later settings
def _topics(counts_: bytes, shape: tuple[int, ...], endpoints: int, seed: int) -> np.ndarray:
  from sklearn.decomposition import LatentDirichletAllocation

  counts = np.frombuffer(counts_).reshape(shape)
  starts = np.random.default_rng(seed).integers(2**32, size=STARTS * (endpoints - 1))
  fits = [LatentDirichletAllocation(endpoints, learning_method="online", random_state=start).fit(counts)
          for start in starts.tolist()]  # fmt: skip
  return min(fits, key=lambda fit: fit.perplexity(counts)).transform(counts)


def remarks_on(regions: Regions) -> list[str]:
  """Lists warnings about regions: endpoints without clients, and clusters whose regions nearly coincide."""
  points, radius = np.asarray(regions.points), float(regions.radius)
  count = points.shape[1]
  nobodys = np.flatnonzero((points < points.max(1, keepdims=True)).all(0))
  ends = ", ".join(str(m + 1) for m in nobodys)
  each = "endpoint" if len(nobodys) == 1 else "endpoints"
  said = [f"No client is nearest to {each} {ends} of {count}: try another seed, or fewer."] if ends else []
  names, first = np.unique(regions.clusters, return_index=True)
  pairs = [*itertools.combinations(range(len(names)), 2)]
  if not pairs or count == 1:
    return said
  if radius >= WIDEST:
    return [*said, f"The region of every cluster is the whole simplex: the radius is {radius:.2f}."]
  centers = np.asarray(regions.centers)[first]
  apart = [float(np.abs(centers[i] - centers[j]).sum()) for i, j in pairs]
  if near := [pair for pair, own in zip(pairs, apart) if own <= TOGETHER * radius]:
    some = ", ".join(f"{names[i]} and {names[j]}" for i, j in near[:MOST_NAMED])
    more = ", ..." if len(near) > MOST_NAMED else ""
    said.append(
      f"Regions of {len(near)} of {len(pairs)} pairs of clusters are nearly one: of {some}{more}. "
      f"The nearest centers are {min(apart):.2f} apart (L1), and the radius is {radius:.2f}: try fewer "
      "clusters, or a smaller rho."
    )
  return said


@checked
def regions_of_nothing(
  num_clients: int | None,
  *,
  endpoints: Count = 2,
  clusters: Count | None = 2,
  distance: Annotated[str, Choice(("l1", "hilbert"))] = "l1",
  reach: Positive | None = None,
  rho: Positive = 0.4,
  epsilon: Positive | None = None,
) -> Regions:
  """Returns placeholder regions for use before counts exist: one client (or K) in the middle of the simplex.

  Raises:
    SettingError: see `regions`.
  """
  check_regions(num_clients, None, endpoints, clusters, epsilon, reach)
  middle = np.full((num_clients or 1, int(endpoints)), 1.0 / endpoints, np.float32)
  return Regions(middle, rho * mean_distance(middle[0]), middle, np.zeros(len(middle), int))


def check_regions(
  num_clients: int | None, num_classes: int | None, endpoints: int, clusters: int | None,
  epsilon: float | None, reach: float | None,
) -> None:  # fmt: skip
  """Raises `SettingError` for settings of `regions` that do not go together, as far as K and C are known."""
  if num_classes is not None and endpoints > num_classes:
    raise SettingError(
      "endpoints", endpoints, f"more topics than there are classes, {num_classes}",
      f"Use at most {num_classes}.",
    )  # fmt: skip
  if num_clients is not None and clusters is not None and clusters > num_clients:
    raise SettingError(
      "clusters", clusters, f"more than there are clients, {num_clients}", f"Use at most {num_clients}."
    )
  if reach is not None and clusters is not None:
    raise SettingError("reach", reach, "is for clusters = None", "Leave it out, or leave out their number.")
  if endpoints == 1:
    problem = "with one endpoint all clients share one point: no effect"
    if clusters is None or clusters > 2:  # 2 is the default
      raise SettingError("clusters", clusters, problem, "Use 1.")
    if epsilon is not None:
      raise SettingError("epsilon", epsilon, problem, "Leave it out.")


def check_given(regions: Regions) -> None:
  """Raises `SettingError` unless regions are valid: shapes, points of a simplex, a finite radius.

  Centers must be points of a simplex, [K, M + 1], points [K, M + 1], clusters [K], and the radius finite and
  not negative. Traced values pass unchecked.
  """
  remedy = "Give fedjax_het.regions(counts, endpoints=2, clusters=2)."
  if not isinstance(regions, Regions):
    raise SettingError("regions", type(regions).__name__, "are no regions", remedy)
  if any(isinstance(own, jax.core.Tracer) for own in regions[:2]):
    return
  try:
    centers, radius = np.asarray(regions.centers, np.float64), float(np.asarray(regions.radius, np.float32))
    shapes = np.shape(np.asarray(regions.points, np.float64)), np.shape(np.asarray(regions.clusters, int))
  except Exception:  # whatever a foreign object raises
    raise SettingError("regions", regions, "are not of numbers", remedy) from None
  if not 0 <= radius < np.finfo(np.float32).max:
    raise SettingError("regions.radius", regions.radius, "is negative, or not finite", remedy)
  check_range("regions.radius", cast(float, regions.radius), 0.0)  # an int may exceed int32
  if centers.ndim != 2 or not (centers >= 0).all() or not np.allclose(centers.sum(1), 1.0, atol=1e-4):
    raise SettingError("regions.centers", centers.shape, "are not [K, M + 1] points of a simplex", remedy)
  if shapes != (centers.shape, centers.shape[:1]):
    problem = f"are not [K, M + 1] and [K] for centers of shape {centers.shape}"
    raise SettingError("regions.points, regions.clusters", shapes, problem, remedy)


@checked
def noised(counts: ArrayLike, epsilon: Positive, seed: int = 0) -> np.ndarray:
  """Adds Laplace noise of scale 1/ε to label counts and clips them at 0, [K, C].

  This is pure ε-differential privacy at example level: a client's counts change by one in one class if an
  example is added or removed. A client whose noised counts are all 0 gets 1 in every class.

  Raises:
    SettingError: ε is not above 0, or infinite.
  """
  counts = np.asarray(counts, np.float64)
  drawn = np.maximum(
    counts + np.random.default_rng(seed).laplace(scale=1.0 / epsilon, size=counts.shape), 0.0
  )
  return np.where(drawn.sum(1, keepdims=True) > 0, drawn, 1.0)


def counts_released(epsilon: float | None = None, **_: object) -> Release:
  """Returns what regions that were made with this `epsilon` tell of the clients, see `noised`."""
  return Release("label counts", epsilon, "one example of a client added or removed")
