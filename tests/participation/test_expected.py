"""How many clients a round is expected to have, and with which probability each arrives, against NumPy."""

from math import comb

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het import participation
from fedjax_het.participation.among import expected
from fedjax_het.participation.trace import mean_size


def test_the_expected_size_of_a_cohort_against_the_binomial():
  q, num, count = 0.3, 9, 4
  tail = [comb(num, a) * q**a * (1 - q) ** (num - a) for a in range(num + 1)]
  exact = sum(min(count, a) * p for a, p in enumerate(tail))
  np.testing.assert_allclose(expected(jnp.full(num, q), count), exact, rtol=1e-5)


def test_who_is_certain_is_no_matter_of_chance():
  """E[min(S, A)] with 2 of 7 certain, 2 never there and 3 with 0.3 each; and all of a plan."""
  there, three = jnp.array([0.3, 1, 0, 0.3, 1, 0.3, 0]), [0.343, 0.441, 0.189, 0.027]
  for count in (1, 3, 6):
    exact = sum(min(count, 2 + a) * p for a, p in enumerate(three))
    np.testing.assert_allclose(expected(there, count), exact, rtol=1e-5)
    assert expected(jnp.array([1.0, 0, 0, 1, 1, 0, 0]), count) == min(count, 3)
  assert expected(jnp.zeros(4), 2) == 0


@pytest.mark.parametrize("size, chance", [(5, 1.0), (3, 0.6)])
def test_the_probability_of_a_client_whose_block_has_its_turn(size, chance, tmp_path):
  path = tmp_path / "trace.csv"
  path.write_text("".join(f"{i}, 0, 2\n" for i in range(5)))
  for part in (participation.cyclic(2), participation.trace(str(path))):
    one = part.draw(jax.random.key(2), jnp.int32(0), (), 10, size)
    np.testing.assert_allclose(one.probability, chance, rtol=1e-6)
    assert one.present.all()


@pytest.mark.parametrize("q, spread", [(0.9, 1.0), (0.2, 0.5), (0.5, 0.7), (0.6, 0.3)])
def test_the_expected_number_with_chances_that_are_cut(q, spread):
  uniform = q + spread * (2 * (np.arange(100_000) + 0.5) / 100_000 - 1)
  found = participation.available(q, spread).sampled(8, 8).expected
  np.testing.assert_allclose(found, 8 * np.clip(uniform, 0, 1).mean(), rtol=1e-4)


def test_the_mean_size_of_a_recorded_cohort():
  rng = np.random.default_rng(0)
  first = rng.integers(0, 20, 12)
  lines = np.stack([rng.integers(0, 5, 12), first, first + rng.integers(1, 9, 12)], 1)
  there = [{c for c, a, b in lines.tolist() if a <= t < b} for t in range(lines[:, 2].max())]
  for size in (1, 2, 5):
    assert mean_size(lines, size) == pytest.approx(np.mean([min(size, len(own)) for own in there]))
