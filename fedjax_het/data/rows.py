"""Checks and conversions of examples, row numbers and splits that users pass in."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.errors import SettingError
from fedjax_het.modes import in_float32

PyTree = Any
NUMBERS = "Convert it: np.asarray(x, np.float32)."


def rows_of(x: PyTree) -> PyTree:
  """Returns examples as a tree of unmasked arrays of numbers, [N, ...], all with the same N > 0.

  Args:
    x: an array, a list of equally long rows, or a tree (dict, tuple, ...) of such.

  Raises:
    SettingError: x is not such a tree, is masked, or has arrays of different numbers of rows or no rows.
  """
  try:
    leaves = jax.tree.leaves(x, is_leaf=lambda node: isinstance(node, list))
    arrays = [*map(_array, leaves)]
    x = jax.tree.unflatten(jax.tree.structure(x, is_leaf=lambda node: isinstance(node, list)), arrays)
  except SettingError:
    raise
  except Exception as error:  # a dictionary whose keys cannot be sorted, for example
    raise SettingError("x", type(x).__name__, f"not a tree of arrays ({error})", NUMBERS) from error
  if not arrays:
    raise SettingError("x", x, "has no array", NUMBERS)
  if not count_rows(x):
    raise SettingError("x", [own.shape for own in arrays], "has no rows", "Give an example a row, [N, ...].")
  return x


def as_array(setting: str, values: Any, remedy: str = NUMBERS) -> np.ndarray:
  """Converts values to a NumPy array in this machine's byte order, with floats of 64 bits at most.

  Raises:
    SettingError: they cannot be converted, for example because rows have different lengths.
  """
  try:
    found = np.asanyarray(values)
  except ValueError as error:
    problem = "its rows are not equally long, or it cannot be read as an array"
    raise SettingError(setting, type(values).__name__, problem, "Pad or cut them.") from error
  except Exception as error:  # from an object of another library, or from a JAX key
    problem = f"cannot be read as an array ({type(error).__name__}: {error})"
    raise SettingError(setting, type(values).__name__, problem, remedy) from error
  if found.dtype.kind == "f" and found.dtype.itemsize > 8:
    return found.astype(np.float64)
  return found if found.dtype.isnative else found.astype(found.dtype.newbyteorder("="))


def _array(x: Any) -> np.ndarray:
  x = as_array("x", x)
  if x.ndim == 0 or not (x.dtype.kind in "biu" or jnp.issubdtype(x.dtype, jnp.floating)):
    raise SettingError("x", f"{x.dtype} {x.shape}", "not rows of numbers", NUMBERS)
  if np.ma.is_masked(x):
    remedy = "Write them as NaN: x.astype(np.float32).filled(np.nan)."
    raise SettingError("x", "a masked array", "has masked entries", remedy)
  return np.asarray(x)


@in_float32()
def as_held(x: np.ndarray, dtype: Any = None, name: str = "x") -> np.ndarray:
  """Converts numbers to the dtype in which a device holds them, mostly 32 bits wide.

  Args:
    x: the numbers.
    dtype: the wanted dtype; by default JAX's canonical dtype for that of x.
    name: the name of the setting in the error.

  Raises:
    SettingError: the dtype cannot hold one of the numbers, such as a time stamp in nanoseconds.
  """
  wanted = jax.dtypes.canonicalize_dtype(x.dtype if dtype is None else dtype)
  if wanted == x.dtype:
    return x
  with np.errstate(over="ignore"):
    held = x.astype(wanted)
  lost = held != x if wanted.kind in "iu" else np.isfinite(x) & ~np.isfinite(held)
  if lost.any():
    raise SettingError(
      name, x[lost][0].item(), f"{wanted} cannot hold it", "Scale it, or number what it stands for from 0."
    )
  return held


def count_rows(x: PyTree) -> int:
  """Returns N of examples [N, ...]; raises `SettingError` where a tree's arrays differ in N."""
  counts = {jax.tree_util.keystr(path): len(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(x)}
  if len({*counts.values()}) != 1:
    raise SettingError(
      "x", counts, "its arrays have different numbers of rows", "Give each example a row in every array."
    )
  return next(iter(counts.values()))


def part_of(rows: Any) -> np.ndarray:
  """Converts a client's row numbers to an array; an empty list becomes an empty int array."""
  rows = np.asarray(as_array("parts", rows, "Give a vector of row numbers for each client."))
  return rows.astype(int) if rows.shape == (0,) else rows


def check_finite(columns: np.ndarray, rows: np.ndarray) -> None:
  """Raises `SettingError` naming the row if a value is infinite.

  `columns`, [n, ...], are the rows `rows`, int [n], of x.
  """
  if not jnp.issubdtype(columns.dtype, jnp.floating):
    return
  found = np.argwhere(np.isinf(columns))
  if not len(found):
    return
  row = int(rows[found[0][0]])
  raise SettingError("x", "inf", f"row {row} is infinite", "Write NaN, which is filled, or drop the row.")


def check_parts(parts: Sequence[np.ndarray], num_examples: int) -> None:
  """Raises `SettingError` naming a row and its client unless the parts are disjoint sets of rows of x.

  Args:
    parts: row numbers of each client.
    num_examples: N; row numbers are 0, ..., N - 1.
  """
  for i, rows in enumerate(parts):
    if rows.ndim != 1 or (len(rows) and rows.dtype.kind not in "iu"):
      raise SettingError(
        "parts", f"{rows.dtype} {rows.shape}", f"client {i} has no vector of row numbers",
        "Give one, of a mask np.flatnonzero(mask).",
      )  # fmt: skip
  every, owner = np.concatenate(parts).astype(int), np.repeat(np.arange(len(parts)), [len(p) for p in parts])
  outside = np.flatnonzero((every < 0) | (every >= num_examples))
  if len(outside):
    raise SettingError(
      "parts", int(every[outside[0]]), f"client {owner[outside[0]]} names this row, and x has {num_examples}",
      f"Name rows 0 to {num_examples - 1}.",
    )  # fmt: skip
  twice = np.flatnonzero(np.bincount(every, minlength=num_examples) > 1)
  if len(twice):
    first, second = owner[every == twice[0]][:2]
    raise SettingError(
      "parts", int(twice[0]), f"clients {first} and {second} both have this row" if first != second
      else f"client {first} has this row twice", "Give every row to one client, once.",
    )  # fmt: skip


def check_split(split: np.ndarray, count: int) -> np.ndarray:
  """Returns a split as int8 [N]; raises `SettingError` unless each value is 0, 1 or -1."""
  split = np.asarray(as_array("split", split))
  if split.shape != (count,) or split.dtype.kind not in "iub" or not np.isin(split, (-1, 0, 1)).all():
    raise SettingError(
      "split", f"{split.dtype} {split.shape}", f"not 0 (train), 1 (test) or -1 (neither) for {count} rows",
      "Give one of them a row.",
    )  # fmt: skip
  return split.astype(np.int8)


def held_out_last(rows: np.ndarray, labels: np.ndarray, count: int) -> np.ndarray:
  """Reorders rows so that the last `count` have the labels in proportion; the order is otherwise kept.

  Args:
    rows: row numbers, int [n].
    labels: their labels, int [n].
    count: the number of rows to hold out.
  """
  classes, inverse, sizes = np.unique(labels, return_inverse=True, return_counts=True)
  wanted = count * sizes / max(len(rows), 1)
  quota = np.floor(wanted).astype(int)
  remainders = np.argsort(quota - wanted, kind="stable")
  quota[remainders[: count - quota.sum()]] += 1
  held = np.zeros(len(rows), bool)
  for c in range(len(classes)):
    held[np.flatnonzero(inverse == c)[: quota[c]]] = True
  return np.concatenate([rows[~held], rows[held]])


def in_a_line(data: Any) -> str:
  """Returns a `FederatedData` in a line: its clients, rows, examples and classes; no value is read."""
  sizes = [part.size for part in (data.train, data.valid, data.test)]
  known = all(isinstance(own, np.ndarray) for own in sizes)
  rows = " / ".join(f"{own.sum():,}" for own in sizes) if known else "? / ? / ?"
  leaves = [f"{leaf.dtype} {[*leaf.shape[1:]]}" for leaf in jax.tree.leaves(data.x) if hasattr(leaf, "dtype")]
  name = f"{data.name}: " if data.name else ""
  return (
    f"FederatedData({name}{data.num_clients} clients, {rows} rows to train / validate / test on, examples "
    f"{', '.join(leaves)}, {data.num_classes} classes)"
  )
