"""One round of federated training, a pure function of the state.

Sample the cohort -> gather its states -> a first pass, for methods that have one -> local training -> mixing
-> aggregation -> server step -> scatter the states back.
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
from fedjax_het.engine.averages import average, pooled, scaled, without_unread
from fedjax_het.engine.border import (
  checked_aggregate,
  checked_clients,
  checked_first_pass,
  checked_loss,
  checked_server,
)
from fedjax_het.engine.cohort import AGGREGATION, ATTACK, FIRST_PASS, cohort_of, key_of, round_keys
from fedjax_het.engine.dishonest import corrupted, dishonest, forged
from fedjax_het.engine.placement import constrain, map_clients
from fedjax_het.engine.state import State
from fedjax_het.parts import Algorithm, Context, Feedback, Info

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
  client, mixing, server, aggregation, attack = algorithm
  _, clients_key, server_key = round_keys(state.key, state.round)
  cohort = cohort_of(state.key, state.round, data.num_clients, cohort_size)
  view = data.clients(cohort)
  places = cohort if slots is None else slots[cohort]
  before = jax.tree.map(lambda leaf: leaf[places], state.clients)
  liars = constrain(dishonest(state.key, attack.share, data.num_clients), mesh) if attack.there else None
  if liars is not None and attack.data is not None:
    client = corrupted(client, attack, liars, data.num_classes)

  def keys_of(key: jax.Array) -> jax.Array:
    return jax.vmap(lambda i: jax.random.fold_in(key, i))(cohort)

  def context(i: jax.Array, round: jax.Array) -> Context:
    return Context(i, round, cohort_size, data.num_clients)

  def survey(shared, own, i, key, own_state):
    sent, round = shared
    assert client.first_pass is not None
    return client.first_pass(key, server.received(sent, i), own_state, own, context(i, round))

  def train(shared, own, i, key, own_state):
    sent, round = shared
    return client.update(key, server.received(sent, i), own_state, own, context(i, round))

  def judge(shared, own, i, own_state):
    sent, round = shared
    return checked_loss(client.loss(server.received(sent, i), own_state, own, context(i, round)))

  keys, shared = keys_of(clients_key), (server.sent(state.broadcast, state.server), state.round)
  if client.first_pass is not None:
    first_keys = keys_of(key_of(FIRST_PASS, state.key, state.round))
    found = map_clients(survey, mesh, client_batch, shared, view, cohort, first_keys, before)
    found = checked_first_pass(state.broadcast, found)
    broadcast = state.broadcast._replace(pooled=pooled(found, state.broadcast.pooled, mesh))
    state, shared = state._replace(broadcast=broadcast), (server.sent(broadcast, state.server), state.round)
  if mesh and client.training and balance.pays(mesh, view, client_batch):
    trained = balance.train(
      client.training, mesh, view, context, server.received, *shared, cohort, keys, before
    )
  else:
    trained = map_clients(train, mesh, client_batch, shared, view, cohort, keys, before)
  uploads, after, info = checked_clients(client, state.broadcast, before, trained)
  if liars is not None and attack.forge is not None:
    key, uploads = key_of(ATTACK, state.key, state.round), constrain(uploads, mesh)
    of_model = client.needs.uploads_model
    uploads = constrain(forged(attack, key, uploads, liars[cohort], state.broadcast, of_model), mesh)
  losses = functools.cache(
    lambda: constrain(map_clients(judge, mesh, client_batch, shared, view, cohort, before), mesh)
  )
  # Replicated before and after: sums over a cohort that is split between devices would round differently.
  gathered = functools.cache(lambda: constrain(uploads, mesh))
  seen, sizes = constrain((cohort, view.size), mesh)
  feedback = Feedback(seen, sizes, state.round, losses, gathered, state.broadcast)
  coefficients, mixing_state = constrain(mixing.update(state.mixing, feedback), mesh)
  mixed, kept = uploads, state.aggregation
  if mixing.needs.covers is not None:
    mixed = without_unread(uploads, coefficients)
  if mixing.scale is not None:
    mixed = scaled(mixed, state.broadcast, constrain(mixing.scale(feedback), mesh))
  if aggregation.combine is None:
    aggregate = average(coefficients, mixed, state.broadcast, mesh)
  else:
    key, mixed = key_of(AGGREGATION, state.key, state.round), constrain(mixed, mesh)
    found = aggregation.combine(key, kept, coefficients, mixed, state.broadcast)
    aggregate, kept = constrain(checked_aggregate(mixed, kept, found), mesh)
  asked_for = (feedback,) if server.takes_feedback else ()
  moved = server.update(server_key, state.server, state.broadcast, aggregate, *asked_for)
  broadcast, server_state = checked_server((state.broadcast, state.server), moved)

  def scatter(everybody: jax.Array, some: jax.Array) -> jax.Array:
    return constrain(everybody.at[places].set(constrain(some, mesh)), mesh, everybody.shape[0])

  clients = jax.tree.map(scatter, state.clients, after)
  figures = () if mixing.figures is None else mixing.figures(feedback)
  asked = losses() if losses.cache_info().currsize else None
  return (
    State(state.key, state.round + 1, broadcast, server_state, mixing_state, clients, kept),
    RoundInfo(cohort, coefficients, asked, constrain(info, mesh), constrain(figures, mesh)),
  )


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
