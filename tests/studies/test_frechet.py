"""Fréchet and kernel distance against SciPy's matrix root, closed forms and sums over pairs."""

import numpy as np
import pytest
from scipy import linalg

from fedjax_het.studies.frechet import frechet_distance, kernel_distance

RNG = np.random.default_rng(0)


def by_matrix_root(a, b):
  first, second = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
  root = linalg.sqrtm(first @ second)
  return ((a.mean(0) - b.mean(0)) ** 2).sum() + np.trace(first + second - 2.0 * root.real)


@pytest.mark.parametrize("n, m, d", [(50, 80, 6), (300, 7, 5), (6, 5, 4)])
def test_it_is_the_formula_with_scipys_matrix_root(n, m, d):
  mix = RNG.normal(size=(d, d))
  a, b = RNG.normal(size=(n, d)) @ mix + 1.0, RNG.normal(size=(m, d)) ** 3
  assert frechet_distance(a, b) == pytest.approx(by_matrix_root(a, b), rel=1e-6)


def test_fewer_examples_than_dimensions():
  """Where Σ_a Σ_b is singular, the root comes from its few eigenvalues that are not zero."""
  a, b = RNG.normal(size=(5, 12)), 2.0 * RNG.normal(size=(40, 12)) + 1.0
  first, second = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
  roots = np.sqrt(np.maximum(np.linalg.eigvals(first @ second).real, 0.0)).sum()
  wanted = ((a.mean(0) - b.mean(0)) ** 2).sum() + np.trace(first) + np.trace(second) - 2.0 * roots
  assert frechet_distance(a, b) == pytest.approx(wanted, rel=1e-5)


def test_normal_distributions_in_closed_form():
  """(m - n)² + (s - t)² in one dimension; nothing between a set and itself."""
  a = RNG.normal(size=(1000, 1))
  a = (a - a.mean()) / a.std(ddof=1)
  assert frechet_distance(3.0 * a + 1.0, 0.5 * a - 1.0) == pytest.approx(4.0 + 2.5**2, rel=1e-9)
  assert frechet_distance(a, a[::-1]) == pytest.approx(0.0, abs=1e-9)


def test_the_kernel_distance_is_its_sum_over_pairs():
  a, b = RNG.normal(size=(7, 3)), RNG.normal(size=(5, 3)) + 0.5

  def kernel(x, y):
    return (x @ y / 3 + 1.0) ** 3

  def mean(pairs):
    return np.mean([kernel(x, y) for x, y in pairs])

  def others(x):
    return [(x[i], x[j]) for i in range(len(x)) for j in range(len(x)) if i != j]

  wanted = mean(others(a)) + mean(others(b)) - 2.0 * mean([(x, y) for x in a for y in b])
  assert kernel_distance(a, b) == pytest.approx(wanted, rel=1e-9)


def test_the_kernel_distance_does_not_depend_on_the_number_of_examples_but_frechets_does():
  def average(distance, n):
    return np.mean([distance(RNG.normal(size=(n, 8)), RNG.normal(size=(400, 8))) for _ in range(60)])

  assert abs(average(kernel_distance, 10)) < 0.1 < average(frechet_distance, 10) / 10
