"""Membership inference on uploads: does an upload distinguish training examples from others?"""

import jax
import jax.numpy as jnp


def pull_towards(
  x: jax.Array, y: jax.Array, synthetic: jax.Array, labels: jax.Array, signal: jax.Array
) -> jax.Array:
  """Membership score: how far a client's upload moves synthetic examples towards each candidate, float32 [N].

  Σ_{j: ỹ_j = y} <-s_j, (x - x̃_j) / |x - x̃_j|> of the uploaded s_j = e_j ∇E(x̃_j): training lowers the
  energy of a client's examples, so descent on the energy points to them. A server can compute this score if
  it sees a client's upload by itself, which secure aggregation prevents.

  Args:
    x: candidates, float32 [N, ...].
    y: their labels, int32 [N].
    synthetic: x̃ as the client received it, float32 [M, ...].
    labels: ỹ, int32 [M].
    signal: s, as the client uploaded it, shaped like x̃.
  """
  x, synthetic, signal = (leaf.reshape(len(leaf), -1) for leaf in (x, synthetic, signal))

  def of_one(x, y):
    way = x - synthetic
    unit = way / jnp.maximum(jnp.linalg.norm(way, axis=1, keepdims=True), 1e-12)
    return jnp.where(labels == y, -(signal * unit).sum(1), 0.0).sum()

  return jax.vmap(of_one)(x, y)
