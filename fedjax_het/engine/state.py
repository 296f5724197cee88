"""The state of a run, and its first value."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_het.data.container import ClientData
from fedjax_het.engine.cohort import participation_key
from fedjax_het.local import trips
from fedjax_het.parts import Algorithm, ClientUpdate, Context, Message, PyTree


class State(NamedTuple):
  """Everything that a run carries from round to round, a pytree.

  Attributes:
    key: the run's key; every draw is folded in from (key, round, client), so no other key is stored.
    round: number of finished rounds, int32 scalar.
    broadcast: the message that the server sends next.
    server: the server part's state.
    mixing: the mixing part's state.
    clients: the clients' states, each leaf [K, ...].
    aggregation: the aggregation part's state.
    participation: the participation part's state.
    pool: the clients that train while the server moves, see `engine.pool.Pool`; () without such.
  """

  key: jax.Array
  round: jax.Array
  broadcast: Message
  server: PyTree
  mixing: PyTree
  clients: PyTree
  aggregation: PyTree = ()
  participation: PyTree = ()
  pool: PyTree = ()


def first_state(
  algorithm: Algorithm, key: jax.Array, sizes: jax.Array, cohort_size: int,
  clients: Callable[[jax.Array, Message], PyTree],
) -> State:  # fmt: skip
  """Returns the state before the first round.

  Args:
    algorithm: the parts.
    key: typed key.
    sizes: the clients' numbers of training examples, int32 [K].
    cohort_size: S.
    clients: (typed key, first broadcast) -> the clients' states [K, ...], see `init_client`.
  """
  share_key, own_key = jax.random.split(key, 3)[0], run_key(key)
  broadcast = algorithm.client.init_broadcast(share_key)
  return State(
    own_key,
    jnp.int32(0),
    broadcast,
    algorithm.server.init(broadcast),
    algorithm.mixing.init(sizes),
    clients(clients_key(key), broadcast),
    algorithm.aggregation.init(broadcast),
    algorithm.participation.init(participation_key(own_key), sizes, cohort_size),
  )


def run_key(key: jax.Array) -> jax.Array:
  """Returns the key of a state, from which all rounds are drawn, for the key that a run is given."""
  return jax.random.split(key, 3)[2]


def clients_key(key: jax.Array) -> jax.Array:
  """Returns the key of the clients' first states, the same for all clients."""
  return jax.random.split(key, 3)[1]


def init_client(
  client: ClientUpdate, key: jax.Array, broadcast: Message, data: ClientData | None, context: Context
) -> PyTree:
  """Returns a client's first state; `key` is `clients_key`, and `data` is hidden unless requested."""
  return client.init(key, broadcast, client.shown("init", data), context)


def in_batches(function: Callable[[jax.Array], PyTree], ids: jax.Array, num_clients: int) -> PyTree:
  """Applies a function to clients in groups of sixteen, or of K if there are fewer, and stacks the results.

  A client's result has the same bits whichever clients are with it, so that it is independent of devices and
  blocks: all groups are equally large, and the last one overlaps the one before. Results are written in
  place, as a copy of all clients' states would need their memory twice.

  Args:
    function: (index of a client, int32 scalar) -> tree of arrays.
    ids: the clients' indices, int32 [n].
    num_clients: K.
  """
  size, count = min(16, num_clients), ids.shape[0]
  ids = jnp.pad(ids, (0, max(size - count, 0)), mode="edge")
  several = jax.vmap(function)

  def step(i: jax.Array, found: PyTree) -> PyTree:
    first = jnp.minimum(i * size, len(ids) - size)
    own = jax.lax.optimization_barrier(jax.lax.dynamic_slice_in_dim(ids, first, size))
    put = functools.partial(jax.lax.dynamic_update_slice_in_dim, start_index=first, axis=0)
    return jax.tree.map(put, found, several(own))

  shapes = jax.eval_shape(several, ids)
  room = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
  found = jax.lax.fori_loop(0, trips(-(-len(ids) // size)), step, room)
  return jax.tree.map(lambda leaf: leaf[:count], found)
