"""A federated algorithm, composed of three parts, and the state of its run."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_het import mixing as mixings
from fedjax_het import server as servers
from fedjax_het.data.container import ClientData
from fedjax_het.errors import SettingError
from fedjax_het.parts import ClientUpdate, Context, Message, Mixing, PyTree, ServerUpdate


class Algorithm(NamedTuple):
  """A client part, a mixing part and a server part."""

  client: ClientUpdate
  mixing: Mixing
  server: ServerUpdate


def federated(
  client: ClientUpdate, mixing: Mixing | None = None, server: ServerUpdate | None = None
) -> Algorithm:
  """Composes an algorithm; by default clients count by n_i and the server moves to the average.

  Raises:
    SettingError: something that is not such a part, as a factory is that was not called; a mixing part
      that scales updates around a client part that sends none; or a server part that takes models around a
      client part that uploads signals, or the other way about.
  """
  parts = Algorithm(client, mixing or mixings.static(), server or servers.sgd())
  kinds: tuple[type, ...] = (ClientUpdate, Mixing, ServerUpdate)
  for role, part, kind in zip(Algorithm._fields, parts, kinds):
    if not isinstance(part, kind):
      what = getattr(part, "__name__", type(part).__name__)
      raise SettingError(
        role, what, f"is not a {kind.__name__}",
        f"Call the factory: {what}(...)." if callable(part) else "Give client, mixing, server in this order.",
      )  # fmt: skip
  if parts.mixing.scale is not None and not parts.client.uploads_model:
    raise SettingError(
      "mixing", parts.mixing.name, f"scales the clients' updates, and {parts.client.name} uploads no model",
      "Use a mixing that only weighs what is uploaded, such as static.",
    )  # fmt: skip
  if parts.server.takes_models != parts.client.uploads_model:
    given, fitting = ("models", "sgd") if parts.client.uploads_model else ("signals", "sgld")
    raise SettingError(
      "server", parts.server.name, f"does not take the {given} that {parts.client.name} uploads",
      f"Use a server part that does, such as {fitting}.",
    )  # fmt: skip
  return parts


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


def init(
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
  """The key that the clients' numbers are folded into for their first states."""
  return jax.random.split(key, 3)[1]


def init_client(
  client: ClientUpdate, key: jax.Array, broadcast: Message, data: ClientData | None, context: Context
) -> PyTree:
  """A client's first state; `key` is `clients_key`, and `data` is needed by those who see it."""
  return client.init(jax.random.fold_in(key, context.client), broadcast, client.shown("init", data), context)


def in_batches(function: Callable[[jax.Array], PyTree], ids: jax.Array) -> PyTree:
  """The function of every number, stacked; at most sixteen at once, without a rest, which would be copied."""
  return jax.lax.map(function, ids, batch_size=max(n for n in range(1, 17) if ids.shape[0] % n == 0))
