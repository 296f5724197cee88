r"""Aggregations that treat every coordinate by itself: the mean, the median, the trimmed mean.

Yin, Chen, Ramchandran, Bartlett, Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates,
ICML 2018, definitions 1 and 2. Of the values u_1j, ..., u_mj of a coordinate j in the m uploads that arrive

    median        the middle one, or the mean of the middle two,
    trimmed mean  the mean of those that are left without the ⌊βm⌋ least and the ⌊βm⌋ largest.

Every upload counts alike, whatever its mixing coefficient. A NaN counts as the largest value.
"""

from typing import Annotated

import jax
import jax.numpy as jnp

from fedjax_het import vectors
from fedjax_het.errors import is_zero
from fedjax_het.parts import Aggregation, Needs
from fedjax_het.settings import Range, checked

COVERED = (
  "params",
  "extra",
  "stats",
  "even",
)  # fields that are combined; in `pooled` each client weighs its values
LESS_THAN_HALF = Annotated[float, Range(low=0.0, below=0.5)]


@checked
def mean() -> Aggregation:
  """The weighted mean Σ_i p_i u_i with the mixing's coefficients, the default; it protects from nothing."""
  return Aggregation(is_mean=lambda mixing: True)


@checked
def median() -> Aggregation:
  """The coordinate-wise median, which fewer than m/2 dishonest uploads cannot move arbitrarily."""

  def combine(key, state, p, uploads, broadcast, present):
    return vectors.in_kind_of(uploads, vectors.median(uploads, present)), state

  needs = Needs(covers=COVERED, withstands=lambda count: (count - 1) // 2)
  return Aggregation(combine=combine, name="median", needs=needs, uses_mixing=False)


def trimmed(share: float | jax.Array, count: int | jax.Array) -> jax.Array:
  """Computes ⌊βm⌋, float32; a product that rounding left just below a whole number counts as that number."""
  return jnp.minimum(jnp.floor(jnp.float32(share) * count + 1e-4), (count - 1) // 2)


@checked
def trimmed_mean(share: LESS_THAN_HALF = 0.1) -> Aggregation:
  """The coordinate-wise mean of the uploads without the ⌊βm⌋ least and the ⌊βm⌋ largest.

  Under uniform mixing β = 0 is the mean, and the part is left out.

  Args:
    share: β in [0, 1/2), at least the share of dishonest clients in a cohort.
  """

  def combine(key, state, p, uploads, broadcast, present):
    count = trimmed(share, present.sum())
    found = jax.tree.map(lambda leaf: vectors.ordered_mean(leaf, count, present), uploads)
    return vectors.in_kind_of(uploads, found), state

  needs = Needs(covers=COVERED, withstands=lambda count: float(trimmed(share, count)))
  return Aggregation(
    combine=combine, name="trimmed_mean", needs=needs, uses_mixing=False,
    is_mean=lambda mixing: mixing.even and is_zero(share),
  )  # fmt: skip
