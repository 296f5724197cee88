"""What the clients of a cohort do with a broadcast: a first pass, local training, and what attackers send."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from fedjax_het.data.container import Array, ClientData, FederatedData
from fedjax_het.engine import balance
from fedjax_het.engine.averages import arrived, pooled, voting, without_absent
from fedjax_het.engine.border import checked_clients, checked_first_pass, checked_loss
from fedjax_het.engine.clock import steps_of
from fedjax_het.engine.cohort import ATTACK, FIRST_PASS, key_of, round_keys
from fedjax_het.engine.dishonest import corrupted, dishonest, forged
from fedjax_het.engine.placement import constrain, map_clients
from fedjax_het.engine.shown import shown_validation
from fedjax_het.engine.state import State
from fedjax_het.parts import (
  Algorithm,
  ClientUpdate,
  Context,
  Draw,
  Info,
  LocalTraining,
  Message,
  PyTree,
  Sampling,
)


class Work(NamedTuple):
  """What a cohort's clients did with a broadcast.

  Attributes:
    uploads: what arrives of them, each leaf [S, ...]; 0 for an absent client's.
    after: the clients' next states, each leaf [S, ...]; an absent client's is that of before.
    info: their reports, each leaf [S].
    broadcast: what they trained on, with what a first pass found.
    view: their data.
    places: the positions of their states, int32 [S].
    losses: () -> F_i before local training, float32 [S]; computed once, and only if it is called.
    liars: which clients attack, bool [K]; None without an attack.
    steps: the local steps that they were let take, int32 [S]; None for all of theirs.
  """

  uploads: Message
  after: PyTree
  info: Info
  broadcast: Message
  view: ClientData
  places: jax.Array
  losses: Any
  liars: jax.Array | None
  steps: jax.Array | None


def local_work(
  algorithm: Algorithm, mesh: Mesh | None, client_batch: int | None, data: FederatedData, state: State,
  drawn: Draw, slots: Array | None = None, sampling: Sampling | None = None,
) -> Work:  # fmt: skip
  """Runs what the clients of a cohort do with the state's broadcast, and what dishonest ones send instead.

  Args:
    algorithm: the parts.
    mesh: the devices; None for the one that runs this.
    client_batch: clients that a device trains at once; None for all.
    data: all clients' data.
    state: the state before the round.
    drawn: the cohort.
    slots: see `round_step`.
    sampling: of an aggregation part that is `by_expected`: clients are then told the expected number of those
      that arrive, so that no upload depends on who else does; None for others.
  """
  server, attack = algorithm.server, algorithm.attack
  cohort, present, cohort_size = drawn.ids, drawn.present, drawn.ids.shape[0]
  clients_key = round_keys(state.key, state.round)[1]
  view = data.clients(cohort)
  places = cohort if slots is None else slots[cohort]
  before = jax.tree.map(lambda leaf: leaf[places], state.clients)
  client, liars = acting(algorithm, mesh, data, state)

  def keys_of(key: jax.Array) -> jax.Array:
    return jax.vmap(lambda i: jax.random.fold_in(key, i))(cohort)

  def context(i: jax.Array, round: jax.Array, count: int | jax.Array = cohort_size) -> Context:
    return Context(i, round, count, data.num_clients)

  def survey(shared, own, i, key, own_state):
    sent, *now = shared
    assert client.first_pass is not None
    return client.first_pass(key, server.received(sent, i), own_state, own, context(i, *now))

  def train(shared, own, i, key, own_state, *last):
    sent, *now = shared
    return client.update(key, server.received(sent, i), own_state, own, context(i, *now), *last)

  def judge(shared, own, i, own_state):
    sent, *now = shared
    return checked_loss(client.loss(server.received(sent, i), own_state, own, context(i, *now)))

  keys, now = keys_of(clients_key), [state.round]
  if present is not None:
    now.append(present.sum(dtype=jnp.int32) if sampling is None else jnp.float32(sampling.expected))
  shared = (server.sent(state.broadcast, state.server), *now)
  if client.first_pass is not None:
    first_keys = keys_of(key_of(FIRST_PASS, state.key, state.round))
    surveyed = map_clients(survey, mesh, client_batch, shared, view, cohort, first_keys, before)
    found = checked_first_pass(state.broadcast, surveyed)
    found = found._replace(weights=arrived(found.weights, present))
    broadcast = state.broadcast._replace(pooled=pooled(found, state.broadcast.pooled, mesh))
    state, shared = state._replace(broadcast=broadcast), (server.sent(broadcast, state.server), *now)
  cut: Any = () if present is None or client.training is None else (shortened(client, view, drawn),)
  if present is None and mesh and client.training and balance.pays(mesh, view, client_batch):
    trained = balance.train(
      client.training, mesh, view, context, server.received, shared[0], state.round, cohort, keys, before
    )
  else:
    trained = map_clients(train, mesh, client_batch, shared, view, cohort, keys, before, *cut)
  uploads, after, info = checked_clients(client, state.broadcast, before, trained)
  if liars is not None and attack.forge is not None:
    key, uploads = key_of(ATTACK, state.key, state.round), constrain(uploads, mesh)
    of_model, here = client.needs.uploads_model, voting(present, cohort_size)
    uploads = constrain(forged(attack, key, uploads, liars[cohort], state.broadcast, here, of_model), mesh)
  (uploads, info), after = arrived((uploads, info), present), arrived(after, present, before)

  @functools.cache
  def losses() -> jax.Array:
    found = map_clients(judge, mesh, client_batch, shared, view, cohort, before)
    return without_absent(constrain(found, mesh), present)

  steps = cut[0] if cut else None
  return Work(uploads, after, info, state.broadcast, view, places, losses, liars, steps)


def acting(
  algorithm: Algorithm, mesh: Mesh | None, data: FederatedData, state: State
) -> tuple[ClientUpdate, jax.Array | None]:
  """Returns the client part, with what dishonest clients do, and who they are, bool [K]; or None."""
  client, attack = algorithm.client, algorithm.attack
  liars = constrain(dishonest(state.key, attack.share, data.num_clients), mesh) if attack.there else None
  if liars is not None and attack.data is not None:
    client = corrupted(client, attack, liars, data.num_classes)
  return shown_validation(client, data), liars


def scattered(everybody: PyTree, places: jax.Array, some: PyTree, mesh: Mesh | None) -> PyTree:
  """Returns all clients' states [K, ...] with those of a cohort [S, ...] in their places, int32 [S]."""

  def scatter(everybody: jax.Array, some: jax.Array) -> jax.Array:
    return constrain(everybody.at[places].set(constrain(some, mesh)), mesh, everybody.shape[0])

  return jax.tree.map(scatter, everybody, some)


def gradients_of(
  training: LocalTraining | None, data: FederatedData, sizes: jax.Array, steps: jax.Array | None, info: Info
) -> jax.Array:
  """Returns the gradients of mini-batches that clients computed, int32 [S]: those of their steps.

  Args:
    training: how the clients train; None for a client part that says only afterwards how many they were.
    data: the clients' data.
    sizes: the cohort's numbers of examples, int32 [S].
    steps: the local steps that they took, int32 [S]; None for all.
    info: the cohort's reports.
  """
  if training is None:
    return info.steps
  return training.gradients * (steps_of(training, sizes, data) if steps is None else steps)


def shortened(client: ClientUpdate, view: ClientData, drawn: Draw) -> jax.Array:
  """Returns the steps after which the clients stop, int32 [S]: their share of all, rounded up, at least 1.

  A client that does not arrive takes none, as nothing of its work is left.
  """
  assert client.training is not None
  steps = client.training.steps
  whole = jax.vmap(lambda n: jnp.int32(steps(balance.sized(view, n))))(view.size)
  done = jnp.clip(jnp.ceil(drawn.work * whole - 1e-4).astype(jnp.int32), 1, whole)
  return jnp.where(drawn.present, done, 0)
