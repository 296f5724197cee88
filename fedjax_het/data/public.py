"""Public examples, without labels, that a server part may hold: of a data set, or noise of its form."""

import os
from typing import Any

import jax
import numpy as np

from fedjax_het.data.container import FederatedData
from fedjax_het.data.filled import Scaling
from fedjax_het.data.natural import generator
from fedjax_het.data.scale import as_read, scale_of
from fedjax_het.data.sources import load
from fedjax_het.errors import SettingError
from fedjax_het.settings import Count

PyTree = Any


def public_examples(
  key: jax.Array,
  data: FederatedData,
  *,
  dataset: str | None = None,
  examples: Count = 1000,
  data_dir: str | os.PathLike[str] | None = None,
) -> PyTree:
  """Draws public examples, as models read them, each leaf [M, ...]: see `noise_like`, or rows of a data set.

  Columns of a table are standardised by the data set's own rows, and missing values filled by their means.

  Args:
    key: typed key of the draw.
    data: the clients' data, whose form the examples have.
    dataset: the data set that they are drawn from; None for noise.
    examples: M, the number of examples.
    data_dir: the folder of the data sets' folders.

  Raises:
    SettingError: the data set has other examples than the clients, or fewer than M.
    DataError: its files are missing or damaged.
  """
  if dataset is None:
    return noise_like(key, data, examples)
  source = load(dataset, data_dir)

  def form(x: PyTree, scale: float | None) -> PyTree:
    first = jax.tree.map(lambda leaf: as_read(np.asarray(leaf[:1]), scale), x)
    return jax.tree.map(lambda leaf: f"{leaf.dtype.kind} {leaf.shape[1:]}", first)

  if form(source.x, source.scale) != form(data.x, data.scale):
    problem = "has other examples than the clients, in shape or kind"
    raise SettingError("public.dataset", dataset, problem, "Name one with examples like theirs.")
  if examples > len(source.y):
    problem = f"{source.name} has {len(source.y)}"
    raise SettingError("public.examples", examples, problem, f"Use at most {len(source.y)}.")
  rows = np.sort(generator(key).permutation(len(source.y))[:examples])

  def taken(leaf: np.ndarray) -> np.ndarray:
    own = np.asarray(leaf[rows])
    if leaf.dtype.kind != "f":
      return own
    if source.standardize or np.isnan(leaf).any():
      own = Scaling.of(leaf.astype(np.float64), source.standardize)(own)
    return own.astype(np.float32)

  return as_read(jax.tree.map(taken, source.x), source.scale)


def noise_like(key: jax.Array, data: FederatedData, count: int) -> PyTree:
  """Draws examples uniformly between the least and the largest number of all clients' training examples.

  Args:
    key: typed key of the draw.
    data: the clients' data.
    count: M.

  Returns:
    Each leaf [M, ...]: floats as models read them, or whole numbers or bools in the same range.
  """
  rng, rows = generator(key), data.train.rows()

  def drawn(leaf: Any) -> np.ndarray:
    own, factor = np.asarray(leaf)[rows], scale_of(leaf, data.scale)
    least, most = own.min(), own.max()
    if own.dtype.kind == "b":
      return rng.integers(int(least), int(most), (count, *own.shape[1:]), np.int8, endpoint=True) > 0
    if factor is None and own.dtype.kind in "iu":
      return rng.integers(least, most, (count, *own.shape[1:]), np.int32, endpoint=True)
    unit = rng.random((count, *own.shape[1:]), np.float32)
    least, most = (np.float32(end) * np.float32(1.0 if factor is None else factor) for end in (least, most))
    return least + (most - least) * unit

  return jax.tree.map(drawn, data.x)
