"""A step of a server that does not wait for a whole cohort, a pure function of the state.

Start B clients -> local training -> wait for the B uploads that arrive first -> mixing -> aggregation ->
server step. A client trains when it starts, and its upload waits in the state for the moment at which it
arrives. In the first step M clients start. See `parts.Asynchronous`.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh

from fedjax_het.data.container import FederatedData
from fedjax_het.engine.averages import arrived
from fedjax_het.engine.border import checked_loss
from fedjax_het.engine.cohort import START, key_of
from fedjax_het.engine.local_work import acting, local_work, scattered
from fedjax_het.engine.placement import constrain, map_clients, rounded
from fedjax_het.engine.pool import Flights
from fedjax_het.engine.round import RoundInfo, figures_of, round_step, sampling_of, server_step
from fedjax_het.engine.state import State
from fedjax_het.parts import Algorithm, Context, Draw, Feedback, Message, Pooled, PyTree
from fedjax_het.vectors import form_of_one, over, same_form

FIELDS = ("params", "extra", "even", "stats")  # that staleness weighs by what they have beside the broadcast


def step_of(algorithm: Algorithm) -> Callable[..., tuple[State, RoundInfo]]:
  """Returns the function that runs a round of an algorithm, see `round_step`."""
  return asynchronous_step if algorithm.asynchronous.overlaps else round_step


def asynchronous_step(
  algorithm: Algorithm, mesh: Mesh | None, buffer_size: int, client_batch: int | None, data: FederatedData,
  state: State, slots: None = None, _: int | None = None,
) -> tuple[State, RoundInfo]:  # fmt: skip
  """Runs one step of a server that waits for B uploads; arguments and results are those of `round_step`.

  All clients' states are in the state, in their order, so that there are no `slots`.

  The record is of the B clients whose uploads arrived. They are in the order in which they started, and
  their uploads are summed in it.
  """
  part, pool = algorithm.asynchronous, state.pool
  values = FIELDS if part.of_models else algorithm.client.needs.replaces
  room = part.concurrency - buffer_size
  batches = -(-room // buffer_size)  # that start in the first step before the last one
  flights = jax.tree.map(
    lambda leaf: jnp.concatenate([leaf, jnp.zeros((buffer_size, *leaf.shape[1:]), leaf.dtype)]), pool.waiting
  )
  flights = flights._replace(ids=flights.ids.at[room:].set(-1))

  def start(batch: int | jax.Array, carry: tuple[PyTree, Flights]) -> tuple[PyTree, Flights]:
    clients, flights = carry
    key = jax.random.fold_in(key_of(START, state.key, state.round), batch)
    ids = constrain(idle(key, flights.ids, data.num_clients, buffer_size), mesh)
    everybody: Any = None
    drawn = Draw(ids, everybody, everybody, everybody)
    work = local_work(algorithm, mesh, client_batch, data, state._replace(clients=clients), drawn)
    last = jnp.asarray(batch == batches)
    rows = jnp.where(last, room, batch * buffer_size) + jnp.arange(buffer_size)
    there = rows < jnp.where(last, part.concurrency, room)
    after = arrived(work.after, there, jax.tree.map(lambda leaf: leaf[work.places], clients))
    new = Flights(ids, jnp.full(buffer_size, state.round), pool.seconds[ids], work.uploads, work.info)
    into = jnp.where(there, rows, part.concurrency)  # out of range: not started
    put = lambda all_, some: all_.at[into].set(some, mode="drop")  # noqa: E731
    flights = jax.tree.map(put, flights, constrain(new, mesh))
    return scattered(clients, work.places, after, mesh), constrain(flights, mesh)

  if batches:
    first = jnp.where(state.round == 0, 0, batches)
    clients, flights = lax.fori_loop(first, batches + 1, start, (state.clients, flights))
  else:
    clients, flights = start(0, (state.clients, flights))
  order = jnp.argsort(flights.remaining, stable=True)
  here, left = jnp.sort(order[:buffer_size]), jnp.sort(order[buffer_size:])
  elapsed = jnp.maximum(flights.remaining[here].max(), 0.0)
  came = jax.tree.map(lambda leaf: leaf[here], flights)
  late = state.round - came.started
  uploads = constrain(as_of_now(values, state.broadcast, came.uploads, late == 0, part.weight(late)), mesh)
  state = state._replace(clients=clients)
  losses = functools.cache(lambda: losses_of(algorithm, mesh, client_batch, data, state, came.ids))
  sizes = constrain(data.clients(came.ids).size, mesh)
  feedback = Feedback(
    came.ids, sizes, state.round, losses, lambda: uploads, state.broadcast, None, came.info.steps
  )
  sampling = sampling_of(algorithm, data, state, buffer_size)
  after, coefficients = server_step(
    algorithm, mesh, state, feedback, uploads, data.num_clients, sampling=sampling
  )
  rest = jax.tree.map(lambda leaf: leaf[left], flights)
  kept = since(values, rest.uploads, state.broadcast, rest.started == state.round)
  remaining = rest.remaining - (elapsed + algorithm.system.server_seconds)
  waiting = constrain(rest._replace(uploads=kept, remaining=remaining), mesh)
  figures = {**(figures_of(algorithm, after, feedback) or {})}
  figures |= {"staleness": late.astype(jnp.float32).mean(), "stalest": late.max().astype(jnp.float32)}
  asked = losses() if losses.cache_info().currsize else None
  record = RoundInfo(came.ids, coefficients, asked, came.info, constrain(figures, mesh), elapsed=elapsed)
  if (liars := acting(algorithm, mesh, data, state)[1]) is not None:
    record = record._replace(dishonest=liars[came.ids])
  return after._replace(pool=pool._replace(waiting=waiting)), record


def as_of_now(
  values: Sequence[str], broadcast: Message, uploads: Message, new: jax.Array, weight: jax.Array
) -> Message:
  """Returns uploads as the server takes them: θ + s Δ for its present broadcast θ, and s w for own weights w.

  An upload that is new, with the weight 1, stays as it is, bit for bit.

  Args:
    values: the fields that have u itself in all uploads, so that Δ = u - θ; in the others an upload that is
      not new has the difference Δ = u - θ' from what its client received.
    broadcast: the server's present one.
    uploads: the uploads, each leaf [B, ...].
    new: whose clients trained on the present broadcast, so that the upload is u, bool [B].
    weight: s, float32 [B].
  """

  def one(field: str, own: jax.Array, base: jax.Array) -> jax.Array:
    whole = over(new | (field in values), own)
    moved = base + over(weight, own) * jnp.where(whole, own - base, own)
    return jnp.where(over(new & (weight == 1.0), own), own, rounded(moved, own.dtype))

  moved = of_fields(one, uploads, broadcast)
  if not isinstance(uploads.pooled, Pooled):
    return moved
  counted = jax.tree.map(lambda own: own * over(weight, own), uploads.pooled.weights)
  return moved._replace(pooled=uploads.pooled._replace(weights=counted))


def since(values: Sequence[str], uploads: Message, broadcast: Message, new: jax.Array) -> Message:
  """Returns waiting uploads as differences from what their clients received, u - θ.

  Args:
    values: the message's fields that have u itself in all uploads, see `as_of_now`.
    uploads: the uploads u, each leaf [n, ...].
    broadcast: θ, what the server sends in this round.
    new: whose clients trained on `broadcast`, bool [n]; the others' uploads are differences already.
  """

  def one(field: str, own: jax.Array, base: jax.Array) -> jax.Array:
    return own if field in values else jnp.where(over(new, own), own - base, own)

  return of_fields(one, uploads, broadcast)


def of_fields(
  function: Callable[[str, jax.Array, jax.Array], jax.Array], uploads: Message, broadcast: Message
) -> Message:
  """Applies a function to (field, a leaf [n, ...] of the uploads, the broadcast's), in all of `FIELDS`.

  A field that has not the broadcast's form is left as it is.
  """
  found = {}
  for field in FIELDS:
    own, base = getattr(uploads, field), getattr(broadcast, field)
    if same_form(form_of_one(own), base):
      found[field] = jax.tree.map(functools.partial(function, field), own, base)
  return uploads._replace(**found)


def losses_of(
  algorithm: Algorithm, mesh: Mesh | None, client_batch: int | None, data: FederatedData, state: State,
  ids: jax.Array,
) -> jax.Array:  # fmt: skip
  """Computes the losses F_i of clients at the server's present broadcast, float32 [B]."""
  client, server = acting(algorithm, mesh, data, state)[0], algorithm.server
  own = jax.tree.map(lambda leaf: leaf[ids], state.clients)

  def judge(shared, view, i, state):
    sent, round = shared
    now = Context(i, round, ids.shape[0], data.num_clients)
    return checked_loss(client.loss(server.received(sent, i), state, view, now))

  shared = (server.sent(state.broadcast, state.server), state.round)
  return constrain(map_clients(judge, mesh, client_batch, shared, data.clients(ids), ids, own), mesh)


def idle(key: jax.Array, working: jax.Array, num_clients: int, count: int) -> jax.Array:
  """Draws `count` of K clients, uniformly without replacement among those that do not work, int32 [count].

  Args:
    key: typed key.
    working: indices of those that work; -1 for nobody.
    num_clients: K, at least `count` more than there are that work.
    count: how many.
  """
  scores = jax.random.bits(key, (num_clients,), jnp.uint32) >> 1
  busy = jnp.zeros(num_clients, bool).at[jnp.where(working < 0, num_clients, working)].set(True, mode="drop")
  ranks = jnp.where(busy, -1, scores.astype(jnp.int32))
  return lax.top_k(ranks, count)[1].astype(jnp.int32)
