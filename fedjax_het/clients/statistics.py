"""Re-estimates a model's running statistics from a client's examples."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_het.data.container import ClientData
from fedjax_het.local import steps_per_epoch, trips
from fedjax_het.models import Model

PyTree = Any


def own_statistics(model: Model, params: PyTree, stats: PyTree, data: ClientData, batch_size: int) -> PyTree:
  """Computes statistics s = Σ_k n_k s_k / n over a client's batches of n_k rows, shaped like `model.stats`.

  Batches follow the order of the client's rows and go through the model in training mode, with dropout if it
  has some. A statistic that a batch updates to m·s + (1 - m)·s_k maps s = 0 to (1 - m)·s_k, with derivative
  m, from which s_k follows. Statistics that training leaves unchanged (m = 1) and integers keep their value
  in `stats`.

  Args:
    model: a model with running statistics.
    params: its parameters.
    stats: its current statistics.
    data: the client's examples.
    batch_size: B; a last partial batch is used.
  """
  batch_size = min(batch_size, data.limit)
  leaves, structure = jax.tree.flatten(stats)
  floats = [i for i, leaf in enumerate(leaves) if jnp.issubdtype(jnp.result_type(leaf), jnp.floating)]

  def add(k: jax.Array, sums: list[jax.Array]) -> list[jax.Array]:
    rows = k * batch_size + jnp.arange(batch_size)
    inside = rows < data.length
    x, _ = data.take(jnp.where(inside, rows, 0))
    real = inside.astype(jnp.float32)

    def after(start: list[jax.Array]) -> list[jax.Array]:
      before = list(leaves)
      for i, own in zip(floats, start):
        before[i] = own
      _, found = model.in_training(params, jax.tree.unflatten(structure, before), x, real, jax.random.key(0))
      return [jax.tree.leaves(found)[i] for i in floats]

    zeros, ones = ([full(leaves[i]) for i in floats] for full in (jnp.zeros_like, jnp.ones_like))
    found, kept = jax.jvp(after, (zeros,), (ones,))
    return [
      total + real.sum() * jnp.where(m < 1, s / jnp.where(m < 1, 1 - m, 1), leaves[i])
      for total, s, m, i in zip(sums, found, kept, floats)
    ]

  steps = steps_per_epoch(data, batch_size)
  sums = lax.fori_loop(0, trips(steps), add, [jnp.zeros_like(leaves[i]) for i in floats])
  for i, total in zip(floats, sums):
    leaves[i] = total / data.length
  return jax.tree.unflatten(structure, leaves)
