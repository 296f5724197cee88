"""Storage of the clients' states: all on the devices, or on the host with a few rounds' on the devices."""

import math
import os
import tempfile
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from fedjax_het.engine.cohort import CohortsAhead
from fedjax_het.engine.placement import over_clients, place, replicated
from fedjax_het.engine.state import State
from fedjax_het.errors import SettingError, folder_of

PyTree = Any


class Visit(NamedTuple):
  """A state on the devices that serves the rounds before `last`.

  Attributes:
    state: the state; its `clients` are those of some clients or of all.
    last: index of the first round that it does not serve.
    slots: position of each client's state in `state.clients`, int32 [K]; None if client k's is the k-th.
    ids: the clients in `state.clients` without padding, int32 [n]; None for all.
  """

  state: State
  last: int
  slots: np.ndarray | None = None
  ids: np.ndarray | None = None


class OnDevices:
  """Storage of all clients' states on the devices.

  Attributes:
    held: number of client states that the devices hold at once; None for all.
  """

  held: int | None = None

  def bring(self, state: State, first: int, last: int) -> Visit:
    """Brings a state to the devices that serves rounds from `first` on, at most those before `last`."""
    return Visit(state, last)

  def take_back(self, state: State, visit: Visit, after: State) -> State:
    """Returns the stored state after the rounds of a visit, which left `after` on the devices."""
    return after

  def of(self, state: State, ids: Any) -> State:
    """Returns the state with the states of these clients only; with all if all are on the devices."""
    return state

  def room(self, shape: Sequence[int], dtype: Any) -> np.ndarray:
    """Returns a new host array for one leaf of all clients' states.

    Raises:
      SettingError: the disk of `states_folder` is full.
    """
    return np.empty(shape, dtype)

  def kept(self, clients: PyTree) -> PyTree:
    """Moves all clients' states, which were read from a checkpoint, to this storage."""
    return clients


def check_places(device_states: int | None, folder: str | None) -> None:
  """Raises `SettingError` for a folder that does not exist, cannot be written, or would not be used."""
  if folder is None:
    return
  if not isinstance(folder, str | os.PathLike) or "\0" in os.fspath(folder):
    raise SettingError("states_folder", folder, "not the path of a folder", "Give a path.")
  path = folder_of("states_folder", folder)
  if not folder or not path.is_dir():
    problem = "is empty" if not folder else "no such folder"
    raise SettingError(
      "states_folder", folder, problem, "Name one that is there, on a disk with room for all."
    )
  try:
    tempfile.TemporaryFile(dir=path).close()
  except OSError as error:
    problem = f"nothing can be written there: {error.strerror}"
    raise SettingError("states_folder", folder, problem, "Use another folder.") from error
  if device_states is None:
    raise SettingError(
      "states_folder", folder, "without device_states all states are stored on the devices",
      "Set how many states the devices hold, as in device_states=64, or leave it out.",
    )  # fmt: skip


def check_held(held: int | None, cohort_size: int) -> None:
  """Raises `SettingError` if the devices may not even hold the states of one cohort."""
  if held is not None and held < cohort_size:
    raise SettingError(
      "device_states", held, f"a round's cohort has {cohort_size} clients, each with its state",
      f"Use {cohort_size} or more, or leave it out to keep all clients' on the devices.",
    )  # fmt: skip


class OnHost:
  """Storage of all clients' states on the host, NumPy arrays [K, ...]; the devices have those in use.

  Cohorts depend on (key, round) alone, so the host knows which states the next rounds need. Every process
  holds all states: in memory, or memory-mapped in files without a name in a folder, which disappear with the
  process.

  Args:
    mesh: the devices.
    num_clients: K.
    cohorts: draws the coming rounds' cohorts.
    held: number of states that the devices hold at once, at least those of one cohort.
    folder: a folder for the files, see `check_places`; None for memory.

  Raises:
    SettingError: `held` is smaller than a cohort.
  """

  def __init__(
    self, mesh: Mesh, num_clients: int, cohorts: CohortsAhead, held: int, folder: str | None = None
  ):
    """See the class."""
    check_held(held, cohorts.rows)
    self.folder = None if folder is None else folder_of("states_folder", folder)
    self.held, self._num_clients, self._mesh = held, num_clients, mesh
    self._cohorts = cohorts
    self._whole = jax.jit(lambda tree: tree, out_shardings=replicated(mesh))

  def bring(self, state: State, first: int, last: int) -> Visit:
    """See `OnDevices`."""
    slots, visitors, count, end = np.full(self._num_clients, -1, np.int32), [], 0, first
    cohorts = self._cohorts.of(self._cohorts.raw(state.key, state.participation), first)
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
    """See `OnDevices`."""
    ids = visit.ids
    assert ids is not None
    some = self._whole(after.clients) if jax.process_count() > 1 else after.clients

    def write(everybody: np.ndarray, own: jax.Array) -> np.ndarray:
      everybody[ids] = np.asarray(own)[: len(ids)]
      return everybody

    return after._replace(clients=jax.tree.map(write, state.clients, some))

  def of(self, state: State, ids: Any) -> State:
    """See `OnDevices`."""
    own = jax.tree.map(lambda leaf: leaf[np.asarray(ids)], state.clients)
    return state._replace(clients=place(own, over_clients(self._mesh, len(ids))))

  def room(self, shape: Sequence[int], dtype: Any) -> np.ndarray:
    """See `OnDevices`."""
    length = math.prod(shape) * np.dtype(dtype).itemsize
    if self.folder is None or not length:
      return np.empty(shape, dtype)
    with tempfile.TemporaryFile(dir=self.folder) as file:  # the array keeps the file open
      try:
        if hasattr(os, "posix_fallocate"):  # now: a disk that fills up later would kill the process
          os.posix_fallocate(file.fileno(), 0, length)
      except OSError as error:
        remedy = "Use a folder on a larger disk."
        problem = f"no room for {length:,} bytes of states: {error.strerror}"
        raise SettingError("states_folder", str(self.folder), problem, remedy) from error
      return np.asarray(np.memmap(file, dtype, "r+", shape=tuple(shape)))

  def kept(self, clients: PyTree) -> PyTree:
    """See `OnDevices`."""
    if self.folder is None:
      return clients

    def written(leaf: np.ndarray) -> np.ndarray:
      room = self.room(leaf.shape, leaf.dtype)
      room[:] = leaf
      return room

    return jax.tree.map(written, clients)


ClientStore = OnDevices | OnHost
