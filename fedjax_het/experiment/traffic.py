"""Counts the bytes that a run's clients and server send."""

from typing import Any

import jax

from fedjax_het.data.container import FederatedData
from fedjax_het.engine.state import State
from fedjax_het.parts import Algorithm, Context


def traffic(
  algorithm: Algorithm, data: FederatedData, state: State, cohort_size: int, rounds: int = 1
) -> dict[str, int]:
  """Computes the bytes that the algorithm sends to (down) and receives from (up) clients in some rounds."""

  client = algorithm.client

  def uploads(state, data):
    own_state = jax.tree.map(lambda leaf: leaf[0], state.clients)
    context = Context(0, state.round, cohort_size, data.num_clients)
    given = state.key, state.broadcast, own_state, data.clients(0), context
    return client.update(*given)[0], client.first_pass and client.first_pass(*given)

  def size(message: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(message))

  visits = cohort_size * rounds
  again = state.broadcast.pooled if client.first_pass else ()  # after the first pass, to train with
  return {
    "up": visits * size(jax.eval_shape(uploads, state, data)),
    "down": visits * size((state.broadcast, again)),
  }  # fmt: skip
