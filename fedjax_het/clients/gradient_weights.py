"""How much the gradients of local SGD count in its update, for methods that read their mean out of it."""

import functools

import jax
import jax.numpy as jnp

from fedjax_het.errors import is_zero

BITS = 31  # of a number of steps, int32
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


def times_counted_near(steps: jax.Array, momentum: float | jax.Array, pull: float | jax.Array) -> jax.Array:
  """Computes a_n as `times_counted` does, for steps that are also pulled back to x; float32, shaped like n.

  With a proximal term (μ/2)·‖θ - x‖² and rate η, of which `pull` is ημ, gradients of 1 make

      m <- β m + 1 - ημ a,    a <- a + m,    a_0 = m_0 = 0,

  without momentum a_n = Σ_{k<n} (1 - ημ)^k. The map is applied n times by squaring its matrix.
  """
  product = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
  of_m = jnp.stack([-jnp.asarray(pull, jnp.float32), jnp.asarray(momentum, jnp.float32), jnp.float32(1.0)])
  power = jnp.stack([of_m.at[0].add(1.0), of_m, jnp.array([0.0, 0.0, 1.0])])
  found = jnp.zeros((3, *steps.shape)).at[2].set(1.0)
  for bit in range(BITS):
    found = jnp.where((steps >> bit) & 1, product(power, found), found)
    power = product(power, power)
  return found[0]
