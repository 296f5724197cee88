"""Flax layers that stay fast under `jax.vmap` over clients."""
