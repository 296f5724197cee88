"""Which clients take part in a round."""

import jax
import jax.numpy as jnp


def sample_cohort(key: jax.Array, num_clients: int, cohort_size: int) -> jax.Array:
  """S different clients of K, uniformly: int32 [S]. Everybody, in order, where S = K."""
  if cohort_size == num_clients:
    return jnp.arange(num_clients, dtype=jnp.int32)
  return jax.random.choice(key, num_clients, (cohort_size,), replace=False).astype(jnp.int32)
