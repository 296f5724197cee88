"""How points of the simplex become regions, a rule a test."""

import numpy as np
import pytest

from fedjax_het.clients import regions as rules
from fedjax_het.clients.simplex import mean_distance
from fedjax_het.errors import SettingError

POINTS = np.array([[0.4, 0.4, 0.2], [0.6, 0.2, 0.2], [0.18, 0.51, 0.31], [0.6, 0.2, 0.2]])
COUNTS = np.array([[30, 5, 1], [40, 2, 8], [9, 9, 9], [25, 25, 0]])


@pytest.fixture
def given(monkeypatch):
  """What topics are made of, where `POINTS` are what they come to."""
  seen = []

  def topics(counts, endpoints, seed):
    seen.append(counts)
    return POINTS

  monkeypatch.setattr(rules, "topics", topics)
  return seen


def test_clusters_go_by_the_distance_of_l1(given):
  """By which the first is nearer to the second (0.4, 0.44); the other way round by L2 (0.28, 0.27)."""
  z = rules.regions(COUNTS, endpoints=3, clusters=2).clusters
  assert z[0] == z[1] == z[3] != z[2]


def test_hilberts_distance_is_the_logarithm_of_a_cross_ratio():
  """On the line through p and q, which leaves the simplex at a and b: log(|aq|·|pb| / (|ap|·|qb|))."""
  rng = np.random.default_rng(0)
  points = rng.dirichlet(np.ones(4), 6)
  found = rules.hilbert_distances(points)
  for i, p in enumerate(points):
    for j, q in enumerate(points):
      if i == j:
        assert found[i, j] == 0
        continue
      with np.errstate(divide="ignore"):
        t = -p / (q - p)  # where a coordinate of p + t·(q - p) is 0
      before, behind = t[t < 0].max(), t[t > 1].min()
      expected = np.log((1 - before) * behind / (-before * (behind - 1)))
      assert found[i, j] == pytest.approx(expected, rel=1e-9)


def test_clusters_by_hilberts_distance_differ_from_those_by_l1(monkeypatch):
  """Near a face a small step is far: (0.01, 0.495, 0.495) and (0.1, 0.45, 0.45) are 0.18 apart by L1."""
  points = np.array([[0.01, 0.495, 0.495], [0.1, 0.45, 0.45], [0.3, 0.4, 0.3], [0.3, 0.3, 0.4]])
  monkeypatch.setattr(rules, "topics", lambda *_: points)
  by_l1 = rules.regions(COUNTS, endpoints=3, clusters=2).clusters
  by_hilbert = rules.regions(COUNTS, endpoints=3, clusters=2, distance="hilbert").clusters
  assert by_l1[0] == by_l1[1] != by_l1[2] == by_l1[3]
  assert by_hilbert[0] != by_hilbert[1] == by_hilbert[2] == by_hilbert[3]


@pytest.mark.parametrize("distance", ["l1", "hilbert"])
def test_the_number_of_folds_is_found(distance):
  counts = np.kron(np.eye(5, dtype=int), np.full((4, 2), 40)) + 5
  found = rules.regions(counts, endpoints=5, clusters=None, distance=distance)
  assert np.bincount(found.clusters).tolist() == [4] * 5
  for fold in found.clusters.reshape(5, 4):
    assert len({*fold.tolist()}) == 1


def test_what_is_found_goes_by_the_reach(given):
  """The four points are 0.4, 0.44 and 0.84 apart by L1; the second and the fourth are the same."""
  assert len({*rules.regions(COUNTS, endpoints=3, clusters=None, reach=0.39).clusters.tolist()}) == 3
  assert len({*rules.regions(COUNTS, endpoints=3, clusters=None, reach=0.41).clusters.tolist()}) == 2
  with pytest.raises(SettingError, match=r"^reach = 1\.0: DBSCAN puts all 4 clients into one cluster"):
    rules.regions(COUNTS, endpoints=3, clusters=None, reach=1.0)
  with pytest.raises(SettingError, match=r"^reach = 0\.1: is for clusters = None"):
    rules.regions(COUNTS, endpoints=3, clusters=2, reach=0.1)


def test_the_radius_is_a_mean_over_clusters_and_a_center_one_over_clients(given):
  found = rules.regions(COUNTS, endpoints=3, clusters=2, rho=0.5)
  many, one = POINTS[[0, 1, 3]].mean(0), POINTS[2]
  np.testing.assert_allclose(found.centers, [many, many, one, many], rtol=1e-6)
  assert found.radius == pytest.approx(0.5 * (mean_distance(many) + mean_distance(one)) / 2)


def test_noise_is_on_the_counts_that_topics_are_made_of(given):
  for epsilon in (None, 0.1):
    rules.regions(COUNTS, endpoints=3, clusters=2, epsilon=epsilon, seed=3)
  np.testing.assert_array_equal(given[0], COUNTS)
  np.testing.assert_array_equal(given[1], rules.noised(COUNTS, 0.1, 3))
  assert np.abs(given[1] - COUNTS).max() > 1


@pytest.mark.parametrize("seed", [3, 10])
def test_five_folds_have_an_endpoint_each_where_eight_starts_merge_two(seed):
  rng = np.random.default_rng(0)
  shares = np.kron(np.eye(5), np.full((2, 2), 0.375)) + 0.025
  counts = np.stack([rng.multinomial(100, own) for own in shares])
  found = rules.regions(counts, endpoints=5, clusters=5, seed=seed)
  assert np.bincount(found.points.argmax(1)).tolist() == [2] * 5
  assert len(set(found.clusters[::2])) == 5 and (found.clusters[::2] == found.clusters[1::2]).all()
  assert rules.remarks_on(found) == []


def test_an_endpoint_without_clients_and_regions_that_are_nearly_one_are_said():
  points = np.array([[0.8, 0.1, 0.1], [0.7, 0.2, 0.1], [0.1, 0.1, 0.8], [0.15, 0.05, 0.8]])
  own = rules.Regions(points, 0.5, points, np.array([0, 1, 4, 3]))
  empty, near = rules.remarks_on(own)
  assert empty == "No client is nearest to endpoint 2 of 3: try another seed, or fewer."
  assert near == (
    "Regions of 1 of 6 pairs of clusters are nearly one: of 3 and 4. "
    "The nearest centers are 0.10 apart (L1), and the radius is 0.50: try fewer clusters, or a smaller rho."
  )
  assert rules.remarks_on(own._replace(radius=0.39)) == [empty]
  assert rules.remarks_on(own._replace(clusters=np.array([0, 1, 2, 2]))) == [empty]
  same = np.repeat(points[:1], 4, 0)
  (near,) = rules.remarks_on(own._replace(centers=same, radius=0.0, points=np.full((4, 3), 1 / 3)))
  assert "of 6 of 6 pairs" in near and "of 0 and 1, 0 and 3, 0 and 4, ...." in near
  empty, whole = rules.remarks_on(own._replace(radius=2.0))
  assert whole == "The region of every cluster is the whole simplex: the radius is 2.00."
  alone = own._replace(centers=np.ones((4, 1)), points=np.ones((4, 1)))
  assert rules.remarks_on(own._replace(radius=2.0, clusters=np.zeros(4, int))) == [empty]
  assert rules.remarks_on(alone) == []


def test_topics_of_the_same_counts_are_made_once(monkeypatch):
  from sklearn import decomposition

  made, real = [], decomposition.LatentDirichletAllocation
  monkeypatch.setattr(
    decomposition, "LatentDirichletAllocation", lambda *a, **k: made.append(k) or real(*a, **k)
  )
  for seed, rho in ((7, 0.3), (7, 0.5), (8, 0.5)):
    rules.regions(COUNTS + 1, endpoints=3, rho=rho, seed=seed)
  assert len(made) == 2 * 8 * 2


def test_shares_are_no_counts():
  with pytest.raises(SettingError, match="are shares of 1"):
    rules.regions(COUNTS / COUNTS.sum(1, keepdims=True), endpoints=3)
  rules.regions([[1, 0], [0, 2]], endpoints=2)  # one example
  with pytest.raises(SettingError, match="vanishes in float32"):
    rules.regions(COUNTS, endpoints=3, epsilon=1e-320)


@pytest.mark.parametrize(
  ("changed", "message"),
  [
    ({"centers": np.ones(3)}, r"regions\.centers = \(3,\): are not"),
    ({"centers": np.full((2, 2), 1.0)}, r"regions\.centers = \(2, 2\): are not"),
    ({"centers": np.array([[1.5, -0.5]])}, r"regions\.centers"),
    ({"centers": np.full((1, 2), np.nan)}, r"regions\.centers"),
    ({"centers": "a"}, "are not of numbers"),
    ({"points": None}, r"regions\.points, regions\.clusters = \(\(\), \(1,\)\): are not \[K, M \+ 1\] and"),
    ({"clusters": np.zeros(2, int)}, r"= \(\(1, 2\), \(2,\)\): are not"),
    ({"radius": -0.3}, r"regions\.radius = -0\.3: is negative"),
    ({"radius": np.inf}, r"regions\.radius = inf: is negative, or not finite"),
  ],
)
def test_regions_of_ones_own_are_checked(changed, message):
  own = rules.Regions(np.full((1, 2), 0.5), 0.1, np.full((1, 2), 0.5), np.zeros(1, int))
  rules.check_given(own)
  with pytest.raises(SettingError, match=message):
    rules.check_given(own._replace(**changed))
