"""Where the clients' states are: on the devices, or on the host and some on the devices for some rounds."""

from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from jax.sharding import Mesh

from fedjax_het.engine.cohort import CohortsAhead
from fedjax_het.engine.placement import over_clients, place, replicated
from fedjax_het.engine.state import State
from fedjax_het.errors import SettingError

PyTree = Any


class Visit(NamedTuple):
  """What the devices need for the rounds before `last`.

  Attributes:
    state: the state, with the states of some clients or of all.
    last: the round before which it has to be brought back.
    slots: where in it each client's is, int32 [K]; None where client k's is the k-th.
    ids: whose are in it, without those that only fill it up, int32 [n]; None for all.
  """

  state: State
  last: int
  slots: np.ndarray | None = None
  ids: np.ndarray | None = None


class States(Protocol):
  """Where the clients' states are."""

  @property
  def held(self) -> int | None:
    """How many the devices hold at once; None for all."""

  def bring(self, state: State, first: int, last: int) -> Visit:
    """What serves the rounds from `first` on, at most those before `last`."""

  def take_back(self, state: State, visit: Visit, after: State) -> State:
    """The state after the rounds of a visit, which left `after` on the devices."""

  def of(self, state: State, ids: Any) -> State:
    """The state with the states of these clients alone; with all where all are on the devices."""


class OnDevices:
  """All states lie on the devices."""

  held = None

  def bring(self, state: State, first: int, last: int) -> Visit:
    """See `States`."""
    return Visit(state, last)

  def take_back(self, state: State, visit: Visit, after: State) -> State:
    """See `States`."""
    return after

  def of(self, state: State, ids: Any) -> State:
    """See `States`."""
    return state


class OnHost:
  """The states of all clients are NumPy arrays [K, ...], of which those of some rounds' cohorts travel.

  Cohorts depend on (key, round) alone, so the host knows whose are needed. Every process holds all of them.

  Args:
    mesh: the devices.
    num_clients: K.
    cohort_size: S.
    held: states that the devices hold at once, S to K.

  Raises:
    SettingError: a round's cohort does not fit.
  """

  def __init__(self, mesh: Mesh, num_clients: int, cohort_size: int, held: int):
    """See the class."""
    if held < cohort_size:
      raise SettingError(
        "device_states", held, f"a round's cohort has {cohort_size} clients, each with its state",
        f"Use {cohort_size} or more, or leave it out to keep all {num_clients} on the devices.",
      )  # fmt: skip
    self.held, self._num_clients, self._mesh = held, num_clients, mesh
    self._cohorts = CohortsAhead(mesh, num_clients, cohort_size)
    self._whole = jax.jit(lambda tree: tree, out_shardings=replicated(mesh))

  def bring(self, state: State, first: int, last: int) -> Visit:
    """See `States`."""
    slots, visitors, count, end = np.full(self._num_clients, -1, np.int32), [], 0, first
    cohorts = self._cohorts.of(self._cohorts.raw(state.key), first)
    for cohort in cohorts[: last - first, 0]:
      new = cohort[slots[cohort] < 0]
      if count + len(new) > self.held:
        break
      slots[new] = np.arange(count, count + len(new))
      visitors.append(new)
      count, end = count + len(new), end + 1
    ids = np.concatenate(visitors)
    return Visit(self.of(state, np.resize(ids, self.held)), end, slots, ids)

  def take_back(self, state: State, visit: Visit, after: State) -> State:
    """See `States`."""
    ids = visit.ids
    assert ids is not None
    some = self._whole(after.clients) if jax.process_count() > 1 else after.clients

    def write(everybody: np.ndarray, own: jax.Array) -> np.ndarray:
      everybody[ids] = np.asarray(own)[: len(ids)]
      return everybody

    return after._replace(clients=jax.tree.map(write, state.clients, some))

  def of(self, state: State, ids: Any) -> State:
    """See `States`."""
    own = jax.tree.map(lambda leaf: leaf[np.asarray(ids)], state.clients)
    return state._replace(clients=place(own, over_clients(self._mesh, len(ids))))
