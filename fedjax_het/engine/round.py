"""One round of federated training, a pure function of the state.

Sample the cohort -> gather its states -> a first pass, for methods that have one -> local training -> mixing
-> aggregation -> server step -> scatter the states back.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh

from fedjax_het.data.container import Array, ClientData, FederatedData
from fedjax_het.engine import balance
from fedjax_het.engine.averages import (
  arrived,
  average,
  over_present,
  pooled,
  scaled,
  unless_empty,
  voting,
  without_absent,
  without_unread,
)
from fedjax_het.engine.border import (
  check_scalars,
  checked_aggregate,
  checked_clients,
  checked_draw,
  checked_first_pass,
  checked_loss,
  checked_server,
)
from fedjax_het.engine.clock import steps_of
from fedjax_het.engine.cohort import (
  AGGREGATION,
  ATTACK,
  FIRST_PASS,
  draw_of,
  key_of,
  round_keys,
)
from fedjax_het.engine.dishonest import corrupted, dishonest, forged
from fedjax_het.engine.placement import constrain, map_clients
from fedjax_het.engine.shown import shown_validation
from fedjax_het.engine.state import State
from fedjax_het.parts import (
  Algorithm,
  ClientUpdate,
  Context,
  Draw,
  Feedback,
  Info,
  LocalTraining,
  Message,
  PyTree,
)

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
    figures: diagnostics of the mixing and the server part, see `Mixing.figures`; () if there are none.
    present: whose uploads arrived, bool [S]; () if all clients' do. The report of a client whose upload does
      not is 0 everywhere. In a round in which none does, nothing but the participation part's state changes.
    contacted: whom the server sent its broadcast, bool [S]; () if all clients.
    dishonest: which of the cohort's clients attack, bool [S]; () without an attack.
    gradients: gradients of mini-batches that each client computed for its upload, int32 [S]; () without a
      system part.
    beyond: how many clients were drawn and had no row, int32 scalar; () if there are rows for all.
    elapsed: simulated seconds from the server's last step until the last of these uploads arrived, float32
      scalar, for a server that does not wait for whole cohorts; else ().
  """

  cohort: jax.Array
  coefficients: jax.Array
  losses: Any
  clients: Info
  figures: Any = ()
  present: Any = ()
  contacted: Any = ()
  beyond: Any = ()
  dishonest: Any = ()
  gradients: Any = ()
  elapsed: Any = ()


def over_arrived(infos: RoundInfo, values: Any, dishonest: bool = False) -> Any:
  """Returns means of clients' values [..., rounds, S] over those that arrived, [..., rounds]; 0 over nobody.

  Where there is an attack they are over the honest clients, or over the `dishonest` ones.
  """
  apart, all_arrive = not isinstance(infos.dishonest, tuple), isinstance(infos.present, tuple)
  if all_arrive and not apart:
    return values.mean(axis=-1)
  here = np.ones(values.shape, bool) if all_arrive else infos.present
  if apart:
    here = here & (infos.dishonest == dishonest)
  return values.sum(axis=-1, where=here) / here.sum(axis=-1).clip(1)


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
  mixing, participation, before_round = algorithm.mixing, algorithm.participation, state
  drawn = draw_of(participation, state.key, state.round, state.participation, data.num_clients, cohort_size)
  if participation.draw is not None:
    drawn = constrain(checked_draw(state.participation, cohort_size, drawn), mesh)
  cohort, present = drawn.ids, drawn.present
  work = local_work(algorithm, mesh, client_batch, data, state, drawn, slots)
  state, uploads, info = state._replace(broadcast=work.broadcast), work.uploads, work.info

  # Replicated before and after: sums over a cohort that is split between devices would round differently.
  gathered = functools.cache(lambda: constrain(uploads, mesh))
  seen, sizes = constrain((cohort, work.view.size), mesh)
  feedback = Feedback(seen, sizes, state.round, work.losses, gathered, state.broadcast, present, info.steps,
                      drawn.probability)  # fmt: skip
  weights = None
  if participation.unbiased:
    assert mixing.population is not None
    weights = constrain(
      mixing.population(jnp.asarray(data.train.size))[cohort] * (1.0 / drawn.probability), mesh
    )
  state, coefficients = server_step(algorithm, mesh, state, feedback, uploads, weights)
  state = unless_empty(state, before_round, present)
  clients = scattered(state.clients, work.places, work.after, mesh)
  figures = figures_of(algorithm, state, feedback)
  asked = work.losses() if work.losses.cache_info().currsize else None
  there = () if present is None else (present, drawn.contacted, () if drawn.beyond is None else drawn.beyond)
  record = RoundInfo(cohort, coefficients, asked, constrain(info, mesh), constrain(figures, mesh), *there)
  if algorithm.attack.there:
    assert work.liars is not None
    record = record._replace(dishonest=work.liars[cohort])
  if algorithm.system.there:
    spent = gradients_of(algorithm.client.training, data, sizes, work.steps, info)
    record = record._replace(gradients=constrain(spent, mesh))
  return state._replace(clients=clients, participation=drawn.state), record


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
  drawn: Draw, slots: Array | None = None,
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

  keys, now = (
    keys_of(clients_key),
    (state.round,) if present is None else (state.round, present.sum(dtype=jnp.int32)),
  )
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


def figures_of(algorithm: Algorithm, state: State, feedback: Feedback) -> Any:
  """Returns what mixing and server part report of a round, by name; () if nothing. `state` is that after."""
  mixing, server = algorithm.mixing.figures, algorithm.server.figures
  found = {} if mixing is None else {**mixing(feedback)}
  if server is not None:
    own = server(state.server, feedback)
    check_scalars("server's figures", own)
    found |= own
  return found if mixing or server else ()


def server_step(
  algorithm: Algorithm, mesh: Mesh | None, state: State, feedback: Feedback, uploads: Message,
  weights: jax.Array | None = None,
) -> tuple[State, jax.Array]:  # fmt: skip
  """Runs what follows local training in a round: mixing, aggregation, and the server's step.

  Args:
    algorithm: the parts.
    mesh: the devices; None for the one that runs this.
    state: the state before the round, except that its broadcast has what a first pass found.
    feedback: what the mixing part, and a server part that asks for it, may look at.
    uploads: the cohort's uploads, each leaf [S, ...].
    weights: what an update counts, float32 [S], whatever the mixing says and with any sum; None for p.

  Returns:
    (state with one more finished round, and the clients' states unchanged; coefficients p, float32 [S]).
  """
  mixing, server, aggregation = algorithm.mixing, algorithm.server, algorithm.aggregation
  present = feedback.present
  coefficients, mixing_state = constrain(mixing.update(state.mixing, feedback), mesh)
  coefficients = over_present(coefficients if weights is None else weights, present)
  mixed, kept = uploads, state.aggregation
  if mixing.needs.covers is not None:
    mixed = without_unread(uploads, coefficients)
  if mixing.scale is not None:
    mixed = scaled(mixed, state.broadcast, constrain(mixing.scale(feedback), mesh))
  if weights is not None:
    total = arrived(weights, present).sum()
    mixed = scaled(mixed, state.broadcast, jnp.full_like(weights, total))
  if aggregation.combine is None:
    aggregate = average(coefficients, mixed, state.broadcast, mesh, present)
  else:
    key, mixed = key_of(AGGREGATION, state.key, state.round), constrain(mixed, mesh)
    combined = aggregation.combine(
      key, kept, coefficients, mixed, state.broadcast, voting(present, len(coefficients))
    )
    aggregate, kept = constrain(checked_aggregate(mixed, kept, combined), mesh)
  asked_for = (feedback,) if server.takes_feedback else ()
  key = round_keys(state.key, state.round)[2]
  moved = server.update(key, state.server, state.broadcast, aggregate, *asked_for)
  broadcast, server_state = checked_server((state.broadcast, state.server), moved)
  after = state._replace(
    round=state.round + 1, broadcast=broadcast, server=server_state, mixing=mixing_state, aggregation=kept
  )
  return after, coefficients


def shortened(client: ClientUpdate, view: ClientData, drawn: Draw) -> jax.Array:
  """Returns the steps after which the clients stop, int32 [S]: their share of all, rounded up, at least 1.

  A client that does not arrive takes none, as nothing of its work is left.
  """
  assert client.training is not None
  steps = client.training.steps
  whole = jax.vmap(lambda n: jnp.int32(steps(balance.sized(view, n))))(view.size)
  done = jnp.clip(jnp.ceil(drawn.work * whole - 1e-4).astype(jnp.int32), 1, whole)
  return jnp.where(drawn.present, done, 0)


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
