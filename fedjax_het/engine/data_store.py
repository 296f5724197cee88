"""Storage of the clients' examples: all on the devices, or on the host and streamed to the devices in time.

Both storages provide the arrays for the next rounds and for an evaluation. Results do not depend on the
storage.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from fedjax_het.data.container import Array, FederatedData, Part
from fedjax_het.engine.cohort import CohortsAhead
from fedjax_het.engine.placement import place, replicated
from fedjax_het.errors import SettingError
from fedjax_het.modes import in_float32

PyTree = Any
PutFn = Callable[[Sequence[FederatedData]], PyTree]
PARTS = ("train", "valid", "test")


class Block(NamedTuple):
  """A block of clients with their examples on the devices, for an evaluation.

  Attributes:
    ids: the clients' indices, int32 [B]; None for all. The last one may be repeated as padding.
    data: arrays on the devices with their examples.
    real: number of clients without padding.
  """

  ids: Array | None
  data: PyTree
  real: int


class Window(NamedTuple):
  """Examples on the devices for the rounds first, ..., last - 1 of runs with these raw keys."""

  keys: np.ndarray
  first: int
  last: int
  data: PyTree

  def serves(self, keys: np.ndarray, round: int) -> bool:
    """Returns whether the window holds the examples of this round's cohorts."""
    return self.first <= round < self.last and np.array_equal(self.keys, keys)


def equal_blocks(ids: np.ndarray, each: int) -> Iterator[tuple[np.ndarray, int]]:
  """Yields blocks of `each` of some clients, int32 [each], padded with the last, and their real lengths."""
  for first in range(0, len(ids), each):
    yield ids[np.minimum(np.arange(first, first + each), len(ids) - 1)], min(each, len(ids) - first)


def indices(num_clients: int, ids: np.ndarray | None) -> np.ndarray:
  """Returns the indices of some clients, int32; of all K if `ids` is None."""
  return np.arange(num_clients, dtype=np.int32) if ids is None else np.asarray(ids, np.int32)


class Resident:
  """Storage of all examples on the devices.

  Args:
    data: the arrays on the devices.
    num_clients: K.
  """

  def __init__(self, data: PyTree, num_clients: int):
    self._data, self._num_clients = data, num_clients

  def rounds(self, keys: jax.Array, first: int, states: PyTree = ()) -> tuple[PyTree, int]:
    """Returns arrays on the devices for rounds from `first` on, and the first round that they do not serve.

    Args:
      keys: the runs' typed keys, or a single run's key.
      first: index of the round, from 0.
      states: the participation parts' states.
    """
    return self._data, np.iinfo(np.int32).max

  def blocks(self, *parts: str, at_most: int | None = None, ids: np.ndarray | None = None) -> Iterator[Block]:
    """Yields clients in blocks, with their examples of some parts.

    Args:
      parts: "train", "valid" or "test".
      at_most: largest number of clients in a block.
      ids: the clients' indices, int32; None for all.
    """
    chosen = indices(self._num_clients, ids)
    if ids is None and (at_most is None or at_most >= self._num_clients):
      yield Block(None, self._data, self._num_clients)
      return
    for own, real in equal_blocks(chosen, min(at_most or len(chosen), len(chosen))):
      yield Block(own, self._data, real)

  def shapes(self) -> PyTree:
    """Returns the shapes of the arrays that `rounds` returns."""
    return self._data


class Streamed:
  """Storage of the examples on the host; the next rounds' are copied to the devices during training.

  Cohorts depend on (key, round) alone, so the host knows them in advance. A window holds the examples of the
  cohorts of some rounds, for all runs on each data set. Two windows are on a device at once: one in use and
  the next.

  Args:
    data: all clients' data as NumPy arrays, memory-mapped ones too: one for all runs, or one per run.
    put: copies a part of each data set, all of one length, to the devices.
    mesh: the devices.
    ahead: draws the coming rounds' cohorts.
    device_rows: number of examples that a device holds at once, half in each window.
    runs: number of runs.
    cohorts: number of different cohorts per data set in a round.
    held: number of data sets that a device holds at once.
    beside: parts that an evaluation reads of each client in addition to the one that is judged.
    validation: whether rounds also read the clients' validation examples.

  Raises:
    SettingError: a window cannot hold every possible cohort, or the largest client's part.
  """

  def __init__(
    self, data: Sequence[FederatedData], put: PutFn, mesh: Mesh, ahead: CohortsAhead, device_rows: int, *,
    runs: int = 1, cohorts: int = 1, held: int = 1, beside: Sequence[str] = (), validation: bool = False,
  ):  # fmt: skip
    """See the class."""
    self._data, self._put, self._runs = data, put, runs
    self._capacity = device_rows // (2 * held)
    self._num_clients = data[0].num_clients
    self._shown = ("train", "valid") if validation else ("train",)
    self._limits = [max(own) for own in zip(*(each.limits for each in data))]
    limits = dict(zip(PARTS, self._limits))
    largest = max(1, *(sum(limits[own] for own in {part, *beside}) for part in PARTS))
    visitors = min(ahead.rows * cohorts, self._num_clients)
    most = max(int(np.sort(self._sizes(each))[-visitors:].sum()) for each in data)
    least = 2 * held * max(most, largest)
    if device_rows < least:
      of_each = f" of each of {held} members" if held > 1 else ""
      everything = held * len(data[0].y)
      enough = f"Use {least} or more. " if least < everything else ""
      raise SettingError(
        "device_rows", device_rows,
        f"half of them is a window, and the largest {visitors} clients{of_each} have {least // 2} examples",
        f"{enough}Leave it out to keep all {everything} on the device.",
      )  # fmt: skip
    self._cohorts = ahead
    self._everywhere = replicated(mesh)
    self._worker = ThreadPoolExecutor(1, "examples")
    self._now: Window | None = None
    self._next: Future[Window] | None = None

  def _sizes(self, data: FederatedData) -> np.ndarray:
    """Returns how many examples of each client rounds read, int [K]."""
    return np.sum([np.asarray(getattr(data, part).size) for part in self._shown], axis=0)

  def rounds(self, keys: jax.Array, first: int, states: PyTree = ()) -> tuple[PyTree, int]:
    """See `Resident`."""
    raw = self._cohorts.raw(keys, states)[: self._runs]
    if self._now is None or not self._now.serves(raw, first):
      self._now, coming = None, self._next and self._next.result()
      self._now = coming if coming and coming.serves(raw, first) else self._window(raw, first)
      self._next = self._worker.submit(self._window, raw, self._now.last)
    return self._now.data, self._now.last

  @in_float32()  # the context holds for one thread, and this runs in another
  def _window(self, keys: np.ndarray, first: int) -> Window:
    """Returns a window of as many rounds from `first` on as the capacity allows."""
    sizes = [self._sizes(each) for each in self._data]
    needed, rows = np.zeros((len(sizes), self._num_clients), bool), np.zeros(len(sizes), int)
    last = first
    drawn = self._cohorts.of(keys, first)
    for cohorts in drawn.reshape(len(drawn), len(sizes), -1):
      new = [np.unique(cohort[~own[cohort]]) for cohort, own in zip(cohorts, needed)]
      rows += [int(size[more].sum()) for size, more in zip(sizes, new)]
      if rows.max() > self._capacity:
        break
      for own, more in zip(needed, new):
        own[more] = True
      last += 1
    return Window(keys, first, last, self._gather([np.flatnonzero(own) for own in needed], *self._shown))

  def blocks(self, *parts: str, at_most: int | None = None, ids: np.ndarray | None = None) -> Iterator[Block]:
    """See `Resident`."""
    limit = sum(self._limits[PARTS.index(part)] for part in parts)
    count = len(chosen := indices(self._num_clients, ids))
    numbered = equal_blocks(chosen, min(count, self._capacity // max(limit, 1), at_most or count))

    @in_float32()
    def block(ids: np.ndarray, real: int) -> Block:
      gathered = self._gather([ids[:real]] * len(self._data), *parts)
      return Block(place(jnp.asarray(ids), self._everywhere), gathered, real)

    self._now = self._next = None  # frees memory for the blocks
    coming: Future[Block] | None = self._worker.submit(block, *next(numbered))
    while coming is not None:
      now, after = coming.result(), next(numbered, None)
      coming = self._worker.submit(block, *after) if after else None
      yield now

  def _gather(self, clients: Sequence[np.ndarray], *parts: str) -> PyTree:
    """Copies some clients' examples of some parts, of each data set, to the devices."""
    return self._put([self._some(data, own, parts) for data, own in zip(self._data, clients)])

  def _some(self, data: FederatedData, clients: np.ndarray, parts: Sequence[str]) -> FederatedData:
    """Joins some clients' examples of some parts, padded to the capacity."""
    index = np.concatenate([getattr(data, part).rows(clients) for part in parts])

    def rows(array: Any) -> np.ndarray:
      filled = np.zeros((self._capacity, *array.shape[1:]), array.dtype)
      filled[: len(index)] = array[index]
      return filled

    slices: dict[str, Any] = {}
    first = 0
    for part in parts:
      sizes = np.asarray(getattr(data, part).size)
      own, start = sizes[clients], np.zeros(self._num_clients, np.int32)
      start[clients] = first + np.cumsum(own) - own
      slices[part] = Part(start, sizes)
      first += int(own.sum())
    x, y = jax.tree.map(rows, (data.x, data.y))
    return dataclasses.replace(data, x=x, y=y, **slices)

  def shapes(self) -> PyTree:
    """See `Resident`; of a single run, and nothing is copied."""
    data = self._data[0]

    def of(leaf: Any, *rows: int) -> jax.ShapeDtypeStruct:
      shape = (*rows, *leaf.shape[len(rows) :])
      return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=self._everywhere)

    x, y = jax.tree.map(lambda leaf: of(leaf, self._capacity), (data.x, data.y))
    return dataclasses.replace(jax.tree.map(of, data), x=x, y=y)


DataStore = Resident | Streamed
