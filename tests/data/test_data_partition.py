"""Partitions: every row once, deterministic by key, and each with the heterogeneity it promises."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from scipy import stats

from fedjax_het import data as P
from fedjax_het.errors import SettingError
from fedjax_het.studies import partition as partition_study
from fedjax_het.studies.partition import counts_of, plot_partition

KEY = jax.random.key(0)
LABELS = np.repeat(np.arange(10), 60)  # 600 rows, sorted: classes can be read off row numbers
properties = settings(max_examples=40, deadline=None, derandomize=True)
seeds = st.integers(0, 2**31 - 1)


@st.composite
def calls(draw):
  """A partitioner's name, labels in any order, a client count and options it can meet."""
  name = draw(st.sampled_from([*P.PARTITIONERS]))
  num_classes = draw(st.integers(2, 6))
  rng = np.random.default_rng(draw(seeds))
  labels = np.concatenate([np.arange(num_classes), rng.integers(0, num_classes, draw(st.integers(60, 200)))])
  labels = rng.permutation(labels).astype(draw(st.sampled_from([np.uint8, np.int32, np.int64])))
  clients = draw(st.integers(1, 12))
  options = {}
  if name == "pathological":
    options = {
      "shards_per_client": draw(st.integers(1, 4)),
      "deal": draw(st.sampled_from(["random", "round_robin"])),
    }
  if name == "dirichlet":
    options = {"alpha": draw(st.sampled_from([1e-6, 0.01, 0.5, 100.0])), "balance": True, "min_size": 4}
  if name == "client_dirichlet":
    options = {"alpha": draw(st.sampled_from([1e-6, 0.01, 0.5, 1e6]))}
  if name == "primary_class":
    folds = draw(st.integers(2, num_classes))
    clients *= folds
    options = {"num_folds": folds, "fraction": draw(st.sampled_from([0.0, 0.3, 0.8, 1.0]))}
    clients = min(clients, len(labels) // folds * folds)
  if name in ("quantity_skew", "power_law"):
    options = {"min_size": draw(st.integers(1, 4))}
  if name == "quantity_skew":
    options["alpha"] = draw(st.sampled_from([1e-6, 0.5, 1e6]))
  if name in ("label_quantity", "extended_dirichlet"):
    least = -(-num_classes // clients)
    options = {"classes_per_client": draw(st.integers(least, num_classes))}
    labels = np.concatenate([labels, np.tile(np.arange(num_classes, dtype=labels.dtype), 12)])
  if name == "extended_dirichlet":
    options |= {"alpha": draw(st.sampled_from([1e-6, 0.5, 1e6])), "min_size": options["classes_per_client"]}
  if name == "natural":
    groups = rng.permutation(
      np.concatenate([np.arange(clients), rng.integers(0, clients, len(labels) - clients)])
    )
    options = {"groups": groups}
  return name, labels, clients, options


@properties
@given(calls(), seeds)
def test_every_row_goes_to_exactly_one_client_and_the_key_decides(call, seed):
  name, labels, clients, options = call
  parts = P.partition(jax.random.key(seed), name, labels, clients, **options)
  again = P.partition(jax.random.key(seed), name, labels, clients, **options)
  assert len(parts) == clients
  assert all(np.issubdtype(rows.dtype, np.integer) for rows in parts)
  np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))
  for rows, same in zip(parts, again, strict=True):
    np.testing.assert_array_equal(rows, same)


@pytest.mark.parametrize(
  ("name", "options"),
  [
    ("iid", {}),
    ("pathological", {}),
    ("dirichlet", {"alpha": 0.5}),
    ("dirichlet", {"alpha": 0.5, "balance": True}),
    ("client_dirichlet", {"alpha": 0.5}),
    ("primary_class", {"num_folds": 5}),
    ("quantity_skew", {"alpha": 0.5}),
    ("power_law", {}),
    ("label_quantity", {}),
    ("extended_dirichlet", {"alpha": 0.5}),
  ],
)
def test_another_key_gives_another_partition(name, options):
  one, other = (P.partition(jax.random.key(seed), name, LABELS, 10, **options) for seed in (0, 1))
  assert any(len(a) != len(b) or (np.sort(a) != np.sort(b)).any() for a, b in zip(one, other, strict=True))


@properties
@given(seeds, st.integers(1, 13))
def test_iid_clients_are_equally_large(seed, clients):
  sizes = [len(rows) for rows in P.iid(jax.random.key(seed), LABELS, clients)]
  assert max(sizes) - min(sizes) <= 1


@properties
@given(seeds, st.sampled_from([5, 10, 20, 50, 100]))
def test_pathological_clients_hold_at_most_two_classes(seed, clients):
  """Shards of 3, 6, 15, 30, 60 rows divide the 60 of a class: none lies across a border."""
  rng = np.random.default_rng(seed)
  labels = rng.permutation(LABELS)
  counts = counts_of(P.pathological(jax.random.key(seed), labels, clients), labels, 10)
  assert ((counts > 0).sum(1) <= 2).all()
  assert (counts.sum(1) == 600 // clients).all()


def test_pathological_random_differs_from_round_robin_which_gives_c_and_c_plus_5():
  labels = np.random.default_rng(0).permutation(LABELS)
  parts = P.pathological(KEY, labels, 20, deal="round_robin")
  held = [sorted(set(labels[rows].tolist())) for rows in parts]
  assert held == [[i // 4, i // 4 + 5] for i in range(20)]
  # a shard is the class's next rows in file order
  np.testing.assert_array_equal(parts[0][:15], np.flatnonzero(labels == 0)[:15])
  pairs = {tuple(np.unique(labels[rows])) for rows in P.pathological(KEY, labels, 20)}
  assert len(pairs) > 5


@properties
@given(seeds, st.sampled_from([0.3, 1.0, 10.0]), st.integers(1, 20))
def test_dirichlet_clients_hold_the_minimum(seed, alpha, min_size):
  parts = P.dirichlet(jax.random.key(seed), LABELS, 10, alpha, min_size=min_size)
  assert min(map(len, parts)) >= min_size
  np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(600))


@properties
@given(seeds, st.sampled_from([1e-6, 0.1, 1e6]), st.integers(1, 41))
def test_client_dirichlet_clients_are_equally_large(seed, alpha, clients):
  sizes = [len(rows) for rows in P.client_dirichlet(jax.random.key(seed), LABELS, clients, alpha)]
  assert max(sizes) - min(sizes) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.5, 5.0, 1e6])
def test_client_dirichlet_draws_each_clients_own_distribution(alpha):
  """Of n rows drawn by q ~ Dir(α 1_C), E Σ_c (n_c/n)² = 1/n + (1 - 1/n)(α + 1)/(Cα + 1)."""
  labels, found = np.repeat(np.arange(10), 3000), []
  for seed in range(60):
    counts = counts_of(P.client_dirichlet(jax.random.key(seed), labels, 300, alpha), labels, 10)
    assert (counts.sum(0) == 3000).all()
    found.append(((counts / 100) ** 2).sum(1).mean())
  expected = 0.01 + 0.99 * (alpha + 1) / (10 * alpha + 1)
  assert np.mean(found) == pytest.approx(expected, rel=0.06)


def test_client_dirichlet_with_a_small_alpha_gives_nearly_every_client_one_class():
  counts = counts_of(P.client_dirichlet(KEY, LABELS, 60, 1e-6), LABELS, 10)
  assert ((counts > 0).sum(1) == 1).mean() > 0.8
  order = counts_of(P.client_dirichlet(jax.random.key(1), LABELS, 60, 1e-6), LABELS, 10).argmax(1)
  assert len({*order.tolist()}) == 10


def test_the_minimum_is_met_to_the_row():
  """A minimum of 90 rows, where the mean is 120, is met narrowly often enough to see one row too few."""
  smallest = [
    min(map(len, P.dirichlet(jax.random.key(seed), LABELS, 5, 1.0, min_size=90))) for seed in range(150)
  ]
  assert min(smallest) == 90


@pytest.mark.parametrize("alpha", [0.4, 2.0])
def test_dirichlet_shares_have_the_dirichlets_marginal(alpha):
  """A coordinate of Dir(α 1_2) is Beta(α, α); two clients, so the minimum never binds."""
  labels = np.repeat(np.arange(20), 2000)
  shares = [
    counts_of(P.dirichlet(jax.random.key(seed), labels, 2, alpha, min_size=1), labels, 20)[0] / 2000
    for seed in range(20)
  ]
  assert stats.kstest(np.concatenate(shares), stats.beta(alpha, alpha).cdf).pvalue > 0.01


def test_dirichlet_shares_classes_independently_and_alpha_orders_heterogeneity():
  def spread(alpha):
    counts = counts_of(P.dirichlet(KEY, LABELS, 5, alpha, min_size=1), LABELS, 10)
    return (counts / 60).std(axis=1).mean()

  assert spread(0.1) > 2 * spread(1.0) > 4 * spread(100.0)


def test_dirichlet_rounds_in_no_clients_favour():
  """Of 100 classes, each shared by 40 clients, the first and the last hold N/K rows on average."""
  labels = np.repeat(np.arange(100), 50)
  sizes = np.array(
    [[len(rows) for rows in P.dirichlet(jax.random.key(seed), labels, 40, 1.0)] for seed in range(60)]
  )
  for own in (sizes[:, 0], sizes[:, -1]):
    assert abs(own.mean() - 125) < 4 * own.std() / np.sqrt(len(own)) < 8


@pytest.mark.parametrize("alpha", [10.0, 1e6])
def test_classes_of_fewer_rows_than_clients_can_be_dealt(alpha):
  labels = np.repeat(np.arange(200), 60)
  assert min(map(len, P.dirichlet(KEY, labels, 200, alpha))) >= 10


@pytest.mark.parametrize("clients", [100, 1000])
def test_balanced_dirichlet_meets_what_retrying_cannot(clients):
  labels = np.repeat(np.arange(10), 2000)
  with pytest.raises(SettingError, match=rf"0\.01.*num_clients = {clients}.*min_size = 10.*balance=True"):
    P.dirichlet(KEY, labels, clients, 0.01, max_tries=30)
  counts = counts_of(P.dirichlet(KEY, labels, clients, 0.01, balance=True), labels, 10)
  assert (counts.sum(1) == 20000 // clients).all()
  assert np.median((counts > 0).sum(1)) <= 2
  np.testing.assert_array_equal(counts.sum(0), 2000)


def test_balanced_dirichlet_is_the_plain_one_where_nobody_is_full():
  """One class, so large α that shares are equal: 600 rows over 6 clients are 100 each, by either way."""
  labels = np.zeros(600, np.int64)
  for balance in (False, True):
    sizes = [len(rows) for rows in P.dirichlet(KEY, labels, 6, 1e6, balance=balance)]
    assert max(abs(np.array(sizes) - 100)) <= 2


@pytest.mark.parametrize("folds", [2, 5])
@pytest.mark.parametrize("fraction", [0.5, 0.8, 1.0])
def test_primary_classes_get_their_fraction(folds, fraction):
  clients = 20
  counts = counts_of(P.primary_class(KEY, LABELS, clients, folds, fraction), LABELS, 10)
  assert (counts.sum(1) == 30).all()
  for i, row in enumerate(counts):
    group, width = i // (clients // folds), 10 // folds
    assert abs(row[group * width : (group + 1) * width].sum() - fraction * 30) <= 1
  for group in np.split(counts, folds):  # "the exact same label distributions", to one row
    assert np.ptp(group, axis=0).max() <= 1


def test_natural_follows_the_groups():
  parts = P.natural(np.array(["b", "a", "b", "c", "a"]))
  assert [rows.tolist() for rows in parts] == [[1, 4], [0, 2], [3]]


@pytest.mark.parametrize(
  ("groups", "says"),
  [
    (np.ma.array([3, 1, 3], mask=[0, 1, 0]), "groups = masked: row 1 is of no group; 1 of 3 rows"),
    (np.array([1.0, 2.0, np.nan, np.nan]), "groups = .*nan.*: row 2 is of no group; 2 of 4 rows"),
    (["a", float("nan")], "groups = nan: row 1"),
    (np.array(["a", float("nan")], object), "groups = nan: row 1"),
    (np.array(["a", None], object), "groups = None: row 1 is of no group"),
    (["a", 1], "groups = 'int and str'"),
    ([None, None], "groups = None: row 0 is of no group; 2 of 2 rows are of none: 0, 1"),
  ],
)
def test_rows_of_no_group_are_refused(groups, says):
  with pytest.raises(SettingError, match=says):
    P.natural(groups)


def test_groups_may_come_in_a_list_or_masked_nowhere():
  wanted = [[1, 4], [0, 2], [3]]
  for groups in (list("babca"), [10, 9, 10, 11, 9], np.ma.array([2, 1, 2, 3, 1], mask=False)):
    assert [rows.tolist() for rows in P.natural(groups)] == wanted


@pytest.mark.parametrize(
  ("setting", "call"),
  [
    ("num_clients", lambda: P.iid(KEY, LABELS, 0)),
    ("num_clients", lambda: P.iid(KEY, LABELS, 601)),
    ("num_clients", lambda: P.iid(KEY, LABELS, 2.5)),
    ("num_clients", lambda: P.dirichlet(KEY, LABELS, -1, 1.0)),
    ("num_clients", lambda: P.primary_class(KEY, LABELS, 7, 2)),
    ("num_clients", lambda: P.partition(KEY, "natural", LABELS, 3, groups=LABELS)),
    ("labels", lambda: P.pathological(KEY, np.zeros((3, 2), int), 1)),
    ("labels", lambda: P.pathological(KEY, np.zeros(3), 1)),
    ("labels", lambda: P.primary_class(KEY, np.zeros(9, int), 2, 2)),
    ("groups", lambda: P.natural(np.zeros((3, 2)))),
    ("shards_per_client", lambda: P.pathological(KEY, LABELS, 100, 7)),
    ("shards_per_client", lambda: P.pathological(KEY, LABELS, 10, 0)),
    ("deal", lambda: P.pathological(KEY, LABELS, 10, deal="randm")),
    ("alpha", lambda: P.dirichlet(KEY, LABELS, 10, 0.0)),
    ("alpha", lambda: P.dirichlet(KEY, LABELS, 10, -1.0)),
    ("alpha", lambda: P.dirichlet(KEY, LABELS, 10, float("nan"))),
    ("alpha", lambda: P.dirichlet(KEY, LABELS, 10, float("inf"))),
    ("num_clients", lambda: P.dirichlet(KEY, LABELS, 100, 1.0)),
    ("max_tries", lambda: P.dirichlet(KEY, LABELS, 10, 1.0, max_tries=0)),
    ("max_tries", lambda: P.dirichlet(KEY, LABELS, 10, 1.0, max_tries=9, balance=True)),
    ("fraction", lambda: P.primary_class(KEY, LABELS, 10, 2, 1.1)),
    ("num_folds", lambda: P.primary_class(KEY, LABELS, 11, 11)),
    ("num_folds", lambda: P.primary_class(KEY, LABELS, 10, 1)),
    ("partition", lambda: P.partition(KEY, "dirichle", LABELS, 10)),
    ("option of partition 'dirichlet'", lambda: P.partition(KEY, "dirichlet", LABELS, 10, alhpa=1.0)),
    ("option of partition 'iid'", lambda: P.partition(KEY, "iid", LABELS, 10, alpha=1.0)),
    ("alpha", lambda: P.partition(KEY, "dirichlet", LABELS, 10)),
  ],
)
def test_a_setting_that_cannot_work_is_named(setting, call):
  with pytest.raises(SettingError) as error:
    call()
  assert error.value.setting == setting


def test_a_misspelt_name_or_option_hears_the_nearest():
  with pytest.raises(SettingError, match="Did you mean 'dirichlet'"):
    P.partition(KEY, "dirichle", LABELS, 10)
  with pytest.raises(SettingError, match="Did you mean 'alpha'"):
    P.partition(KEY, "dirichlet", LABELS, 10, alhpa=1.0)


@pytest.mark.parametrize(("clients", "num_classes"), [(1, 1), (4, 10), (41, 10), (300, 30)])
def test_a_partition_can_be_drawn(tmp_path, clients, num_classes):
  labels = np.arange(600) % num_classes
  parts = P.iid(KEY, labels, clients)
  assert counts_of(parts, labels, num_classes).sum() == 600
  path = tmp_path / "partition.png"
  plot_partition(parts, labels, path, num_classes, title="iid")
  assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("clients", [5, 50])
def test_sizes_alone_can_be_drawn(tmp_path, clients):
  plot_partition(P.iid(KEY, LABELS, clients), None, tmp_path / "partition.png", 10_000)
  assert (tmp_path / "partition.png").read_bytes().startswith(b"\x89PNG")


def test_a_few_clients_of_one_class_darken_no_others():
  counts = np.full((100, 50), 2)
  counts[:, 7] = 25  # a fifth of 123
  counts[:3] = np.eye(50, dtype=int)[:3]
  figure = Figure()
  partition_study._heat_map(figure, counts)
  (image,) = figure.axes[1].images
  assert image.norm.vmax == pytest.approx(25 / 123) and image.get_array().max() == 1.0
  even = np.full((100, 50), 2)
  partition_study._heat_map(figure := Figure(), even)
  assert figure.axes[1].images[0].norm.vmax == pytest.approx(4 / 50)  # even shares are a quarter of that


def test_iid_counts_rows_whatever_their_labels_are():
  for labels in (np.zeros((9, 2)), np.linspace(0, 1, 9)):
    np.testing.assert_array_equal(
      np.concatenate(P.iid(KEY, labels, 2)), np.concatenate(P.iid(KEY, LABELS[:9], 2))
    )
