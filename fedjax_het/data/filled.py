"""Filling of missing values and standardisation of columns, by statistics of training rows."""

import dataclasses
from collections.abc import Callable, Iterable

import numpy as np

SHOWN = 10  # columns that a note names at most


@dataclasses.dataclass(frozen=True, eq=False)
class Scaling:
  """Constants of the training rows by which missing values are filled and columns are standardised.

  Attributes:
    mean: what a missing value becomes, float64 [G, ...]: G = K, each client's own, or G = 1 for all clients.
    deviation: what columns are divided by, float64 [G, ...]; infinite where a column becomes 0.
    standardize: the columns that become (x - mean) / deviation; the others are only filled.
  """

  mean: np.ndarray
  deviation: np.ndarray
  standardize: tuple[int, ...] = ()

  @classmethod
  def of(cls, train: np.ndarray, standardize: Iterable[int]) -> "Scaling":
    """Computes the constants of training rows, float64 [n, ...], NaN where a value is missing; G = 1."""
    present = ~np.isnan(train)
    mean = np.where(present, train, 0.0).sum(0) / np.maximum(present.sum(0), 1)
    constant = np.where(present, train, np.inf).min(0) >= np.where(present, train, -np.inf).max(0)
    deviation = np.where(constant, np.inf, np.where(present, train, mean).std(0))
    return cls(mean[None], deviation[None], tuple(standardize))

  def __call__(self, x: np.ndarray) -> np.ndarray:
    """Returns rows [n, ...] filled and standardised by the constants of the one group, float64."""
    (mean,), (deviation,), columns = self.mean, self.deviation, [*self.standardize]
    x = np.where(np.isnan(x), mean, x.astype(np.float64))
    if columns:
      x[:, columns] = ((x - mean) / deviation)[:, columns]
    return x


def fill(
  x: np.ndarray,
  starts: Iterable[int],
  sizes: np.ndarray,
  standardize: list[int],
  tell: Callable[[str], object],
  pooled: bool = False,
) -> Scaling:
  """Replaces every client's NaN and standardises its columns, in place.

  A missing value becomes the mean over the client's training rows at the same position of the example. Where
  none of its training rows has a value there, it becomes 0, and `tell` is called.

  Args:
    x: floats, [N, ...], all clients' rows, one client after another.
    starts: each client's first row, int [K].
    sizes: each client's numbers of train, valid and test rows, which lie in this order, int [K, 3].
    standardize: the columns of x, [N, D], that become (x - mean) / deviation.
    tell: called with a sentence for each client whose training rows have no value at some position, unless
      they are `pooled`.
    pooled: whether the statistics are of all clients' training rows together.

  Returns:
    The constants, of each client or of all.
  """
  spans = [(slice(first, first + own.sum()), own[0]) for first, own in zip(starts, sizes)]
  if pooled:
    train = np.concatenate([x[own][:num_train] for own, num_train in spans]).astype(np.float64)
    scaling = Scaling.of(train, standardize)
    for own, _ in spans:
      x[own] = scaling(x[own])
    return scaling
  found = []
  for client, (own, num_train) in enumerate(spans):
    absent = np.isnan(x[own][:num_train]).all(axis=0)
    if absent.any():
      tell(f"client {client} {_lacks(absent, standardize)}")
    found.append(Scaling.of(x[own][:num_train].astype(np.float64), standardize))
    x[own] = found[-1](x[own])
  mean, deviation = (np.concatenate([getattr(one, name) for one in found]) for name in ("mean", "deviation"))
  return Scaling(mean, deviation, tuple(standardize))


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
