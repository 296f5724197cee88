"""One round of federated training, a pure function of the state.

Sample the cohort -> gather its states -> local training -> mixing -> weighted sum -> server step -> scatter
the states back.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh

from fedjax_het.data.container import Array, FederatedData
from fedjax_het.engine import balance
from fedjax_het.engine.border import checked_clients, checked_loss, checked_server
from fedjax_het.engine.cohort import cohort_of, round_keys
from fedjax_het.engine.placement import constrain, map_clients, rounded, weighted_sum
from fedjax_het.engine.state import State
from fedjax_het.parts import Algorithm, Context, Feedback, Info, Message

MAX_CHUNK = 128


class Stretch(NamedTuple):
  """The rounds that one call of the compiled program trains.

  Attributes:
    rounds: number of rounds, int32 scalar, at most MAX_CHUNK.
    slots: position of each client's state, int32 [K]; None if client k's is the k-th.
  """

  rounds: jax.Array
  slots: Array | None


class RoundInfo(NamedTuple):
  """Record of a round.

  Attributes:
    cohort: the clients' indices, int32 [S].
    coefficients: mixing coefficients p, float32 [S].
    losses: F_i before local training, float32 [S]. If the mixing part does not ask for them, they are None in
      the program that trains, and NaN in what the engine returns.
    clients: the clients' `Info`, each leaf [S].
    figures: the mixing part's diagnostics, see `Mixing.figures`; () if it has none.
  """

  cohort: jax.Array
  coefficients: jax.Array
  losses: Any
  clients: Info
  figures: Any = ()


def round_step(
  algorithm: Algorithm,
  mesh: Mesh | None,
  cohort_size: int,
  client_batch: int | None,
  data: FederatedData,
  state: State,
  slots: Array | None = None,
) -> tuple[State, RoundInfo]:
  """Runs one round of an algorithm, a pure function of the state.

  Args:
    algorithm: the parts.
    mesh: the devices that clients are spread over; None for the one that runs this.
    cohort_size: S.
    client_batch: clients that a device trains at once; None for all.
    data: all clients' data.
    state: the state before the round.
    slots: position of each client's state in `state.clients`, int32 [K]; None if client k's is the k-th.

  Returns:
    (state after the round, its record).
  """
  client, mixing, server = algorithm
  _, clients_key, server_key = round_keys(state.key, state.round)
  cohort = cohort_of(state.key, state.round, data.num_clients, cohort_size)
  view = data.clients(cohort)
  places = cohort if slots is None else slots[cohort]
  before = jax.tree.map(lambda leaf: leaf[places], state.clients)
  keys = jax.vmap(lambda i: jax.random.fold_in(clients_key, i))(cohort)
  shared = (state.broadcast, state.round)

  def context(i: jax.Array, round: jax.Array) -> Context:
    return Context(i, round, cohort_size, data.num_clients)

  def train(shared, own, i, key, own_state):
    broadcast, round = shared
    return client.update(key, broadcast, own_state, own, context(i, round))

  def judge(shared, own, i, own_state):
    broadcast, round = shared
    return checked_loss(client.loss(broadcast, own_state, own, context(i, round)))

  if mesh and client.training and balance.pays(mesh, view, client_batch):
    sent = balance.train(client.training, mesh, view, context, *shared, cohort, keys, before)
  else:
    sent = map_clients(train, mesh, client_batch, shared, view, cohort, keys, before)
  uploads, after, info = checked_clients(client, state.broadcast, before, sent)
  losses = functools.cache(
    lambda: constrain(map_clients(judge, mesh, client_batch, shared, view, cohort, before), mesh)
  )
  # Replicated before and after: sums over a cohort that is split between devices would round differently.
  gathered = functools.cache(lambda: constrain(uploads, mesh))
  seen, sizes = constrain((cohort, view.size), mesh)
  feedback = Feedback(seen, sizes, state.round, losses, gathered, state.broadcast)
  coefficients, mixing_state = constrain(mixing.update(state.mixing, feedback), mesh)
  mixed = uploads
  if mixing.scale is not None:
    mixed = scaled(uploads, state.broadcast, constrain(mixing.scale(feedback), mesh))
  aggregate = average(coefficients, mixed, mesh)
  moved = server.update(server_key, state.server, state.broadcast, aggregate)
  broadcast, server_state = checked_server((state.broadcast, state.server), moved)

  def scatter(everybody: jax.Array, some: jax.Array) -> jax.Array:
    return constrain(everybody.at[places].set(constrain(some, mesh)), mesh, everybody.shape[0])

  clients = jax.tree.map(scatter, state.clients, after)
  figures = () if mixing.figures is None else mixing.figures(feedback)
  asked = losses() if losses.cache_info().currsize else None
  return (
    State(state.key, state.round + 1, broadcast, server_state, mixing_state, clients),
    RoundInfo(cohort, coefficients, asked, constrain(info, mesh), constrain(figures, mesh)),
  )


def average(coefficients: jax.Array, uploads: Message, mesh: Mesh | None) -> Message:
  """Computes Σ_i p_i u_i of the uploads' fields, and Σ_i u_i / S of `Message.even`."""
  even = weighted_sum(
    jnp.full_like(coefficients, 1.0 / len(coefficients)), Message((), even=uploads.even), mesh
  )
  return weighted_sum(coefficients, uploads._replace(even=()), mesh)._replace(even=even.even)


def scaled(uploads: Message, broadcast: Message, scale: jax.Array) -> Message:
  """Computes θ + s_i (θ_i - θ) of each client's params; the other fields are unchanged."""

  def one(upload: jax.Array, base: jax.Array) -> jax.Array:
    own = scale.reshape(-1, *[1] * base.ndim)
    return rounded(base + own * (upload - base), upload.dtype)

  return uploads._replace(params=jax.tree.map(one, uploads.params, broadcast.params))


def many_rounds(
  step: Callable[[State], tuple[State, RoundInfo]], state: State, num_rounds: jax.Array
) -> tuple[State, RoundInfo]:
  """Runs `num_rounds` <= MAX_CHUNK rounds; infos are stacked, [MAX_CHUNK, ...], zero after the last round."""
  step = jax.jit(step, inline=True)  # traced once, for its shapes and for the loop
  shapes = jax.eval_shape(step, state)[1]
  infos = jax.tree.map(lambda leaf: jnp.zeros((MAX_CHUNK, *leaf.shape), leaf.dtype), shapes)

  def body(i: jax.Array, carry: tuple[State, RoundInfo]) -> tuple[State, RoundInfo]:
    state, infos = carry
    state, info = step(state)
    return state, jax.tree.map(lambda all_, one: all_.at[i].set(one), infos, info)

  return lax.fori_loop(0, num_rounds, body, (state, infos))
