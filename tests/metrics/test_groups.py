"""Comparisons with the best: critical values, simulated errors, and the same method under two names."""

import numpy as np
import pytest
from cases import with_every
from scipy import stats

from fedjax_het.metrics.groups import LEVEL, Prior, below, critical, prior_of, welch, with_the_best


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


def test_a_prior_is_that_from_which_variances_are_drawn():
  """Inverse χ² with d₀ degrees of freedom and scale s₀², of which s² has ν more."""
  rng = np.random.default_rng(3)
  for d0, scale in ((2.0, 0.5), (3.0, 4.0)):
    sigma = d0 * scale / rng.chisquare(d0, 40_000)
    found = prior_of(sigma * rng.chisquare(4, 40_000) / 4, 4)
    assert found.degrees == pytest.approx(d0, rel=0.1) and found.scale == pytest.approx(scale, rel=0.05)
  alike = prior_of(2.0 * rng.chisquare(4, 40_000) / 4, 4)  # one variance: d₀ is infinite, and cut at ν
  assert alike.degrees == 4.0 and 0 < alike.scale < 2.0
  assert prior_of(np.array([1.0, 2.0, 0.0]), 4) == Prior()


def test_welchs_test_with_moderated_variances_by_hand():
  a, b, prior = np.array([5.0, 6.0, 7.5]), np.array([0.0, 4.0, 1.0]), Prior(2.0, 0.8)
  s = [(2.0 * 0.8 + 2 * np.var(own, ddof=1)) / 4 / 3 for own in (a, b)]
  nu = (s[0] + s[1]) ** 2 / (s[0] ** 2 / 4 + s[1] ** 2 / 4)
  wanted = stats.t.sf((a.mean() - b.mean()) / np.sqrt(s[0] + s[1]), nu)
  assert welch(a, b, prior) == pytest.approx(wanted, rel=1e-12)


def test_a_method_that_is_far_worse_and_varies_more_is_told_apart():
  """By its own variance alone, of five seeds, it would not be."""
  rng = np.random.default_rng(4)
  shape = rng.normal(size=5)
  shape = (shape - shape.mean()) / shape.std(ddof=1)
  spreads = np.exp(rng.normal(0, 0.6, 40))
  methods = {f"m{i:02}": by_seed(96 + own * rng.normal(size=5)) for i, own in enumerate(spreads)}
  found = with_the_best(methods | {"best": by_seed(98 + 0.5 * shape), "bad": by_seed(83 + 5.0 * shape[::-1])})
  assert found.best == "best" and "bad" in found.others
  assert 42 * welch(98 + 0.5 * shape, 83 + 5.0 * shape[::-1]) > LEVEL


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
  with_every([
    [1.0] * 2, [1.0] * 8, [1.0] * 20, [0.2] + [1.0] * 15, [4.0] + [1.0] * 7, [2.9] + [1.0] * 30,
    [2.0] + [1.0] * 19, [1.0, 2.0, 2.9] * 5, [2.9, 1.0, 2.0] * 5, [1.0] * 8 + [5.0] * 8,
    [5.0] * 8 + [1.0] * 8, [1.0] * 36 + [0.1] * 36, [10.0] + [1.0] * 70,
  ], [1.0] * 2, [2.9] + [1.0] * 30, [5.0] * 8 + [1.0] * 8, [10.0] + [1.0] * 70),
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
  assert found.margin == pytest.approx(critical(2, 4, LEVEL) * np.sqrt(square / 4 * 2 / 3))


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
