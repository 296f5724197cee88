r"""Bulyan: Krum's choice of uploads, then in each coordinate the mean of those nearest to the median.

El Mhamdi, Guerraoui, Rouault, The Hidden Vulnerability of Distributed Learning in Byzantium, ICML 2018,
section 4. With f of m uploads dishonest, m >= 4f + 3:

1. θ = m - 2f times, the upload with the least Krum score among those that are left is chosen and taken away;
   of r that are left, the r - f - 2 nearest count for a score, and at least one.
2. In each coordinate, the mean of the β = θ - 2f chosen values that are nearest to their median.

Every upload counts alike, whatever its mixing coefficient. All fields of an upload are one vector in step 1.
m is the number of uploads that arrive, S if all do. If m < 4f + 3, f is the most that m allows, at least 0.
"""

from typing import Annotated

import jax
import jax.numpy as jnp

from fedjax_het import vectors
from fedjax_het.aggregation.coordinates import COVERED
from fedjax_het.parts import Aggregation, Needs
from fedjax_het.settings import Whole, checked


def chosen_by_krum(distances: jax.Array, byzantine: jax.Array, present: jax.Array) -> jax.Array:
  """Returns the indices of the m - 2f uploads that step 1 chooses, in this order, then zeros, int32 [S].

  Args:
    distances: squared distances, float32 [S, S], see `vectors.squared_distances`.
    byzantine: f.
    present: which m uploads are there, bool [S].
  """
  count = present.sum()

  def step(t, carry):
    left, found = carry
    open_ = jnp.where(left[:, None] & left[None, :], distances, jnp.inf)
    scores = vectors.krum_scores(open_, jnp.maximum(count - t - byzantine - 2, 1))
    best = jnp.where(left, jnp.minimum(scores, jnp.finfo(jnp.float32).max), jnp.inf).argmin()
    return left.at[best].set(False), found.at[t].set(best.astype(jnp.int32))

  none = jnp.zeros(len(distances), jnp.int32)
  return jax.lax.fori_loop(0, count - 2 * byzantine, step, (present, none))[1]


@checked
def bulyan(byzantine: Annotated[int, Whole(0)] | None = None) -> Aggregation:
  """Bulyan: Krum chooses uploads, and means near the median of each coordinate combine them.

  Args:
    byzantine: f >= 0, how many of a cohort's uploads may be dishonest; None for (m - 3) // 4, the most.

  Raises:
    SettingError: from `check_cohort`, S < 4f + 3.
  """

  def combine(key, state, p, uploads, broadcast, present):
    count, places = present.sum(), jnp.arange(len(p))
    f = vectors.liars(byzantine, 4, count)
    chosen = chosen_by_krum(vectors.squared_distances(uploads, present), f, present)
    number, kept = count - 2 * f, count - 4 * f

    def nearest(leaf: jax.Array) -> jax.Array:
      values, there = leaf[chosen].astype(jnp.float32), places < number
      away = jnp.where(vectors.over(there, leaf), jnp.abs(values - vectors.median(values, there)), jnp.nan)
      ordered = jax.lax.sort((away, values), dimension=0, num_keys=1)[1]
      total = jnp.where(vectors.over(places < kept, leaf), ordered, 0.0).sum(0)
      return total * (1.0 / jnp.float32(kept))

    return vectors.in_kind_of(uploads, jax.tree.map(nearest, uploads)), state

  needs = Needs(
    check_cohort=vectors.enough("bulyan", 4, byzantine), covers=COVERED,
    withstands=lambda count: int(vectors.liars(byzantine, 4, jnp.int32(count))),
  )  # fmt: skip
  return Aggregation(combine=combine, name="bulyan", needs=needs, uses_mixing=False)
