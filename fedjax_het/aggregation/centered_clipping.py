r"""Centred clipping: steps from the last round's aggregate along clipped differences.

Karimireddy, He, Jaggi, Learning from History for Byzantine Robust Optimization, ICML 2021, algorithm 2. The
vectors are the clients' updates x_i = u_i - θ, all fields of an upload together, and v is at first the
aggregate update of the round before, 0 in the first round. It repeats

    v <- v + Σ_i p_i (x_i - v) min(1, τ / ‖x_i - v‖),

and the aggregate is θ + v. An update that is not finite adds nothing.
"""

import jax
import jax.numpy as jnp

from fedjax_het import vectors
from fedjax_het.aggregation.coordinates import COVERED
from fedjax_het.parts import Aggregation, Needs
from fedjax_het.settings import Count, Positive, checked


@checked
def centered_clipping(radius: Positive = 10.0, iterations: Count = 1) -> Aggregation:
  """Centred clipping; its state v has the form of the broadcast, float32.

  Args:
    radius: τ > 0, how far one upload may pull; about the honest updates' distance from their mean.
    iterations: steps of a round; the paper takes 1.
  """

  def init(broadcast):
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), broadcast)

  def combine(key, state, p, uploads, broadcast, present):
    updates = vectors.differences(uploads, broadcast)

    def step(_, v):
      away = vectors.differences(updates, v)
      norm = jnp.sqrt(vectors.squared_norms(away))
      share = jnp.minimum(1.0, radius * (1.0 / jnp.maximum(norm, 1e-30)))
      pull = jnp.where(jnp.isfinite(norm), p * share, 0.0)
      return jax.tree.map(jnp.add, v, vectors.weighted_sum(pull, away))

    v = jax.lax.fori_loop(0, iterations, step, state)
    aggregate = jax.tree.map(lambda base, own: base.astype(jnp.float32) + own, broadcast, v)
    return vectors.in_kind_of(uploads, aggregate), v

  return Aggregation(init, combine, "centered_clipping", Needs(covers=COVERED), of_updates=True)
