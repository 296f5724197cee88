"""Where the examples are while a run needs them: on the devices, or on the host and brought over in time.

Both ways answer the same two questions: which arrays serve the next rounds, and which serve an evaluation.
A run's numbers do not depend on the answer, since a client's examples are the same wherever they lie.
"""

import dataclasses
import functools
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from fedjax_het.data.container import FederatedData, Part
from fedjax_het.engine.cohort import cohort_of
from fedjax_het.engine.placement import place, replicated
from fedjax_het.errors import SettingError

PARTS = ("train", "valid", "test")
AHEAD = 128  # rounds whose cohorts are drawn at once


class Block(NamedTuple):
  """What serves an evaluation of some clients.

  Attributes:
    ids: the clients' numbers, int32 [B]; None for all. The last one may be repeated at the end.
    data: arrays on the devices that hold their examples.
    real: clients before the repetitions.
  """

  ids: jax.Array | None
  data: FederatedData
  real: int


class Window(NamedTuple):
  """What serves the rounds first, ..., last - 1 of the run with this key (its raw data)."""

  key: np.ndarray
  first: int
  last: int
  data: FederatedData

  def serves(self, key: np.ndarray, round: int) -> bool:
    """Whether it has this round's cohort."""
    return self.first <= round < self.last and np.array_equal(self.key, key)


class Examples(Protocol):
  """Where the examples are."""

  def rounds(self, key: np.ndarray, first: int) -> tuple[FederatedData, int]:
    """Arrays on the devices for the rounds from `first` on, and the round before which they end."""

  def blocks(self, *parts: str) -> Iterator[Block]:
    """All clients in blocks, with their examples of some parts ("train", "valid", "test")."""

  def shapes(self) -> FederatedData:
    """The shapes of what `rounds` gives."""


class Resident:
  """All examples lie on every device.

  Args:
    data: all clients' data.
    mesh: the devices.
  """

  def __init__(self, data: FederatedData, mesh: Mesh):
    """Brings them over."""
    self.data = place(data, replicated(mesh))

  def rounds(self, key: np.ndarray, first: int) -> tuple[FederatedData, int]:
    """See `Examples`."""
    return self.data, np.iinfo(np.int32).max

  def blocks(self, *parts: str) -> Iterator[Block]:
    """See `Examples`."""
    yield Block(None, self.data, self.data.num_clients)

  def shapes(self) -> FederatedData:
    """See `Examples`."""
    return self.data


class Streamed:
  """Examples stay on the host; a window of rounds brings its cohorts' over while the one before trains.

  Cohorts depend on (key, round) alone, so the host knows them ahead. Two windows are on a device at once.

  Args:
    data: all clients' data, NumPy arrays (memory-mapped ones too).
    cohort_size: S.
    device_rows: examples that a device holds at once, half of them in each window.
    mesh: the devices.
    together: whether an evaluation looks at a client's training examples too.

  Raises:
    SettingError: a window cannot hold every possible cohort, or the largest client's part.
  """

  def __init__(
    self, data: FederatedData, cohort_size: int, device_rows: int, mesh: Mesh, together: bool = False
  ):
    """See the class."""
    self._data, self._mesh, self._capacity = data, mesh, device_rows // 2
    self._sizes = {part: np.asarray(getattr(data, part).size) for part in PARTS}
    train, *judged = data.limits
    largest = max(train + max(judged) if together else max(data.limits), 1)
    least = 2 * max(int(np.sort(self._sizes["train"])[-cohort_size:].sum()), largest)
    if device_rows < least:
      raise SettingError(
        "device_rows", device_rows, f"the largest {cohort_size} clients, twice, have {least} examples",
        f"Use {least} or more, or leave it out to keep all {len(data.y)} on the device.",
      )  # fmt: skip
    self._cohorts = jax.jit(
      jax.vmap(functools.partial(cohort_of, num_clients=data.num_clients, cohort_size=cohort_size), (None, 0))
    )
    self._worker = ThreadPoolExecutor(1, "examples")
    self._now: Window | None = None
    self._next: Future[Window] | None = None

  def rounds(self, key: np.ndarray, first: int) -> tuple[FederatedData, int]:
    """See `Examples`."""
    if self._now is None or not self._now.serves(key, first):
      self._now, coming = None, self._next and self._next.result()
      self._now = coming if coming and coming.serves(key, first) else self._window(key, first)
      self._next = self._worker.submit(self._window, key, self._now.last)
    return self._now.data, self._now.last

  def _window(self, key: np.ndarray, first: int) -> Window:
    """As many rounds from `first` on as the capacity allows."""
    last, rows, sizes = first, 0, self._sizes["train"]
    needed = np.zeros(len(sizes), bool)
    for cohort in np.asarray(
      self._cohorts(jax.random.wrap_key_data(jnp.asarray(key)), first + np.arange(AHEAD))
    ):
      new = cohort[~needed[cohort]]
      rows += int(sizes[new].sum())
      if rows > self._capacity:
        break
      needed[new] = True
      last += 1
    return Window(key, first, last, self._gather(np.flatnonzero(needed), "train"))

  def blocks(self, *parts: str) -> Iterator[Block]:
    """See `Examples`; blocks of equally many clients, so that one program serves all."""
    limit = sum(self._data.limits[PARTS.index(part)] for part in parts)
    count = self._data.num_clients
    each = min(count, self._capacity // max(limit, 1))

    def block(first: int) -> Block:
      ids = np.minimum(np.arange(first, first + each), count - 1)
      gathered = self._gather(np.unique(ids), *parts)
      return Block(place(jnp.asarray(ids), replicated(self._mesh)), gathered, min(each, count - first))

    self._now = self._next = None  # room for the blocks
    coming = self._worker.submit(block, 0)
    for first in range(0, count, each):
      now = coming.result()
      if first + each < count:
        coming = self._worker.submit(block, first + each)
      yield now

  def _gather(self, clients: np.ndarray, *parts: str) -> FederatedData:
    """Some clients' examples of some parts, side by side, filled up to the capacity, on the devices."""
    index = np.concatenate([getattr(self._data, part).rows(clients) for part in parts])

    def rows(array: Any) -> np.ndarray:
      filled = np.zeros((self._capacity, *array.shape[1:]), array.dtype)
      filled[: len(index)] = array[index]
      return filled

    slices: dict[str, Any] = {}
    first = 0
    for part in parts:
      sizes, start = self._sizes[part][clients], np.zeros(self._data.num_clients, np.int32)
      start[clients] = first + np.cumsum(sizes) - sizes
      slices[part] = Part(start, np.asarray(getattr(self._data, part).size))
      first += int(sizes.sum())
    x, y = jax.tree.map(rows, (self._data.x, self._data.y))
    gathered = dataclasses.replace(self._data, x=x, y=y, **slices)
    return place(gathered, replicated(self._mesh))

  def shapes(self) -> FederatedData:
    """See `Examples`."""
    sharding = replicated(self._mesh)

    def shape(leaf: Any, rows: bool) -> jax.ShapeDtypeStruct:
      return jax.ShapeDtypeStruct(
        (self._capacity, *leaf.shape[1:]) if rows else leaf.shape, leaf.dtype, sharding=sharding
      )

    others = jax.tree.map(lambda leaf: shape(leaf, False), self._data)
    x, y = jax.tree.map(lambda leaf: shape(leaf, True), (self._data.x, self._data.y))
    return dataclasses.replace(others, x=x, y=y)
