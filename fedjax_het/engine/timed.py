"""Deadlines and over-selection: who of those that were asked arrives in time, see `System`."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_het.data.container import FederatedData
from fedjax_het.engine.clock import Work, done_after, work
from fedjax_het.parts import Algorithm, Draw, Participation, PyTree, System


class Timed(NamedTuple):
  """State of a participation by the clock: the part's own, and what each client's part in a round takes."""

  own: PyTree
  work: Work


def timed_maker(
  make: Callable[..., Algorithm], data: FederatedData, cohort_size: int
) -> Callable[..., Algorithm]:
  """Returns `make`, (**settings) -> algorithm, with `timed` around what it makes.

  Args:
    make: the function.
    data: clients' data, of which the shapes are used.
    cohort_size: S.
  """
  shapes = jax.eval_shape(lambda own: own, data)
  return lambda **settings: timed(make(**settings), shapes, cohort_size)


def timed(algorithm: Algorithm, data: FederatedData, cohort_size: int) -> Algorithm:
  """Returns the algorithm whose participation part knows the time; unchanged without deadline and selection.

  Args:
    algorithm: the parts, as `federated` makes them: one that selects has a participation part that draws.
    data: the clients' data, or their shapes.
    cohort_size: S.
  """
  system, inner = algorithm.system, algorithm.participation
  cohort_size = algorithm.clients_in_a_round(cohort_size)
  if not system.selects:
    return algorithm
  fixed = inner.rows is Participation._field_defaults["rows"]  # else the part draws how many are asked

  def rows(num_clients: int, cohort_size: int) -> int:
    return min(inner.rows(num_clients, int(asked(system, num_clients, cohort_size))), num_clients)

  def init(key: jax.Array, sizes: jax.Array, cohort_size: int) -> Timed:
    many: Any = asked(system, len(sizes), cohort_size)
    return Timed(inner.init(key, sizes, many), work(algorithm, key, sizes, data, cohort_size))

  def draw(key: jax.Array, round: jax.Array, state: Timed, num_clients: int, cohort_rows: int) -> Draw:
    assert inner.draw is not None
    found = inner.draw(key, round, state.own, num_clients, cohort_rows)
    contacted = found.present if found.contacted is None else found.contacted
    if fixed:  # the program may have rows for other members of a sweep
      contacted &= jnp.arange(cohort_rows) < asked(system, num_clients, cohort_size)
    own = jax.tree.map(lambda leaf: leaf[found.ids], state.work)
    wanted = jnp.clip(jnp.ceil(found.work * own.steps - 1e-4).astype(jnp.int32), 1, own.steps)
    taken = jnp.minimum(wanted, steps_before(system, own)) if system.has_deadline else wanted
    present, in_time = found.present & contacted, taken > 0
    if system.over_selects:
      present = first(done_after(own.transfer, own.step, taken), present & in_time, cohort_size)
      probability = jnp.full_like(found.probability, jnp.nan)  # depends on how fast the others are
    else:
      present &= in_time
      probability = jnp.where(in_time, found.probability, 0.0)
    # Half a step below the number, so that no rounding makes it another one.
    share = (taken.astype(jnp.float32) - 0.5) / own.steps.astype(jnp.float32)
    return found._replace(
      present=present, contacted=contacted, probability=probability, state=Timed(found.state, state.work),
      work=jnp.where(in_time & (taken < wanted), share, found.work),
    )  # fmt: skip

  part = inner._replace(draw=draw, init=init, rows=rows, cuts_work=True)
  return algorithm._replace(participation=part)


def asked(system: System, num_clients: int, cohort_size: int) -> int | jax.Array:
  """Computes ⌈o S⌉, at most K, with o to three decimals; the same in Python and in programs."""
  if not system.over_selects:
    return cohort_size
  if isinstance(system.over_selection, jax.Array):
    many = jnp.round(1000 * system.over_selection).astype(jnp.int32)
    return jnp.minimum(-(-many * cohort_size // 1000), num_clients)
  thousandths = int(np.round(np.float32(1000) * np.float32(system.over_selection)))
  return min(-(-thousandths * cohort_size // 1000), num_clients)


def steps_before(system: System, work: Work) -> jax.Array:
  """Returns how many of clients' steps fit before the deadline, int32; 0 for those that are too slow."""
  left = lax.optimization_barrier(jnp.float32(system.deadline) - work.transfer)
  fitting = jnp.clip(jnp.floor(left / work.step), 0.0, work.steps.astype(jnp.float32))
  return fitting.astype(jnp.int32)


def first(done: jax.Array, present: jax.Array, count: int) -> jax.Array:
  """Returns the `count` of those that are present that are done first, bool [R]; ties by their row."""
  order = jnp.argsort(jnp.where(present, done, jnp.inf), stable=True)
  places = jnp.zeros_like(order).at[order].set(jnp.arange(len(order)))
  return present & (places < count)
