"""Does what a client sends tell its training examples from others of the same distribution?"""

import jax
import jax.numpy as jnp


def pull_towards(
  x: jax.Array, y: jax.Array, synthetic: jax.Array, labels: jax.Array, signal: jax.Array
) -> jax.Array:
  """How far a client's upload would move synthetic examples towards each candidate, float32 [N].

  Σ_{j: ỹ_j = y} <-s_j, (x - x̃_j) / |x - x̃_j|> of the uploaded s_j = e_j ∇E(x̃_j): where training lowers the
  energy of its own examples, descent on the energy points to them. What a server can score that sees a
  client's upload by itself; under secure aggregation it does not.

  Args:
    x: candidates, float32 [N, ...].
    y: their labels, int32 [N].
    synthetic: x̃ as the client received it, float32 [M, ...].
    labels: ỹ, int32 [M].
    signal: s, as the client sent it, like x̃.
  """
  x, synthetic, signal = (leaf.reshape(len(leaf), -1) for leaf in (x, synthetic, signal))

  def of_one(x, y):
    way = x - synthetic
    unit = way / jnp.maximum(jnp.linalg.norm(way, axis=1, keepdims=True), 1e-12)
    return jnp.where(labels == y, -(signal * unit).sum(1), 0.0).sum()

  return jax.vmap(of_one)(x, y)
