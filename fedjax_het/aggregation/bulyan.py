r"""Bulyan: Krum's choice of uploads, then in each coordinate the mean of those nearest to the median.

El Mhamdi, Guerraoui, Rouault, The Hidden Vulnerability of Distributed Learning in Byzantium, ICML 2018,
section 4. With f of S uploads dishonest, S >= 4f + 3:

1. θ = S - 2f times, the upload with the least Krum score among those that are left is chosen and taken away;
   of r that are left, the r - f - 2 nearest count for a score, and at least one.
2. In each coordinate, the mean of the β = θ - 2f chosen values that are nearest to their median.

Every upload counts alike, whatever its mixing coefficient. All fields of an upload are one vector in step 1.
"""

from typing import Annotated

import jax
import jax.numpy as jnp

from fedjax_het import vectors
from fedjax_het.aggregation.coordinates import COVERED
from fedjax_het.parts import Aggregation, Needs
from fedjax_het.settings import Whole, checked


def chosen_by_krum(distances: jax.Array, byzantine: int) -> jax.Array:
  """Returns the indices of the S - 2f uploads that step 1 chooses, int32, in the order of choice.

  Args:
    distances: squared distances, float32 [S, S], infinite on the diagonal.
    byzantine: f.
  """
  count = len(distances)

  def step(t, carry):
    left, found = carry
    open_ = jnp.where(left[:, None] & left[None, :], distances, jnp.inf)
    scores = vectors.krum_scores(open_, jnp.maximum(count - t - byzantine - 2, 1))
    best = jnp.where(left, jnp.minimum(scores, jnp.finfo(jnp.float32).max), jnp.inf).argmin()
    return left.at[best].set(False), found.at[t].set(best.astype(jnp.int32))

  number = count - 2 * byzantine
  return jax.lax.fori_loop(0, number, step, (jnp.ones(count, bool), jnp.zeros(number, jnp.int32)))[1]


@checked
def bulyan(byzantine: Annotated[int, Whole(0)] | None = None) -> Aggregation:
  """Bulyan: Krum chooses uploads, and means near the median of each coordinate combine them.

  Args:
    byzantine: f >= 0, how many of a cohort's uploads may be dishonest; None for (S - 3) // 4, the most.

  Raises:
    SettingError: from `check_cohort`, S < 4f + 3.
  """

  def combine(key, state, p, uploads, broadcast):
    f = (len(p) - 3) // 4 if byzantine is None else byzantine
    chosen = chosen_by_krum(vectors.squared_distances(uploads), f)

    def nearest(leaf: jax.Array) -> jax.Array:
      values = leaf[chosen].astype(jnp.float32)
      away = jnp.abs(values - vectors.median(values))
      ordered = jax.lax.sort((away, values), dimension=0, num_keys=1)[1][: len(p) - 4 * f]
      return ordered.sum(0) * (1.0 / jnp.float32(len(ordered)))

    return vectors.in_kind_of(uploads, jax.tree.map(nearest, uploads)), state

  needs = Needs(check_cohort=vectors.enough("bulyan", 4, byzantine), covers=COVERED)
  return Aggregation(combine=combine, name="bulyan", needs=needs, uses_mixing=False)
