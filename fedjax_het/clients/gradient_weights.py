"""How much the gradients of local SGD count in its update, for methods that read their mean out of it."""

import jax
import jax.numpy as jnp

from fedjax_het.errors import is_zero

TERMS = 6  # terms of the series below; the next is below 1e-7


def times_counted(steps: jax.Array, momentum: float | jax.Array) -> jax.Array:
  """Computes a_n, the total weight of n steps' gradients in x - y with momentum β; float32 scalar.

  If nε < 1/2, ε = 1 - β, it sums Σ_k (-ε)^k C(n+1, k+2), which is free of cancellation.
  """
  if is_zero(momentum):
    return steps.astype(jnp.float32)
  momentum = jnp.asarray(momentum, jnp.float32)
  rest, steps = 1.0 - momentum, jnp.asarray(steps, jnp.float32)
  geometric = momentum * (1.0 - momentum**steps) / rest
  series = jnp.float32(1.0)
  for k in range(TERMS, 0, -1):
    series = 1.0 - (steps - k) * rest / (k + 2) * series
  near = 0.5 * steps * (steps + 1.0) * series
  return jnp.where(steps * rest < 0.5, near, (steps - geometric) / rest)
