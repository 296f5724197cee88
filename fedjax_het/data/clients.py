"""Operations on a federation's clients: selecting and splitting them, and counting their labels."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any

import jax
import numpy as np

from fedjax_het.data.container import FederatedData, Part, slices_of
from fedjax_het.data.federate import share
from fedjax_het.data.natural import generator
from fedjax_het.data.rows import as_array
from fedjax_het.errors import SettingError, check_key, check_range, check_whole, listed
from fedjax_het.settings import Range


def check_data(data: Any) -> None:
  """Raises `SettingError` unless `data` is a `FederatedData`; the error says how to make one."""
  if isinstance(data, FederatedData):
    return
  remedy = "Make it of examples and labels: fh.data.from_arrays(key, x, y, num_clients=10)."
  if all(hasattr(data, name) for name in ("x", "y", "num_classes")) and not isinstance(data, type):
    remedy = (
      "Deal the data set out first: fh.data.from_arrays(key, data.x, data.y, num_clients=10, "
      "num_classes=data.num_classes)."
    )
  raise SettingError("data", type(data).__name__, "is not a fh.data.FederatedData", remedy)


def split_clients(
  key: jax.Array, num_clients: int, fraction: Annotated[float, Range(above=0.0, below=1.0, on_host=True)]
) -> tuple[np.ndarray, np.ndarray]:
  """Splits client numbers 0, ..., K - 1 at random into kept ones and ⌊fraction·K⌋ others, both sorted.

  Args:
    key: typed key.
    num_clients: K.
    fraction: in (0, 1), the share of the clients that are set apart.

  Raises:
    SettingError: `key` is no key, or `fraction` is out of range or so small that no client is set apart.
  """
  key = check_key(key)
  count = count_apart(num_clients, fraction)
  order = generator(key).permutation(int(num_clients))
  return np.sort(order[count:]), np.sort(order[:count])


def label_counts(data: FederatedData) -> np.ndarray:
  """Counts each client's training examples of each class, int [K, C], by the labels it trains on.

  Args:
    data: all clients' data, with labels that are classes.

  Raises:
    SettingError: `data` is not a `FederatedData`.
  """
  check_data(data)
  owners = np.repeat(np.arange(data.num_clients), np.asarray(data.train.size))
  counts = np.zeros((data.num_clients, data.num_classes), int)
  np.add.at(counts, (owners, np.asarray(data.y)[data.train.rows()].astype(int)), 1)
  return counts


def count_apart(num_clients: int, fraction: float) -> int:
  """Returns the number of clients that `split_clients` sets apart of K; raises the same errors."""
  check_whole("num_clients", num_clients, 1)
  check_range("fraction", fraction, above=0.0, below=1.0, on_host=True)
  count = share(num_clients, fraction)
  if not count:
    raise SettingError(
      "fraction", fraction, f"of {num_clients} clients that is none", f"Use {1 / num_clients:.3g} or more."
    )
  return count


def select(data: FederatedData, clients: Sequence[int] | np.ndarray) -> FederatedData:
  """Returns the data of the given clients only, renumbered 0, 1, ... in the order given.

  Args:
    data: all clients' data, on the host.
    clients: numbers of at least one client, without repetition.

  Raises:
    SettingError: a client does not exist or is repeated.
  """
  check_data(data)
  ids = np.asarray(as_array("clients", listed("clients", clients, "clients' numbers")))
  if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
    remedy = "Give their numbers; of a mask, np.flatnonzero(mask)."
    raise SettingError("clients", ids.tolist(), "is no list of whole numbers", remedy)
  ids = ids.astype(int)
  known = (ids >= 0) & (ids < data.num_clients)
  if not len(ids) or not known.all() or len(set(ids.tolist())) < len(ids):
    raise SettingError(
      "clients", ids.tolist(), f"not some of {data.num_clients} clients, each once",
      f"Give numbers from 0 to {data.num_clients - 1}.",
    )  # fmt: skip
  parts = data.train, data.valid, data.test
  starts, sizes = (np.stack([np.asarray(part[field])[ids] for part in parts], axis=1) for field in range(2))
  rows = Part(starts.ravel(), sizes.ravel()).rows()
  if data.rows is not None:
    rows = np.asarray(data.rows)[rows]
  x, y = jax.tree.map(lambda leaf: np.asarray(leaf)[rows], (data.x, data.y))
  return dataclasses.replace(data, x=x, y=y, rows=None, encoder=data.encoder.select(ids), **slices_of(sizes))
