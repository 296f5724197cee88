"""Draws of the cohort: everybody equally often, nobody twice."""

import jax
import numpy as np
import pytest

from fedjax_het.engine.cohort import AHEAD, CohortsAhead, cohort_of, sample_cohort
from fedjax_het.engine.placement import client_mesh


def cohorts(count, num_clients, size):
  keys = jax.random.split(jax.random.key(0), count)
  return np.asarray(jax.jit(jax.vmap(lambda key: sample_cohort(key, num_clients, size)))(keys))


def test_cohorts_hold_nobody_twice():
  drawn = cohorts(200, 12, 5)
  assert drawn.shape == (200, 5) and drawn.dtype == np.int32
  assert all(len(set(cohort)) == 5 for cohort in drawn.tolist())
  assert drawn.min() == 0 and drawn.max() == 11


@pytest.mark.slow
def test_cohorts_are_uniform():
  """Every client is in S/K of the cohorts, in every slot."""
  drawn = cohorts(6000, 12, 5)
  for values in (*drawn.T, drawn.ravel()):
    counts = np.bincount(values, minlength=12)
    expected = len(values) / 12
    assert ((counts - expected) ** 2 / expected).sum() < 31.3  # χ² of 11 degrees of freedom, p = 0.001


@pytest.mark.parametrize("num_clients, size", [(7, 6), (3, 1), (400, 330), (1_500_000, 50)])
def test_cohorts_of_any_share(num_clients, size):
  drawn = cohorts(40, num_clients, size)
  assert all(len(set(cohort)) == size for cohort in drawn.tolist())
  assert drawn.min() >= 0 and num_clients * 0.6 < drawn.max() + 1 <= num_clients


def test_pairs_of_clients_are_uniform():
  """Each ordered pair of the first two slots of a cohort equally often."""
  drawn = cohorts(12_000, 6, 4)
  counts = np.bincount(6 * drawn[:, 0] + drawn[:, 1], minlength=36).reshape(6, 6)[~np.eye(6, dtype=bool)]
  assert ((counts - 400) ** 2 / 400).sum() < 58.3  # χ² of 29 degrees of freedom, p = 0.001


@pytest.mark.parametrize("num_clients, size", [(2, 1), (3, 2), (9, 8), (30, 17), (5000, 64)])
def test_cohorts_are_dealt_from_a_shuffled_deck(num_clients, size):
  """The cards of a Fisher-Yates shuffle that moves them one after another."""
  for key in jax.random.split(jax.random.key(3), 20):
    places = jax.random.randint(key, (size,), np.arange(size), num_clients)
    deck = list(range(num_clients))
    for turn, place in enumerate(places.tolist()):
      deck[turn], deck[place] = deck[place], deck[turn]
    assert sample_cohort(key, num_clients, size).tolist() == deck[:size]


def test_everybody_comes_in_order():
  np.testing.assert_array_equal(cohorts(3, 7, 7), np.tile(np.arange(7), (3, 1)))


@pytest.mark.parametrize("num_clients, size", [(12, 5), (3, 3)])
def test_cohorts_ahead_are_those_of_the_rounds(num_clients, size):
  """In any order, for one run and for two, drawn anew or remembered."""
  ahead = CohortsAhead(client_mesh(1), num_clients, size)
  for keys in (jax.random.key(7), jax.random.split(jax.random.key(8), 2)):
    raw = ahead.raw(keys)
    for first in (0, 1, AHEAD // 2, AHEAD // 2 + 2, 3, AHEAD, 10**6):
      drawn = ahead.of(raw, first)
      assert len(drawn) >= AHEAD // 2
      for i in (0, len(drawn) - 1):
        expected = [cohort_of(key, first + i, num_clients, size) for key in jax.numpy.atleast_1d(keys)]
        np.testing.assert_array_equal(drawn[i], expected)
