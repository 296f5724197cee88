r"""Krum and multi-Krum: mixing coefficients of the uploads that lie nearest to their neighbours.

Blanchard, El Mhamdi, Guerraoui, Stainer, Machine Learning with Adversaries: Byzantine Tolerant Gradient
Descent, NeurIPS 2017, section 3. With f of m uploads dishonest, 2f + 2 < m, an upload's score is the sum of
the squared distances to the m - f - 2 nearest others. Krum takes the upload with the least score, p one-hot;
multi-Krum the mean of the m - f uploads with the least scores. All fields of an upload are one vector; an
upload that is not finite has an infinite score, and is not read unless none is finite; where fewer than m - f
are, multi-Krum takes the mean of these.

m is the number of uploads that arrive, S if all do. If m < 2f + 3, f is the most that m allows, at least 0:
such a round is protected from fewer.
"""

from typing import Annotated

import jax
import jax.numpy as jnp

from fedjax_het import vectors
from fedjax_het.parts import Mixing, Needs
from fedjax_het.settings import Whole, checked

Byzantine = Annotated[int, Whole(0)]


def coefficients(
  distances: jax.Array, byzantine: jax.Array, kept: int | jax.Array, present: jax.Array, finite: jax.Array
) -> jax.Array:
  """Computes p, float32 [S]: 1/kept for the `kept` uploads with the least scores, 0 for the others.

  Args:
    distances: squared distances between the uploads, float32 [S, S], see `vectors.squared_distances`.
    byzantine: f.
    kept: how many are averaged; of equal scores the first.
    present: whose uploads are there, bool [S].
    finite: which uploads are finite, bool [S]: no distance says it of one whose neighbours are not.
  """
  scores = vectors.krum_scores(distances, present.sum() - byzantine - 2)
  order = jnp.lexsort((scores, ~finite, ~present))
  share = jnp.where(jnp.arange(len(order)) < kept, 1.0 / jnp.float32(kept), 0.0)
  return jnp.zeros(len(order), jnp.float32).at[order].set(share)


def _krum(name: str, byzantine: int | None, several: bool) -> Mixing:
  def update(state, feedback):
    present = jnp.ones(feedback.sizes.shape, bool) if feedback.present is None else feedback.present
    uploads, f = feedback.uploads(), vectors.liars(byzantine, 2, present.sum())
    finite = jnp.isfinite(vectors.squared_norms(uploads))
    kept: int | jax.Array = 1
    if several:
      kept = jnp.minimum(present.sum() - f, jnp.maximum((present & finite).sum(), 1))
    return coefficients(vectors.squared_distances(uploads, present), f, kept, present, finite), state

  check = vectors.enough(name, 2, byzantine)
  needs = Needs(
    check_cohort=check, covers=("params", "extra", "stats"),
    withstands=lambda count: int(vectors.liars(byzantine, 2, jnp.int32(count))),
  )  # fmt: skip
  return Mixing(lambda sizes: (), update, name, needs=needs, takes_absent=True)


@checked
def krum(byzantine: Byzantine | None = None) -> Mixing:
  """Krum: the aggregate is the one upload that lies nearest to its neighbours.

  Args:
    byzantine: f >= 0, how many of a cohort's uploads may be dishonest; None for (m - 3) // 2, the most.

  Raises:
    SettingError: from `check_cohort`, S < 2f + 3.
  """
  return _krum("krum", byzantine, several=False)


@checked
def multi_krum(byzantine: Byzantine | None = None) -> Mixing:
  """Multi-Krum: the aggregate is the mean of the m - f uploads that lie nearest to their neighbours.

  Args:
    byzantine: f >= 0, how many of a cohort's uploads may be dishonest; None for (m - 3) // 2, the most.

  Raises:
    SettingError: from `check_cohort`, S < 2f + 3.
  """
  return _krum("multi_krum", byzantine, several=True)
