"""Langevin step (stochastic gradient Langevin dynamics, Welling and Teh, ICML 2011), for clients and server.

FedEvg's client and server parts use it.
"""

import jax
import jax.numpy as jnp


def langevin_step(
  key: jax.Array,
  x: jax.Array,
  gradient: jax.Array,
  step_size: float | jax.Array,
  noise: float | jax.Array,
  bounded: bool,
) -> jax.Array:
  """Computes x - step_size·∇E + noise·ε with ε ~ N(0, I), clipped to [0, 1] if `bounded`; shaped like x.

  Equation 4.9 for a client's chains (γ, σ), equation 4.14 for the server's synthetic set (β_t, δ; thesis,
  chapter IV). The two scales are independent: ε's is not tied to the step by √(2·step_size), as a sampler's
  is.

  Args:
    key: typed PRNG key of ε.
    x: starting point, float32 [M, ...].
    gradient: ∇_x E, or an estimate of it, shaped like x.
    step_size: γ or β_t.
    noise: σ or δ.
    bounded: whether the result is clipped to [0, 1], as pixels are.
  """
  x = x - step_size * gradient + noise * jax.random.normal(key, x.shape)
  return jnp.clip(x, 0.0, 1.0) if bounded else x
