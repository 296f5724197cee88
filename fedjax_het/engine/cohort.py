"""Draws the cohorts of clients that take part in the rounds."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh

from fedjax_het.engine.placement import replicated
from fedjax_het.parts import Algorithm, Draw, Participation, PyTree

FIRST_PASS, AGGREGATION, ATTACK, START = 3, 4, 7, 8  # `round_keys` has 0 to 2
# Folded into the run's key in the place of a round, which is below 2^31.
PARTICIPATION, DISHONEST, SAMPLE = 2**32 - 1, 2**31, 2**31 + 1
SYSTEM = 2**31 + 2  # folded into the key of the participation part, whose rounds are below 2^31 too
AHEAD = 128  # number of rounds whose cohorts are drawn at once


def sample_cohort(key: jax.Array, num_clients: int, cohort_size: int) -> jax.Array:
  """Samples S of K clients uniformly without replacement, int32 [S]; all in order if S = K.

  Small cohorts are the first S cards of a Fisher-Yates shuffle that stores only the moved cards, in time S²
  independent of K. For large cohorts all K clients are shuffled, in time K log K.

  In turn t the shuffle deals the card at place c_t, drawn from t to K - 1, and moves the card at place t
  there. The card at a place is therefore the one that the last earlier turn moved there, which came from that
  turn's place t, and so on. All these chains are followed to their ends together, in log S pointer jumps.
  """
  if cohort_size == num_clients:
    return jnp.arange(num_clients, dtype=jnp.int32)
  if cohort_size**2 > 256 * num_clients:
    return jax.random.choice(key, num_clients, (cohort_size,), replace=False).astype(jnp.int32)
  turns = jnp.arange(cohort_size, dtype=jnp.int32)
  places = jax.random.randint(key, (cohort_size,), turns, num_clients, jnp.int32)

  def put_by(place: jax.Array) -> jax.Array:
    """Returns for each turn t the last earlier turn that moved a card to `place`[t]; -1 if none did."""
    before = (places[None, :] == place[:, None]) & (turns[None, :] < turns[:, None])
    return jnp.where(before, turns[None, :], -1).max(1)

  last = put_by(turns)
  origin = jnp.where(last < 0, turns, last)
  for _ in range((cohort_size - 1).bit_length()):
    origin = lax.optimization_barrier(origin[origin])
  last = put_by(places)
  return jnp.where(last < 0, places, origin[last])


def round_keys(key: jax.Array, round: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Returns a round's keys of the cohort, of the clients (to fold their indices in) and of the server."""
  key = jax.random.fold_in(key, round)
  cohort, clients, server = (jax.random.fold_in(key, purpose) for purpose in range(3))
  return cohort, clients, server


def key_of(purpose: int, key: jax.Array, round: jax.Array) -> jax.Array:
  """Returns a round's key of what few methods draw; clients are folded into that of `FIRST_PASS`."""
  return jax.random.fold_in(jax.random.fold_in(key, round), purpose)


def cohort_of(key: jax.Array, round: jax.Array, num_clients: int, cohort_size: int) -> jax.Array:
  """Returns the cohort of a round, int32 [S], a function of the run's key and the round alone."""
  return sample_cohort(round_keys(key, round)[0], num_clients, cohort_size)


def drawn(key: jax.Array, purpose: int, num_clients: int, count: int | jax.Array) -> jax.Array:
  """Draws `count` of K clients for the whole run, by the run's key alone, bool [K]."""
  return jax.random.permutation(jax.random.fold_in(key, jnp.uint32(purpose)), num_clients) < count


def participation_key(key: jax.Array) -> jax.Array:
  """Returns the key of all draws of a participation part, for the run's key."""
  return jax.random.fold_in(key, PARTICIPATION)


def system_key(key: jax.Array) -> jax.Array:
  """Returns the key of the clients' speeds, for the key of the participation part."""
  return jax.random.fold_in(key, jnp.uint32(SYSTEM))


def draw_of(
  part: Participation, key: jax.Array, round: jax.Array, state: PyTree, num_clients: int, rows: int
) -> Draw:
  """Returns a round's draw for the run's key; by default the uniform cohort, whose other fields are None.

  Args:
    part: the participation part.
    key: the run's key.
    round: index of the round, int32 scalar.
    state: the part's state.
    num_clients: K.
    rows: R, the number of rows of a cohort.
  """
  if part.draw is None:
    everybody: Any = None
    return Draw(cohort_of(key, round, num_clients, rows), everybody, everybody, everybody, state)
  return part.draw(participation_key(key), round, state, num_clients, rows)


class CohortsAhead:
  """Draws the cohorts of coming rounds on the host, so that data can be brought to the devices in time.

  Args:
    mesh: the devices.
    num_clients: K.
    rows: R, the number of rows of a cohort.
    make: (**settings) -> algorithm, whose participation part draws; None for the uniform one.
    settings: name -> numbers of the runs, each with a leading axis of runs.

  Attributes:
    rows: R.
  """

  def __init__(
    self, mesh: Mesh, num_clients: int, rows: int, make: Callable[..., Algorithm] | None = None,
    settings: PyTree = (),
  ):  # fmt: skip
    def draw(settings: PyTree, key: jax.Array, state: PyTree, round: jax.Array) -> jax.Array:
      part = Participation() if make is None else make(**settings).participation
      return draw_of(part, key, round, state, num_clients, rows).ids

    self.rows = rows
    self._settings = {} if make is None else settings
    # Made when they are called, so that nothing is compiled before a run's arguments are checked.
    many = jax.vmap(jax.vmap(draw, (0, 0, 0, None)), (None, None, None, 0))
    self._draw = functools.cache(lambda: jax.jit(many))
    self._raw = functools.cache(lambda: jax.jit(jax.random.key_data, out_shardings=replicated(mesh)))
    self._whole = functools.cache(lambda: jax.jit(lambda tree: tree, out_shardings=replicated(mesh)))
    self._states: PyTree = ()  # of the participation parts, which do not change
    self._drawn = np.zeros(0), 0, np.zeros((0, 0, 0), np.int32)

  def raw(self, keys: jax.Array, states: PyTree = ()) -> np.ndarray:
    """Returns the raw data of M runs' typed keys, [M, ...]; of a single key [1, ...].

    Args:
      keys: the keys.
      states: the participation parts' states, with which the cohorts are drawn from now on.
    """
    raw = np.asarray(self._raw()(keys))
    if jax.tree.leaves(states):
      alone = keys.ndim == 0
      self._states = jax.tree.map(lambda leaf: np.asarray(leaf)[None] if alone else np.asarray(leaf),
                                  self._whole()(states))  # fmt: skip
    return raw.reshape(-1, raw.shape[-1])

  def of(self, keys: np.ndarray, first: int) -> np.ndarray:
    """Returns cohorts of at least AHEAD / 2 rounds from `first` on for raw keys, int32 [rounds, M, R]."""
    own, start, drawn = self._drawn
    if not (np.array_equal(keys, own) and 0 <= first - start <= AHEAD // 2):
      rounds = first + np.arange(AHEAD, dtype=np.int32)
      typed, states = jax.random.wrap_key_data(jnp.asarray(keys)), self._states
      states = jax.tree.map(lambda leaf: leaf[: len(keys)], states)
      drawn, start = np.asarray(self._draw()(self._settings, typed, states, rounds)), first
      self._drawn = keys, start, drawn
    return drawn[first - start :]
