"""The state of a run, and how it starts."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_het.data.container import ClientData
from fedjax_het.parts import Algorithm, ClientUpdate, Context, Message, PyTree


class State(NamedTuple):
  """Everything that a run carries from round to round, a pytree.

  Attributes:
    key: the run's key; every draw is folded in from (key, round, client), so none is stored.
    round: rounds finished, int32 scalar.
    broadcast: what the server sends next.
    server: the server part's state.
    mixing: the mixing part's state.
    clients: the clients' states, each leaf [K, ...].
  """

  key: jax.Array
  round: jax.Array
  broadcast: Message
  server: PyTree
  mixing: PyTree
  clients: PyTree


def first_state(
  algorithm: Algorithm, key: jax.Array, sizes: jax.Array, clients: Callable[[jax.Array, Message], PyTree]
) -> State:
  """The state before the first round, for clients with `sizes` (int32 [K]) training examples.

  `clients` makes their states of a typed key and the first broadcast, see `init_client`.
  """
  share_key, _, run_key = jax.random.split(key, 3)
  broadcast = algorithm.client.share(share_key)
  return State(
    run_key,
    jnp.int32(0),
    broadcast,
    algorithm.server.init(broadcast),
    algorithm.mixing.init(sizes),
    clients(clients_key(key), broadcast),
  )


def clients_key(key: jax.Array) -> jax.Array:
  """The key of the clients' first states, the same for all."""
  return jax.random.split(key, 3)[1]


def init_client(
  client: ClientUpdate, key: jax.Array, broadcast: Message, data: ClientData | None, context: Context
) -> PyTree:
  """A client's first state; `key` is `clients_key`, and `data` is needed by those who see it."""
  return client.init(key, broadcast, client.shown("init", data), context)


def in_batches(function: Callable[[jax.Array], PyTree], ids: jax.Array) -> PyTree:
  """The function of every number, stacked; at most sixteen at once, without a rest, which would be copied."""
  return jax.lax.map(function, ids, batch_size=max(n for n in range(1, 17) if ids.shape[0] % n == 0))
