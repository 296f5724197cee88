"""Partitions by sizes and by numbers of classes: the rule of each, against NumPy and SciPy alone."""

import jax
import numpy as np
import pytest
from scipy import stats

import fedjax_het as fh
from fedjax_het.errors import SettingError
from fedjax_het.studies.partition import counts_of

KEY = jax.random.key(3)
LABELS = np.random.default_rng(1).permutation(np.repeat(np.arange(10), 300))


def sizes_of(parts):
  return np.array([*map(len, parts)])


@pytest.mark.parametrize("alpha", [0.5, 2.0])
def test_quantities_have_the_dirichlets_marginal(alpha):
  """Of two clients, the first one's share of what is not given to all is Beta(α, α)."""
  first = [
    sizes_of(fh.data.quantity_skew(jax.random.key(seed), np.zeros(4020), 2, alpha))[0] for seed in range(300)
  ]
  shares = (np.array(first) - 10) / 4000
  assert stats.kstest(shares, stats.beta(alpha, alpha).cdf).pvalue > 0.01
  assert shares.min() >= 0.0 and shares.max() <= 1.0


def test_a_tiny_alpha_leaves_all_but_one_client_the_least_size():
  sizes = sizes_of(fh.data.quantity_skew(KEY, LABELS, 20, 1e-6, min_size=7))
  assert np.sort(sizes).tolist() == [7] * 19 + [3000 - 19 * 7]
  even = sizes_of(fh.data.quantity_skew(KEY, LABELS, 20, 1e6))
  assert abs(even - 150).max() <= 2


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.5])
def test_sizes_follow_the_power_law_to_a_row(exponent):
  sizes = sizes_of(fh.data.power_law(KEY, LABELS, 12, exponent, min_size=5))
  ranks = np.arange(1, 13) ** -float(exponent)
  assert abs(np.sort(sizes)[::-1] - (5 + (3000 - 60) * ranks / ranks.sum())).max() <= 1.0
  assert sizes.sum() == 3000
  if exponent:
    other = sizes_of(fh.data.power_law(jax.random.key(4), LABELS, 12, exponent))
    assert sizes.argsort().tolist() != other.argsort().tolist()  # a client's rank is drawn


@pytest.mark.parametrize("name", ["quantity_skew", "power_law"])
def test_sizes_alone_differ(name):
  """All classes are everywhere as often as in the whole, for labels of any kind."""
  options = {"alpha": 1.0} if name == "quantity_skew" else {"exponent": 1.0}
  counts = counts_of(fh.data.partition(KEY, name, LABELS, 6, **options), LABELS, 10)
  assert stats.chi2_contingency(counts).pvalue > 1e-3 and np.ptp(counts.sum(1)) > 100
  targets = np.random.default_rng(0).normal(size=(90, 2))
  parts = fh.data.partition(KEY, name, targets, 3, **options)
  assert sorted(np.concatenate(parts).tolist()) == [*range(90)]


@pytest.mark.parametrize(("clients", "k"), [(10, 1), (10, 2), (25, 3), (4, 3), (3, 4), (10, 10)])
def test_a_client_holds_k_classes_in_even_shares(clients, k):
  counts = counts_of(fh.data.label_quantity(KEY, LABELS, clients, k), LABELS, 10)
  assert ((counts > 0).sum(1) == k).all()
  for i in range(clients):
    assert counts[i, i % 10] > 0
  for column in counts.T:  # every class has an owner, and the owners share it evenly
    assert column.sum() == 300 and np.ptp(column[column > 0]) <= 1
  other = counts_of(fh.data.label_quantity(jax.random.key(9), LABELS, clients, k), LABELS, 10)
  assert (k in (1, 10)) == ((counts > 0) == (other > 0)).all()


def test_owners_shares_of_a_class_are_dirichlet():
  """Two clients and two classes a client, so both own both: a class's share is Beta(α, α)."""
  labels, shares = np.repeat([0, 1], 2010), []
  for seed in range(150):
    counts = counts_of(fh.data.extended_dirichlet(jax.random.key(seed), labels, 2, 0.7), labels, 2)
    shares += [(counts[0, c] - 5) / 2000 for c in range(2)]
  assert stats.kstest(shares, stats.beta(0.7, 0.7).cdf).pvalue > 0.01
  assert abs(np.corrcoef(shares[::2], shares[1::2])[0, 1]) < 0.25  # a draw for each class


@pytest.mark.parametrize(("clients", "k", "alpha"), [(10, 2, 1e-6), (30, 3, 0.5), (3, 4, 1e6)])
def test_extended_dirichlet_keeps_k_classes_and_the_least_size(clients, k, alpha):
  counts = counts_of(fh.data.extended_dirichlet(KEY, LABELS, clients, alpha, k, min_size=8), LABELS, 10)
  assert ((counts > 0).sum(1) == k).all() and counts.sum(1).min() >= 8
  assert (counts.sum(0) == 300).all() and (counts[counts > 0] >= -(-8 // k)).all()
  if alpha == 1e6:
    assert max(np.ptp(column[column > 0]) for column in counts.T) <= 3
  if alpha == 1e-6:  # a class goes to one of its owners
    assert all((column > 4).sum() == 1 for column in counts.T)


@pytest.mark.parametrize(
  ("setting", "call"),
  [
    ("alpha", lambda: fh.data.quantity_skew(KEY, LABELS, 10, 0.0)),
    ("min_size", lambda: fh.data.quantity_skew(KEY, LABELS, 301, 1.0)),
    ("min_size", lambda: fh.data.power_law(KEY, LABELS, 10, min_size=301)),
    ("exponent", lambda: fh.data.power_law(KEY, LABELS, 10, -1.0)),
    ("labels", lambda: fh.data.power_law(KEY, 3, 1)),
    ("num_clients", lambda: fh.data.power_law(KEY, LABELS, 0)),
    ("classes_per_client", lambda: fh.data.label_quantity(KEY, LABELS, 10, 11)),
    ("classes_per_client", lambda: fh.data.label_quantity(KEY, LABELS, 3, 3)),
    ("num_clients", lambda: fh.data.label_quantity(KEY, LABELS, 3000, 2)),
    ("labels", lambda: fh.data.label_quantity(KEY, LABELS + 0.5, 3)),
    ("num_clients", lambda: fh.data.extended_dirichlet(KEY, LABELS, 300, 1.0, 2, min_size=20)),
    ("alpha", lambda: fh.data.extended_dirichlet(KEY, LABELS, 10, float("nan"))),
  ],
)
def test_a_setting_that_cannot_work_is_named_with_a_remedy(setting, call):
  with pytest.raises(SettingError, match=r"Use|Give|must") as error:
    call()
  assert error.value.setting == setting
