"""Points of the simplex: uniform on a region against rejection, mean distances, regions of label counts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import fedjax_het as fh
from fedjax_het.clients.regions import noised, regions
from fedjax_het.clients.simplex import mean_distance, uniform_on_region, uniform_on_simplex
from fedjax_het.errors import SettingError

CENTERS = {
  "inside": ([0.5, 0.3, 0.2], 0.5), "edge": ([0.7, 0.3, 0.0, 0.0], 0.6), "corner": ([1.0, 0.0, 0.0], 0.3),
  "flat": ([0.02, 0.03, 0.05, 0.9], 0.4), "many": ([0.05] * 20, 0.6), "whole": ([0.2] * 5, 2.0),
}  # fmt: skip


def by_rejection(rng, center, radius, count):
  """Uniform on the region: sums of exponentials that miss it are thrown away.

  Δ^M is drawn whole where the region fills enough of it, else scaled down around a corner that holds it.
  """
  mu, kept = np.asarray(center), []
  floor = np.maximum(mu - radius / 2, 0.0)  # no coordinate of the region is below
  while sum(map(len, kept)) < count:
    draws = floor + (1 - floor.sum()) * rng.dirichlet(np.ones(len(mu)), 200_000)
    kept.append(draws[np.abs(draws - mu).sum(1) <= radius])
  return np.concatenate(kept)[:count]


QUICK = "inside", "corner"


@pytest.mark.slow
@pytest.mark.parametrize(
  "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CENTERS]
)
def test_uniform_on_a_region(name):
  center, radius = CENTERS[name]
  count, rng = 20_000, np.random.default_rng(0)
  draw = jax.jit(jax.vmap(lambda key: uniform_on_region(key, jnp.array(center), radius)))
  x = np.asarray(draw(jax.random.split(jax.random.key(1), count)), np.float64)
  assert (x >= 0).all() and np.abs(x.sum(1) - 1).max() < 3e-7
  assert (np.abs(x - center).sum(1) <= radius + 1e-5).all()
  other = by_rejection(rng, center, radius, count)
  assert np.abs(x.mean(0) - other.mean(0)).max() < 5 * other.std(0).max() / np.sqrt(count / 2)
  own, theirs = np.cov(x.T), np.cov(other.T)
  each = np.sqrt(np.diag(theirs))  # a small coordinate counts as much as a large one
  assert np.abs((own - theirs) / np.multiply.outer(each, each)).max() < 0.06
  ways = [np.eye(len(center))[0], np.eye(len(center))[-1], *rng.normal(size=(3, len(center)))]
  values = [(x @ way, other @ way) for way in ways]
  values.append((np.abs(x - center).sum(1), np.abs(other - center).sum(1)))
  assert min(stats.ks_2samp(*pair).pvalue for pair in values) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(("center", "radius", "low", "high"), [(0.8, 0.3, 0.65, 0.95), (0.9, 0.6, 0.6, 1.0)])
def test_a_segment_is_exact(center, radius, low, high):
  keys = jax.random.split(jax.random.key(0), 5000)
  mu = jnp.array([center, 1 - center])
  x = np.asarray(jax.vmap(lambda key: uniform_on_region(key, mu, radius))(keys))[:, 0]
  assert stats.kstest(x, "uniform", (low, high - low)).pvalue > 1e-3


@pytest.mark.slow
def test_few_moves_would_be_noticed():
  """What the walk is for: its beginning alone is not uniform."""
  center, radius = CENTERS["many"]
  keys = jax.random.split(jax.random.key(1), 5000)
  x = jax.vmap(lambda key: uniform_on_region(key, jnp.array(center), radius, sweeps=0))(keys)
  other = by_rejection(np.random.default_rng(0), center, radius, 5000)
  far = [np.abs(np.asarray(own) - center).sum(1) for own in (x, other)]
  assert stats.ks_2samp(*far).pvalue < 1e-6


@pytest.mark.parametrize("center", [[0.5, 0.3, 0.2], [1.0, 0.0], [0.1] * 10, [1.0]])
def test_mean_distance_from_a_center(center):
  x = np.random.default_rng(0).dirichlet(np.ones(len(center)), 200_000)
  assert mean_distance(center) == pytest.approx(np.abs(x - center).sum(1).mean(), abs=3e-3)


def folds(groups=2, clients=12, classes=4, of=80):
  """Counts of clients whose groups have primary classes."""
  rng = np.random.default_rng(0)
  group = np.arange(clients) % groups
  shares = np.where(np.arange(classes)[None] * groups // classes == group[:, None], of, 100 - of)
  return np.array([rng.multinomial(200, own / own.sum()) for own in shares]), group


def test_regions_of_folds():
  counts, group = folds()
  found = fh.regions(counts, endpoints=2, clusters=2, rho=0.6)
  assert found.centers.shape == (12, 2) and found.centers.dtype == np.float32
  assert len({(g, z) for g, z in zip(group, found.clusters)}) == 2  # a cluster a group
  for g in range(2):
    own = found.points[group == g].mean(0)
    np.testing.assert_allclose(found.centers[group == g], np.tile(own, (6, 1)), rtol=1e-5)
  means = [found.centers[group == g][0] for g in range(2)]
  assert found.radius == pytest.approx(0.6 * np.mean([mean_distance(mean) for mean in means]), rel=1e-5)
  assert np.abs(means[0] - means[1]).sum() > 1  # apart


def test_regions_of_one_endpoint_and_one_cluster():
  counts, _ = folds()
  for clusters in ({"clusters": 1}, {}):
    assert (fh.regions(counts, endpoints=1, **clusters).centers == 1).all()
  one = fh.regions(counts, endpoints=3, clusters=1)
  np.testing.assert_allclose(one.centers, np.tile(one.points.mean(0), (12, 1)), rtol=1e-5)


@pytest.mark.parametrize(
  ("changed", "named"),
  [(dict(endpoints=0), "endpoints"), (dict(endpoints=1, clusters=3), "clusters = 3: with one endpoint"),
   (dict(endpoints=1, clusters=1, epsilon=1.0), "epsilon = 1.0: with one endpoint"),
   (dict(clusters=13), "clusters"), (dict(rho=0.0), "rho"),
   (dict(counts=np.zeros((3, 2))), "counts"), (dict(counts=-np.ones((3, 2))), "counts")],
)  # fmt: skip
def test_what_makes_no_regions(changed, named):
  settings = dict(counts=folds()[0]) | changed
  with pytest.raises(SettingError, match=named):
    fh.regions(**settings)


def test_noised_counts():
  counts = np.full((400, 5), 1000)
  noise = noised(counts, epsilon=0.5, seed=1) - counts
  assert stats.kstest(noise.ravel(), "laplace", (0, 2.0)).pvalue > 1e-3
  assert (noised(np.zeros((50, 3)), 1.0) >= 0).all() and (noised(np.zeros((50, 3)), 1.0).sum(1) > 0).all()
  for epsilon in (0.0, np.inf):
    with pytest.raises(SettingError, match="epsilon"):
      noised(counts, epsilon)


def test_uniform_on_the_simplex():
  x = np.asarray(
    jax.vmap(lambda key: uniform_on_simplex(key, 4))(jax.random.split(jax.random.key(0), 20_000))
  )
  assert np.allclose(x.sum(1), 1, atol=1e-6)
  assert stats.kstest(x[:, 0], "beta", (1, 3)).pvalue > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("radius", [0.05, 0.3])
def test_a_face_of_many_coordinates(radius):
  """Where two of twenty coordinates are large: how often one of them grows, and its variance, are known.

  With s the sum of the others, of density s^17 (η - s) on [0, η/2], and x1 = 1/2 - a, x2 = 1/2 - (s - a), a
  is uniform on an interval of length η - s around s/2.
  """
  count, center = 20_000, jnp.zeros(20).at[:2].set(0.5)
  keys = jax.random.split(jax.random.key(0), count)
  points = np.asarray(jax.jit(jax.vmap(lambda key: uniform_on_region(key, center, radius)))(keys), np.float64)
  s = np.linspace(0.0, radius / 2, 100_001)
  density = s**17 * (radius - s)
  grows = ((radius - 2 * s) / (radius - s) * density).sum() / density.sum()
  mean = (s / 2 * density).sum() / density.sum()
  square = ((s**2 / 4 + (radius - s) ** 2 / 12) * density).sum() / density.sum()
  assert np.mean((points[:, :2] > 0.5).any(1)) == pytest.approx(grows, abs=0.015)
  np.testing.assert_allclose(0.5 - points[:, :2].mean(0), mean, rtol=0.03)
  np.testing.assert_allclose(points[:, :2].var(0), square - mean**2, rtol=0.1)


@pytest.mark.parametrize("counts", ["three", [[1, 2], [3]], [[1.0, np.inf]], [[1.0, np.nan]]])
def test_counts_that_are_none(counts):
  with pytest.raises(SettingError, match="counts"):
    regions(counts)
