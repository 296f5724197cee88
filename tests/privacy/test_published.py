"""Three published settings: their ε by their own conversion, computed here, and the ledger's, below it."""

from pathlib import Path

import numpy as np
import pytest
from scipy.special import gammaln, logsumexp

from fedjax_het.parts import Sampling
from fedjax_het.privacy.accounting import Rounds

PAGE = Path(__file__).parents[2] / "docs" / "privacy.md"
PUBLISHED = [  # z, K, clients or records expected in a round, rounds, δ, published ε
  (1.12, 60_000, 256, 14_062, 1e-5, 2.92),  # 60 epochs
  (1.2, 60_000, 256, 2_343, 1e-5, 1.20),  # 10 epochs
  (1.0, 763_430, 5_000, 5_000, 1e-9, 4.634),
]


def converted(q: float, z: float, rounds: int, delta: float) -> float:
  """ε by whole Rényi orders of the subsampled Gaussian (Mironov, Talwar, Zhang, 2019, equation 3)."""
  found = []
  for a in range(2, 257):
    k = np.arange(a + 1)
    binomial = gammaln(a + 1) - gammaln(k + 1) - gammaln(a - k + 1)
    terms = binomial + (a - k) * np.log1p(-q) + k * np.log(q) + (k * k - k) / (2 * z * z)
    found.append((rounds * logsumexp(terms) + np.log(1 / delta)) / (a - 1))
  return min(found)


def ours(z: float, count: int, expected: int, rounds: int, delta: float) -> float:
  q = expected / count
  of = Sampling("poisson", "poisson", count, expected, float(expected), probability=q, capacity=count)
  return Rounds(of, z).epsilon(rounds, delta)


@pytest.mark.parametrize("row", PUBLISHED)
def test_their_conversion_gives_the_published_figure(row):
  z, count, expected, rounds, delta, published = row
  assert converted(expected / count, z, rounds, delta) == pytest.approx(published, rel=3e-3)


@pytest.mark.slow
@pytest.mark.parametrize("row", PUBLISHED)
def test_ours_is_on_the_page_and_below(row):
  *settings, published = row
  z, count, expected, rounds, delta = settings
  found, theirs = ours(*settings), converted(expected / count, z, rounds, delta)
  assert found < published
  line = f"| {z} | {expected}/{count} | {rounds} | {published:g} | {theirs:.3f} | {found:.3f} |"
  assert line in PAGE.read_text(), line
