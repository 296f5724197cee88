"""The flat container: all clients' examples in one array, where each client has a few slices.

Sizes of real clients differ by factors of a hundred, so clients are not padded to the largest one: client i's
training examples are rows `train.start[i] : train.start[i] + train.size[i]`, and likewise for its validation
and test parts.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.data.encoder import Encoder
from fedjax_het.data.rows import (
  in_a_line,
)
from fedjax_het.data.scale import as_read

Array = jax.Array | np.ndarray
PyTree = Any


class Part(NamedTuple):
  """One slice of the flat arrays for each client: `start` and `size`, int32, each [K] (or scalars)."""

  start: Array
  size: Array

  def rows(self, clients: np.ndarray | None = None) -> np.ndarray:
    """Returns the row numbers of some clients (by default all), client after client, int [n], on the host."""
    starts, sizes = (np.asarray(own)[slice(None) if clients is None else clients] for own in self)
    return np.repeat(starts - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum())


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ClientData:
  """One client's view of the flat arrays.

  Attributes:
    x: all examples, [N, ...] or a tree of such arrays, as stored.
    y: all labels, [N, ...].
    start: first row of this client, int32 scalar.
    size: number of rows, int32 scalar.
    limit: static upper bound of `size` over all clients.
    uniform: static; True where every client has exactly `limit` rows.
    scale: static; the factor that examples are multiplied by when a batch is read, see `scale_of`.
    rows: the row of x and y at each position, see `FederatedData`.
    change: static; (index, x, y) -> (x, y), what becomes of rows as they are read; None for rows as they are.
    validation: the client's validation rows, where a method's `Needs.sees_data` asks for them; else None.
  """

  x: PyTree
  y: Array
  start: Array
  size: Array
  limit: int = dataclasses.field(metadata={"static": True})
  uniform: bool = dataclasses.field(metadata={"static": True})
  scale: float | None = dataclasses.field(default=None, metadata={"static": True})
  rows: Array | None = None
  change: Callable[..., Any] | None = dataclasses.field(default=None, metadata={"static": True})
  validation: "ClientData | None" = None

  @property
  def length(self) -> int | Array:
    """The client's number of rows, a Python int where all clients have equally many (static loops)."""
    return self.limit if self.uniform else self.size

  def block(self, most: int) -> int:
    """Returns how many rows to put through a model at once when a whole client is evaluated, 1 to `most`.

    Where all clients are equally large this is all of their rows. Otherwise it is a sixteenth of the largest
    client, but at least 16 rows, because most clients are far smaller than the largest.
    """
    wanted = self.limit if self.uniform else max(-(-self.limit // 16), 16)
    return max(min(wanted, self.limit, most), 1)

  def take(self, index: jax.Array) -> tuple[PyTree, jax.Array]:
    """Returns examples and labels, [B, ...] each, of this client's rows `index`, int [B], in [0, limit)."""
    rows = self.start + index
    if self.rows is not None:
      rows = jnp.asarray(self.rows).at[rows].get(mode="clip")
    x, y = jax.tree.map(lambda leaf: jnp.asarray(leaf).at[rows].get(mode="clip"), (self.x, self.y))
    x = as_read(x, self.scale)
    return (x, y) if self.change is None else self.change(index, x, y)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, repr=False)
class FederatedData:
  """All clients' data in flat arrays, as a pytree. `federate` makes it of NumPy arrays on the host.

  Attributes:
    x: examples, [N, ...], uint8 (read as float32, see `scale`), float32, or int32 ids such as tokens; or a
      tree of such arrays, such as tokens and their mask.
    y: labels, [N, ...], of the task's dtype, such as int32 [N] for classes.
    train, valid, test: each client's slices; `valid` may be empty.
    num_classes: static; number of classes, labels, tokens or numbers, see `federate`.
    limits: static; the largest client's number of rows in (train, valid, test).
    uniform: static; whether all clients have equally many rows in (train, valid, test).
    name: static; the data set's name.
    scale: static; the factor that examples are multiplied by when a batch is read; None chooses it by dtype
      and shape, see `scale_of`.
    weights: static; those of the task that `federate` was given, see `Task`; a model must have the same.
    rows: int32 [N], the row of x and y at each position of this run's order, where several runs share x and
      y. None, which `federate` gives, is the identity.
    encoder: static; names of clients and labels, and how rows became x.
  """

  x: PyTree
  y: Array
  train: Part
  valid: Part
  test: Part
  num_classes: int = dataclasses.field(metadata={"static": True})
  limits: tuple[int, int, int] = dataclasses.field(metadata={"static": True})
  uniform: tuple[bool, bool, bool] = dataclasses.field(metadata={"static": True})
  name: str = dataclasses.field(default="", metadata={"static": True})
  scale: float | None = dataclasses.field(default=None, metadata={"static": True})
  rows: Array | None = None
  weights: tuple[float, ...] | None = dataclasses.field(default=None, metadata={"static": True})
  encoder: Encoder = dataclasses.field(default=Encoder(), metadata={"static": True})
  __repr__ = in_a_line

  @property
  def num_clients(self) -> int:
    """The number of clients K."""
    return self.train.start.shape[0]

  def clients(self, ids: jax.Array, part: str = "train") -> ClientData:
    """Returns stacked views of the clients `ids` ([S]) for the part "train", "valid" or "test".

    All views share `x` and `y`, which are not stacked: `jax.vmap` takes `in_axes=view_axes(...)`.
    """
    which = ("train", "valid", "test").index(part)
    slices = (self.train, self.valid, self.test)[which]
    return ClientData(
      self.x, self.y, slices.start[ids], slices.size[ids], self.limits[which], self.uniform[which],
      self.scale, self.rows,
    )  # fmt: skip


def view_axes(view: ClientData) -> ClientData:
  """Returns the `in_axes` that map over stacked views: the rows are shared and the slices are mapped."""
  return dataclasses.replace(view, x=None, y=None, rows=None, start=0, size=0)  # type: ignore[arg-type]


def slices_of(sizes: np.ndarray) -> dict[str, Any]:
  """Returns the slice fields of `FederatedData` for clients laid out in order.

  `sizes`, int [K, 3], are each client's numbers of train, valid and test rows.
  """
  starts = np.concatenate([[0], np.cumsum(sizes.ravel())[:-1]]).reshape(sizes.shape)
  parts = (Part(starts[:, j].astype(np.int32), sizes[:, j].astype(np.int32)) for j in range(3))
  alike = (sizes == sizes[0]).all(0)
  return dict(zip(("train", "valid", "test"), parts)) | {
    "limits": tuple(sizes.max(0).tolist()),
    "uniform": tuple(alike.tolist()),
  }
