"""Detection of missing values as NumPy, pandas and Python write them."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedjax_het.errors import SettingError

TEXTS = ("", "nan", "NaN", "NaT", "<NA>", "None")
"""What an empty field, NaN, NaT, pandas' NA and None become where they are made texts."""


def missing(values: ArrayLike) -> np.ndarray:
  """Returns whether each value is missing, bool with the shape of `values`.

  Missing values are masked entries, NaN, NaT, None, pandas' NA, blank texts, and the texts in `TEXTS`.
  """
  given = np.asanyarray(values)
  plain = np.asarray(given)
  if plain.dtype.names:  # structured arrays, which hold no labels
    return np.zeros(plain.shape, bool)
  hidden = np.ma.getmaskarray(given)
  if plain.dtype.kind in "biu":
    return hidden
  if plain.dtype.kind in "SUOT":
    each = plain.astype(object).reshape(-1).tolist()
    return hidden | np.array([_is_missing(one) for one in each], bool).reshape(plain.shape)
  return hidden | np.asarray(plain != plain)  # NaN of any float type and NaT differ from themselves


def _is_missing(one: Any) -> bool:
  if isinstance(one, bytes):
    one = one.decode("latin-1")
  if one is None or isinstance(one, str):
    return one is None or one.strip() in TEXTS
  try:
    return bool(one != one)
  except TypeError:  # pandas' NA: comparisons with it have no truth value
    return True
  except ValueError:  # an array: its comparison has no single truth value
    return False


def check_present(y: np.ndarray, rows: np.ndarray | None = None) -> None:
  """Raises `SettingError`, naming the first such row, if a label is missing.

  Args:
    y: labels, [N, ...].
    rows: the rows that are used, int [n]; None: all.
  """
  if not len(y):
    return
  found = np.asarray(missing(y).reshape(len(y), -1).any(axis=1))
  at = np.flatnonzero(found) if rows is None else np.sort(rows[found[rows]])
  if not len(at):
    return
  label = y[at[0]]
  raise SettingError(
    "y", label.tolist() if isinstance(label, np.ndarray | np.generic) else label,
    f"the label of row {at[0]} is missing; {len(at)} of {len(y)} rows have none",
    "Before classes are numbered from 0, leave rows without a label out of x, y and parts, or impute their"
    " labels: np.unique would make a class of what is missing.",
  )  # fmt: skip
