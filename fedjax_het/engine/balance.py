r"""Balances local training over devices that do not divide the cohort, by cutting clients into two pieces.

McNaughton's wrap-around rule (Scheduling with deadlines and loss functions, Management Science 1959). All
clients' steps, laid end to end, are divided into one window of C = max(⌈Σ_i n_i / D⌉, max_i n_i) steps for
each device. A client across the border of windows d and d + 1 takes its first steps on device d + 1, before
all other work there, and its last steps on device d, after all other work there. It is never on two devices
at once, because n_i <= C.

The work in progress of each cut client moves from device d + 1 to d once a round, when the longest first
piece is done. Five equal clients on two devices take the time of 2.5 clients instead of 3.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from fedjax_het.data.container import ClientData
from fedjax_het.engine.packing import packing
from fedjax_het.engine.placement import AXIS
from fedjax_het.local import unknown
from fedjax_het.parts import Context, LocalTraining, Message, Sent

PyTree = Any


class Windows(NamedTuple):
  """Assignment of the clients' steps to devices, for S clients and D devices.

  Attributes:
    first: index of the first client of each device's window, int32 [D].
    last: index after its last client, int32 [D].
    head: steps of the first client that this device does before handing it over, int32 [D]; 0 if not cut.
    tail: steps of the last client that another device did, int32 [D]; 0 if not cut.
    handover: number of steps after which cut clients are handed over, int32 scalar.
    finisher: the device on which each client finishes, int32 [S].
  """

  first: jax.Array
  last: jax.Array
  head: jax.Array
  tail: jax.Array
  handover: jax.Array
  finisher: jax.Array


def windows(steps: jax.Array, devices: int) -> Windows:
  """Computes each device's window of the clients' steps (int32 [S], each >= 1), see the module."""
  end = jnp.cumsum(steps)
  begin = end - steps
  capacity = jnp.maximum(-(-end[-1] // devices), steps.max())
  left = jnp.arange(devices) * capacity
  right = left + capacity
  first = jnp.searchsorted(end, left, side="right")
  last = jnp.searchsorted(begin, right, side="left")
  begin_first = begin[jnp.minimum(first, len(steps) - 1)]
  end_first = end[jnp.minimum(first, len(steps) - 1)]
  cut_left = (first < last) & (begin_first < left)
  head = jnp.where(cut_left, end_first - left, 0)
  tail = jnp.roll(head, -1).at[-1].set(0)
  return Windows(first, last, head, tail, head.max(), begin // capacity)


def pays(mesh: Mesh, view: ClientData, client_batch: int | None) -> bool:
  """Returns whether cutting saves time: several devices, one client at a time, an uneven division."""
  return mesh.size > 1 and client_batch == 1 and not (view.uniform and len(view.size) % mesh.size == 0)


def train(
  training: LocalTraining,
  mesh: Mesh,
  view: ClientData,
  context: Callable[[jax.Array, jax.Array], Context],
  received: Callable[[Sent, jax.Array], Message],
  sent: Sent,
  round: jax.Array,
  cohort: jax.Array,
  keys: jax.Array,
  states: PyTree,
) -> PyTree:
  """Trains a cohort, and returns (uploads, states, infos), each leaf [S, ...] in the cohort's order.

  Args:
    training: local training in pieces.
    mesh: the D devices.
    view: the cohort's training examples.
    context: (client, round) -> the client's context.
    received: (all that is sent, client) -> the client's message.
    sent: all that the server sends.
    round: index of the round, int32 scalar.
    cohort: the clients' indices, int32 [S].
    keys: the clients' keys [S].
    states: the clients' states, each leaf [S, ...].
  """
  count, devices = len(view.size), mesh.size
  slots = min(count, -(-count // devices) + 1) if view.uniform else count
  steps = jax.vmap(lambda n: jnp.int32(training.steps(sized(view, n))))(view.size)
  plan = windows(steps, devices)

  def on_device(shared):
    plan, sent, round, x, y, start, size, cohort, keys, states, steps = shared
    d = lax.axis_index(AXIS)
    first, last, head, tail = plan.first[d], plan.last[d], plan.head[d], plan.tail[d]

    def client(j):
      i = jnp.minimum(first + j, count - 1)
      own = dataclasses.replace(view, x=x, y=y, start=start[i], size=size[i])
      state = jax.tree.map(lambda leaf: leaf[i], states)
      return keys[i], received(sent, cohort[i]), state, own, context(cohort[i], round)

    def run_steps(j, work, from_, to):
      return training.run_steps(*client(j), work, from_, to)

    def begin(j):
      _, broadcast, state, _, where = client(j)
      return training.start(broadcast, state, where)

    def end(j, work):
      _, broadcast, state, own, where = client(j)
      return training.finish(broadcast, state, own, where, work)

    def steps_of(j):
      return steps[jnp.minimum(first + j, count - 1)]

    is_tail = (first + 1 == last) & (tail > 0)
    early = jnp.where(head > 0, head, jnp.minimum(plan.handover, steps_of(0)))
    early = jnp.where((first < last) & ~is_tail, early, 0)

    def phase(turn, carry):
      """Trains only the first client before the handover (turn 0), then its rest and the others (turn 1)."""

      def step(j, carry):
        work, received, results = carry
        cut = late & (first + j == last - 1) & (tail > 0)
        goes_on = late & (j == 0)
        work = lax.cond(goes_on, lambda: work, lambda: begin(j))
        work = lax.cond(cut, lambda: received, lambda: work)
        from_ = jnp.where(cut, tail, jnp.where(goes_on, early, 0))
        work = run_steps(j, work, from_, jnp.where(late, steps_of(j), early))
        results = lax.cond(
          late,
          lambda: [leaf.at[j].set(one) for leaf, one in zip(results, packed.pack(end(j, work)))],
          lambda: results,
        )
        return work, received, results

      late = turn == 1
      left, right = jnp.where(late & (head > 0), 1, 0), jnp.where(late, last - first, 1)
      work, received, results = lax.fori_loop(left, right, step, carry)

      def hand_over():
        return lax.ppermute(work, AXIS, [(i + 1, i) for i in range(devices - 1)])

      return work, lax.cond(late, lambda: received, hand_over), results

    work = begin(0)
    packed = packing(jax.eval_shape(lambda: end(0, work)))
    # A loop of two turns, so that the clients' steps are compiled once.
    return packed.unpack(lax.fori_loop(0, unknown(2), phase, (work, work, packed.room(slots)))[2])

  shared = (plan, sent, round, view.x, view.y, view.start, view.size, cohort, keys, states, steps)
  mapped = jax.shard_map(on_device, mesh=mesh, in_specs=(P(),), out_specs=P(AXIS), check_vma=False)
  slot = plan.finisher * slots + jnp.arange(count) - plan.first[plan.finisher]
  return jax.tree.map(lambda leaf: leaf[slot], mapped(shared))


def sized(view: ClientData, size: jax.Array) -> ClientData:
  """Returns a client of `view` with this size, for functions that only use the size."""
  return dataclasses.replace(view, start=jnp.int32(0), size=size)
