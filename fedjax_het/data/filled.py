"""Filling of missing values and standardisation of columns, by statistics of each client's training rows."""

from collections.abc import Callable, Iterable

import numpy as np

SHOWN = 10  # columns that a note names at most


def fill(
  x: np.ndarray,
  starts: Iterable[int],
  sizes: np.ndarray,
  standardize: list[int],
  tell: Callable[[str], object],
) -> None:
  """Replaces every client's NaN and standardises its columns, in place.

  A missing value becomes the mean over the client's training rows at the same position of the example. Where
  none of its training rows has a value there, it becomes 0, and `tell` is called.

  Args:
    x: floats, [N, ...], all clients' rows, one client after another.
    starts: each client's first row, int [K].
    sizes: each client's numbers of train, valid and test rows, which lie in this order, int [K, 3].
    standardize: the columns of x, [N, D], that become (x - mean) / deviation.
    tell: called with a sentence for each client whose training rows have no value at some position.
  """
  for client, (first, of_client) in enumerate(zip(starts, sizes)):
    own, num_train = slice(first, first + of_client.sum()), of_client[0]
    absent = np.isnan(x[own][:num_train]).all(axis=0)
    if absent.any():
      tell(f"client {client} {_lacks(absent, standardize)}")
    x[own] = _filled(x[own], num_train, standardize)


def _lacks(absent: np.ndarray, standardize: list[int]) -> str:
  if absent.ndim != 1:
    count = int(absent.sum())
    return (
      f"has no value in its training rows at {count} of {absent.size} places of an example, which become 0"
    )
  columns = np.flatnonzero(absent)
  more = f" and {len(columns) - SHOWN} more" if len(columns) > SHOWN else ""
  shown = ", ".join(map(str, columns[:SHOWN])) + more
  name = "column" if len(columns) == 1 else "columns"
  where = "in all its rows" if {*columns.tolist()} <= {*standardize} else "where a value is missing"
  return f"has no value of {name} {shown} of x in its training rows: it becomes 0 {where}"


def _filled(x: np.ndarray, num_train: int, standardize: list[int]) -> np.ndarray:
  """Fills NaN and standardises columns of one client's rows [n, ...], by its first `num_train` rows."""
  train, x = x[:num_train].astype(np.float64), x.astype(np.float64)
  present = ~np.isnan(train)
  mean = np.where(present, train, 0.0).sum(0) / np.maximum(present.sum(0), 1)
  x = np.where(np.isnan(x), mean, x)
  if standardize:
    constant = np.where(present, train, np.inf).min(0) >= np.where(present, train, -np.inf).max(0)
    deviation = np.where(constant, np.inf, x[:num_train].std(0))
    x[:, standardize] = ((x - mean) / deviation)[:, standardize]
  return x
