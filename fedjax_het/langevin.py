"""A step of stochastic gradient Langevin dynamics (Welling and Teh, ICML 2011), at both of FedEvg's ends."""

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
  """x - step_size·∇E + noise·ε with ε ~ N(0, I), kept in [0, 1] where `bounded`; like x.

  Equation 4.9 for a client's chains (γ, σ), equation 4.14 for the server's synthetic set (β_t, δ; thesis,
  chapter IV). The two scales are free: ε's is not tied to the step by √(2·step_size), as a sampler's is.

  Args:
    key: typed key of ε.
    x: where the step starts, float32 [M, ...].
    gradient: ∇_x E, or what stands for it, like x.
    step_size: γ or β_t.
    noise: σ or δ.
    bounded: whether x is kept in [0, 1], as pixels are.
  """
  x = x - step_size * gradient + noise * jax.random.normal(key, x.shape)
  return jnp.clip(x, 0.0, 1.0) if bounded else x
