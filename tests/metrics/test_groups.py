"""Comparisons with the best: critical values, simulated errors, and the same method under two names."""

import numpy as np
import pytest
from scipy import stats

from fedjax_het.metrics.groups import below, critical, welch, with_the_best


def by_seed(y):
  return dict(enumerate(np.asarray(y, float)))


@pytest.mark.parametrize(("m", "nu", "d"), [(2, 10, 2.15), (4, 20, 2.30), (1, 10, 1.812)])
def test_critical_values_are_those_of_dunnetts_table(m, nu, d):
  assert critical(m, nu, 0.05) == pytest.approx(d, abs=0.006)


@pytest.mark.parametrize(("m", "nu"), [(3, 8), (60, 240)])
def test_critical_values_are_those_of_simulated_maxima(m, nu):
  rng = np.random.default_rng(m)
  z, s = rng.normal(size=(50_000, m + 1)), np.sqrt(rng.chisquare(nu, 50_000) / nu)
  largest = (z[:, 1:] - z[:, :1]).max(axis=1) / (np.sqrt(2) * s)
  for alpha in (0.05, 0.2):
    assert np.mean(largest <= critical(m, nu, alpha)) == pytest.approx(1 - alpha, abs=0.005)


def test_probabilities_are_those_of_the_multivariate_t_distribution():
  shape = np.full((4, 4), 0.5) + 0.5 * np.eye(4)
  for d in (0.5, 2.0):
    other = stats.multivariate_t(shape=shape, df=12, seed=0).cdf(np.full(4, d), maxpts=50_000)
    assert below(d, 4, 12) == pytest.approx(other, abs=1e-4)
  assert below(1.3, 1, 7) == pytest.approx(stats.t.cdf(1.3, 7), abs=1e-6)


def test_welchs_test_is_that_of_scipy():
  rng = np.random.default_rng(1)
  a, b = rng.normal(0.5, 1.0, 6), rng.normal(0.0, 5.0, 9)
  wanted = stats.ttest_ind(a, b, equal_var=False, alternative="greater").pvalue
  assert welch(a, b) == pytest.approx(wanted, rel=1e-12)
  assert (welch(np.ones(3), np.zeros(3)), welch(np.ones(3), np.ones(3))) == (0.0, 1.0)


def false_exclusions(rng, stds, times, gap=0.0):
  """How often the first method, which is the best by `gap`, is not in the first group."""
  stds, wrong = np.array(stds), 0
  for _ in range(times):
    y = rng.normal(size=(1, 5)) + stds[:, None] * rng.normal(size=(len(stds), 5))
    y[0] += gap
    wrong += "m00" not in with_the_best({f"m{m:02}": by_seed(own) for m, own in enumerate(y)}).first
  return wrong / times


@pytest.mark.parametrize("stds", [[1.0] * 8, [2.9] + [1.0] * 7])
def test_the_best_method_is_rarely_excluded(stds):
  # 300 draws of a rate of 0.05 exceed 0.09 twice in a thousand times.
  assert false_exclusions(np.random.default_rng(7), stds, 300) <= 0.09


@pytest.mark.slow
@pytest.mark.parametrize(
  "stds",
  [
    [1.0] * 2, [1.0] * 8, [1.0] * 20, [0.2] + [1.0] * 15, [4.0] + [1.0] * 7, [2.9] + [1.0] * 30,
    [2.0] + [1.0] * 19, [1.0, 2.0, 2.9] * 5, [2.9, 1.0, 2.0] * 5, [1.0] * 8 + [5.0] * 8,
    [5.0] * 8 + [1.0] * 8,
  ],
  ids=lambda stds: f"{stds[0]:g} of {len(stds)}",
)  # fmt: skip
def test_the_best_method_is_excluded_in_less_than_five_of_a_hundred_draws(stds):
  assert false_exclusions(np.random.default_rng(8), stds, 2000) < 0.05


def draws(**means):
  rng = np.random.default_rng(2)
  common = rng.normal(0, 3.0, 5)  # easy and hard seeds, which all methods share
  return {name: by_seed(mean + common + rng.normal(0, 0.3, 5)) for name, mean in means.items()}


def test_one_method_under_two_names_is_in_one_group_and_a_worse_one_outside():
  found = with_the_best(draws(zoe=80.0, adam=80.0, worse=78.0, worst=60.0))
  assert found.first == ["adam", "zoe"] and found.best in found.first
  assert found.others == ["worse", "worst"] and found.pooled == ["adam", "worse", "worst", "zoe"]
  assert (found.degrees, found.seeds) == (12, 5) and 0.2 < found.margin < 1.0
  losses = {
    name: {s: -y for s, y in own.items()} for name, own in draws(zoe=80.0, adam=80.0, worse=78.0).items()
  }
  turned = with_the_best(losses, higher_is_better=False)
  assert (turned.first, turned.others) == (["adam", "zoe"], ["worse"])


def test_the_margin_is_that_of_the_residuals_of_methods_and_seeds():
  y = np.array([[3.0, 5.0, 4.0], [2.0, 4.5, 3.0], [2.5, 4.0, 4.5]])
  found = with_the_best({f"m{i}": by_seed(own) for i, own in enumerate(y)})
  square = sum(
    (y[m, s] - np.mean(y[m]) - np.mean(y[:, s]) + np.mean(y)) ** 2 for m in range(3) for s in range(3)
  )
  assert found.margin == pytest.approx(critical(2, 4, 0.02) * np.sqrt(square / 4 * 2 / 3))


def test_methods_of_other_spreads_are_compared_by_welchs_test():
  rng = np.random.default_rng(5)
  wide = {"wide": by_seed(70 + 20 * rng.normal(size=5)), "low": by_seed(20 + 20 * rng.normal(size=5))}
  found = with_the_best(
    draws(one=80.0, two=79.9)
    | {k: by_seed([v[s] for s in range(5)]) for k, v in wide.items()}
    | {"steady": by_seed([75.0, 75.01, 75.02, 75.01, 75.0])}
  )
  assert found.pooled == ["one", "two"]
  assert "wide" in found.first and "low" in found.others
  alone = with_the_best({"a": by_seed([1.0, 2.0, 3.0]), "b": by_seed([0.0, 0.0, 0.0])})
  assert (alone.margin, alone.pooled, alone.degrees) == (None, ["a"], 0)
  # Holm: of three comparisons, each of which has p = 0.02 alone, none is significant.
  assert welch(np.array([0.0, 1.0, 2.0]), np.zeros(3)) > 0.05 / 3


def test_what_is_refused():
  with pytest.raises(ValueError, match="two seeds or more"):
    with_the_best({"a": {0: 1.0}})
  with pytest.raises(ValueError, match="which all of them have"):
    with_the_best({"a": {0: 1.0, 1: 2.0}, "b": {0: 1.0, 2: 2.0}})
  with pytest.raises(ValueError, match="two seeds"):
    with_the_best({})
