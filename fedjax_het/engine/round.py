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

from fedjax_het.data.container import Array, FederatedData
from fedjax_het.engine.averages import (
  arrived,
  average,
  over_present,
  scaled,
  unless_empty,
  voting,
  without_unread,
)
from fedjax_het.engine.border import (
  check_scalars,
  checked_aggregate,
  checked_draw,
  checked_server,
)
from fedjax_het.engine.cohort import (
  AGGREGATION,
  draw_of,
  key_of,
  round_keys,
)
from fedjax_het.engine.local_work import gradients_of, local_work, scattered
from fedjax_het.engine.placement import constrain
from fedjax_het.engine.state import State
from fedjax_het.parts import (
  Algorithm,
  Feedback,
  Info,
  Message,
  Sampling,
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

  Where a participation draws how many clients come, S is the number of rows that the program has for them,
  `Participation.rows`, and `present` says which of these are clients that came.

  Attributes:
    cohort: the clients' indices, int32 [S].
    coefficients: mixing coefficients p, float32 [S].
    losses: F_i before local training, float32 [S]; for a server that does not wait for whole cohorts, at its
      present broadcast. If the mixing part does not ask for them, they are None in the program that trains,
      and NaN in what the engine returns.
    clients: the clients' `Info`, each leaf [S].
    figures: diagnostics of the mixing, aggregation and server parts, see `Mixing.figures`; () for none.
    present: whose uploads arrived, bool [S]; () if all clients' do. The report of a client whose upload does
      not is 0 everywhere. In a round in which none does, nothing but the participation part's state changes,
      unless the aggregation part is `by_expected`.
    contacted: whom the server sent its broadcast, bool [S]; () if all clients.
    dishonest: which of the cohort's clients attack, bool [S]; () without an attack.
    gradients: gradients of mini-batches that each client computed for its upload, int32 [S]; () without a
      system part, and for a server that does not wait for whole cohorts.
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
  """Returns means of clients' values [..., rounds, S] over those that arrived, [..., rounds].

  The mean over nobody is NaN. Where there is an attack they are over the honest clients, or over the
  `dishonest` ones.
  """
  here = _here(infos, values, dishonest)
  if here is None:
    return values.mean(axis=-1)
  count = here.sum(axis=-1)
  return np.where(count > 0, values.sum(axis=-1, where=here) / count.clip(1), np.nan)


def of_rounds(infos: RoundInfo, values: Any, dishonest: bool = False) -> list[float]:
  """Returns `over_arrived` of one run, without the rounds in which nobody arrived."""
  here, found = _here(infos, values, dishonest), over_arrived(infos, values, dishonest)
  return (found if here is None else found[here.any(axis=-1)]).tolist()


def over_rounds(values: Any) -> float:
  """Returns the mean of what `of_rounds` found, NaN if no round has a value."""
  return float(np.mean(values)) if len(values) else float("nan")


def _here(infos: RoundInfo, values: Any, dishonest: bool) -> Any:
  """Returns which values [..., rounds, S] are averaged, bool of their shape; None for all."""
  apart, all_arrive = not isinstance(infos.dishonest, tuple), isinstance(infos.present, tuple)
  if all_arrive and not apart:
    return None
  here = np.ones(values.shape, bool) if all_arrive else infos.present
  return here & (infos.dishonest == dishonest) if apart else here


def round_step(
  algorithm: Algorithm,
  mesh: Mesh | None,
  cohort_size: int,
  client_batch: int | None,
  data: FederatedData,
  state: State,
  slots: Array | None = None,
  asked: int | None = None,
) -> tuple[State, RoundInfo]:
  """Runs one round of an algorithm, a pure function of the state.

  Args:
    algorithm: the parts.
    mesh: the devices that clients are spread over; None for the one that runs this.
    cohort_size: R, the rows of a cohort; S unless `Participation.rows` differs.
    client_batch: clients that a device trains at once; None for all.
    data: all clients' data.
    state: the state before the round.
    slots: position of each client's state in `state.clients`, int32 [K]; None if client k's is the k-th.
    asked: S; None for R.

  Returns:
    (state after the round, its record).
  """
  mixing, participation, before_round = algorithm.mixing, algorithm.participation, state
  drawn = draw_of(participation, state.key, state.round, state.participation, data.num_clients, cohort_size)
  if participation.draw is not None:
    drawn = constrain(checked_draw(state.participation, cohort_size, drawn), mesh)
  cohort, present = drawn.ids, drawn.present
  sampling = sampling_of(algorithm, data, state, asked or cohort_size)
  work = local_work(algorithm, mesh, client_batch, data, state, drawn, slots, sampling)
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
  state, coefficients = server_step(
    algorithm, mesh, state, feedback, uploads, data.num_clients, weights, sampling
  )
  state = unless_empty(state, before_round, present, algorithm.aggregation.by_expected)
  clients = scattered(state.clients, work.places, work.after, mesh)
  figures = figures_of(algorithm, state, feedback)
  found = work.losses() if work.losses.cache_info().currsize else None
  there = () if present is None else (present, drawn.contacted, () if drawn.beyond is None else drawn.beyond)
  record = RoundInfo(cohort, coefficients, found, constrain(info, mesh), constrain(figures, mesh), *there)
  if algorithm.attack.there:
    assert work.liars is not None
    record = record._replace(dishonest=work.liars[cohort])
  if algorithm.system.there:
    spent = gradients_of(algorithm.client.training, data, sizes, work.steps, info)
    record = record._replace(gradients=constrain(spent, mesh))
  return state._replace(clients=clients, participation=drawn.state), record


def sampling_of(algorithm: Algorithm, data: FederatedData, state: State, cohort_size: int) -> Sampling | None:
  """Returns what is guaranteed of a run's cohorts, for an aggregation part that is `by_expected`."""
  if not algorithm.aggregation.by_expected:
    return None
  return algorithm.sampled(data.num_clients, cohort_size, bool(jax.tree.leaves(state.clients)))


def figures_of(algorithm: Algorithm, state: State, feedback: Feedback) -> Any:
  """Returns what the server's parts report of a round, by name; () if nothing. `state` is that after."""
  mixing, server, own = algorithm.mixing.figures, algorithm.server.figures, algorithm.aggregation.figures
  found = {} if mixing is None else {**mixing(feedback)}
  if own is not None:
    found |= own(state.aggregation)
  if server is not None:
    told = server(state.server, feedback)
    check_scalars("server's figures", told)
    found |= told
  return found if mixing or server or own else ()


def server_step(
  algorithm: Algorithm, mesh: Mesh | None, state: State, feedback: Feedback, uploads: Message,
  num_clients: int, weights: jax.Array | None = None, sampling: Sampling | None = None,
) -> tuple[State, jax.Array]:  # fmt: skip
  """Runs what follows local training in a round: mixing, aggregation, and the server's step.

  Args:
    algorithm: the parts.
    mesh: the devices; None for the one that runs this.
    state: the state before the round, except that its broadcast has what a first pass found.
    feedback: what the mixing part, and a server part that asks for it, may look at.
    uploads: the cohort's uploads, each leaf [S, ...].
    num_clients: K.
    weights: what an update counts, float32 [S], whatever the mixing says and with any sum; None for p.
    sampling: what is guaranteed of the cohorts, for aggregation parts that are `by_expected`.

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
    votes, more = voting(present, len(coefficients)), [sampling] * aggregation.by_expected
    if aggregation.by_expected and present is not None:
      votes = present
    combined = aggregation.combine(key, kept, coefficients, mixed, state.broadcast, votes, *more)
    aggregate, kept = constrain(checked_aggregate(mixed, kept, combined), mesh)
  asked_for: tuple[Any, ...] = (feedback,) if server.takes_feedback else ()
  if server.takes_share:
    count: Any = len(coefficients) if present is None else present.sum()
    count = count if sampling is None else sampling.expected
    asked_for += (jnp.float32(count) / jnp.float32(num_clients),)
  key = round_keys(state.key, state.round)[2]
  moved = server.update(key, state.server, state.broadcast, aggregate, *asked_for)
  broadcast, server_state = checked_server((state.broadcast, state.server), moved)
  after = state._replace(
    round=state.round + 1, broadcast=broadcast, server=server_state, mixing=mixing_state, aggregation=kept
  )
  return after, coefficients


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
