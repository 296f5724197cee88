"""One round: the only place where clients are trained.

Sample the cohort -> gather its states -> local training -> mixing -> weighted sum -> server step -> scatter
the states back.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh

from fedjax_het.data.container import FederatedData
from fedjax_het.engine import balance
from fedjax_het.engine.cohort import sample_cohort
from fedjax_het.engine.placement import map_clients, over_clients, replicated
from fedjax_het.federated import Algorithm, Feedback, Info, State


class RoundInfo(NamedTuple):
  """What happened in a round: cohort int32 [S], coefficients float32 [S], the clients' `Info` [S]."""

  cohort: jax.Array
  coefficients: jax.Array
  clients: Info


def round_step(
  algorithm: Algorithm,
  mesh: Mesh,
  cohort_size: int,
  client_batch: int | None,
  data: FederatedData,
  state: State,
) -> tuple[State, RoundInfo]:
  """One round of `algorithm`, a pure function of the state."""
  client, mixing, server = algorithm
  key = jax.random.fold_in(state.key, state.round)
  cohort_key, clients_key, server_key = (jax.random.fold_in(key, purpose) for purpose in range(3))

  cohort = sample_cohort(cohort_key, data.num_clients, cohort_size)
  view = data.clients(cohort)
  own_states = jax.tree.map(lambda leaf: leaf[cohort], state.clients)
  keys = jax.vmap(lambda i: jax.random.fold_in(clients_key, i))(cohort)

  def train(shared, own, key, own_state):
    broadcast, round = shared
    return client.update(key, broadcast, own_state, own, round)

  def losses() -> jax.Array:
    return map_clients(client.loss, mesh, client_batch, state.broadcast, view)

  shared = (state.broadcast, state.round)
  if client.training is not None and balance.pays(mesh, view, client_batch):
    uploads, own_states, info = balance.train(client.training, mesh, view, *shared, keys, own_states)
  else:
    uploads, own_states, info = map_clients(train, mesh, client_batch, shared, view, keys, own_states)
  feedback = Feedback(cohort, view.size, state.round, losses, uploads, state.broadcast)
  coefficients, mixing_state = mixing.update(state.mixing, feedback)
  aggregate = jax.tree.map(lambda leaf: jnp.tensordot(coefficients, leaf, axes=1), uploads)
  broadcast, server_state = server.update(server_key, state.server, state.broadcast, aggregate)

  def scatter(everybody: jax.Array, some: jax.Array) -> jax.Array:
    some = lax.with_sharding_constraint(some, replicated(mesh))
    placed = over_clients(mesh, everybody.shape[0])
    return lax.with_sharding_constraint(everybody.at[cohort].set(some), placed)

  clients = jax.tree.map(scatter, state.clients, own_states)
  return (
    State(state.key, state.round + 1, broadcast, server_state, mixing_state, clients),
    RoundInfo(cohort, coefficients, info),
  )
