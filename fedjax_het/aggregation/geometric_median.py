r"""The geometric median of the uploads (RFA).

Pillutla, Kakade, Harchaoui, Robust Aggregation for Federated Learning, IEEE TSP 70, 2022, algorithm 2: the
smoothed Weiszfeld algorithm for  argmin_z Σ_i p_i ‖z - u_i‖.  From z = Σ_i p_i u_i it repeats

    β_i = p_i / max(ν, ‖z - u_i‖),    z <- Σ_i β_i u_i / Σ_i β_i.

u_i is the whole upload of client i, all fields of it together as one vector, and p_i its mixing coefficient,
for `even` too. An upload that is not finite gets no weight. If no upload with a weight is finite, the
aggregate is NaN.
"""

import jax
import jax.numpy as jnp

from fedjax_het import vectors
from fedjax_het.aggregation.coordinates import COVERED
from fedjax_het.parts import Aggregation, Needs
from fedjax_het.settings import Count, Positive, checked


@checked
def geometric_median(iterations: Count = 3, smoothing: Positive = 1e-6) -> Aggregation:
  """The geometric median, which uploads of less than half the mixing weight cannot move arbitrarily.

  Args:
    iterations: steps of Weiszfeld's algorithm; the paper takes 3.
    smoothing: ν > 0, the distance below which an upload's weight no longer grows.
  """

  def combine(key, state, p, uploads, broadcast, present):
    p = jnp.where(jnp.isfinite(vectors.squared_norms(uploads)), p, 0.0)

    def step(_, z):
      distance = jnp.sqrt(vectors.squared_norms(vectors.differences(uploads, z)))
      return vectors.weighted_mean(p * (1.0 / jnp.maximum(smoothing, distance)), uploads)

    z = jax.lax.fori_loop(0, iterations, step, vectors.weighted_mean(p, uploads))
    return vectors.in_kind_of(uploads, z), state

  needs = Needs(covers=COVERED, withstands=lambda count: (count - 1) // 2)  # of equal weights
  return Aggregation(combine=combine, name="geometric_median", needs=needs)
