r"""Krum and multi-Krum: mixing coefficients of the uploads that lie nearest to their neighbours.

Blanchard, El Mhamdi, Guerraoui, Stainer, Machine Learning with Adversaries: Byzantine Tolerant Gradient
Descent, NeurIPS 2017, section 3. With f of S uploads dishonest, 2f + 2 < S, an upload's score is the sum of
the squared distances to the S - f - 2 nearest others. Krum takes the upload with the least score, p one-hot;
multi-Krum the mean of the S - f uploads with the least scores. All fields of an upload are one vector; an
upload that is not finite has an infinite score, and is not read.
"""

from typing import Annotated

import jax
import jax.numpy as jnp

from fedjax_het import vectors
from fedjax_het.parts import Mixing, Needs
from fedjax_het.settings import Whole, checked

Byzantine = Annotated[int, Whole(0)]


def coefficients(distances: jax.Array, byzantine: int, kept: int) -> jax.Array:
  """Computes p, float32 [S]: 1/kept for the `kept` uploads with the least scores, 0 for the others.

  Args:
    distances: squared distances between the uploads, float32 [S, S], infinite on the diagonal.
    byzantine: f.
    kept: how many are averaged; of equal scores the first.
  """
  count = len(distances)
  scores = vectors.krum_scores(distances, count - byzantine - 2)
  best = jnp.argsort(scores, stable=True)[:kept]
  return jnp.zeros(count, jnp.float32).at[best].set(1.0 / kept)


def _krum(name: str, byzantine: int | None, several: bool) -> Mixing:
  def update(state, feedback):
    size = feedback.sizes.shape[0]
    f = (size - 3) // 2 if byzantine is None else byzantine
    kept = size - f if several else 1
    return coefficients(vectors.squared_distances(feedback.uploads()), f, kept), state

  check = vectors.enough(name, 2, byzantine)
  needs = Needs(check_cohort=check, covers=("params", "extra", "stats"))
  return Mixing(lambda sizes: (), update, name, needs=needs)


@checked
def krum(byzantine: Byzantine | None = None) -> Mixing:
  """Krum: the aggregate is the one upload that lies nearest to its neighbours.

  Args:
    byzantine: f >= 0, how many of a cohort's uploads may be dishonest; None for (S - 3) // 2, the most.

  Raises:
    SettingError: from `check_cohort`, S < 2f + 3.
  """
  return _krum("krum", byzantine, several=False)


@checked
def multi_krum(byzantine: Byzantine | None = None) -> Mixing:
  """Multi-Krum: the aggregate is the mean of the S - f uploads that lie nearest to their neighbours.

  Args:
    byzantine: f >= 0, how many of a cohort's uploads may be dishonest; None for (S - 3) // 2, the most.

  Raises:
    SettingError: from `check_cohort`, S < 2f + 3.
  """
  return _krum("multi_krum", byzantine, several=True)
