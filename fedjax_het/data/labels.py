"""What labels and partitions must be, before anything learns from them."""

from collections.abc import Sequence
from numbers import Real

import numpy as np

from fedjax_het.errors import SettingError


def check_labels(y: np.ndarray, num_examples: int, rows: np.ndarray) -> None:
  """Raises `SettingError`, which names a label and its row, unless every example has one whole number.

  Args:
    y: labels, to be [N], whole numbers (or bool), none of them masked.
    num_examples: N.
    rows: the rows that are used, int [n]; what the others hold is not asked.
  """
  if y.ndim == 0:
    raise SettingError("y", y.item(), f"one value, and x has {num_examples} examples", "Give a label a row.")
  if y.ndim > 1:
    first = y[0].tolist() if len(y) else []
    remedy = "Squeeze it: y.squeeze(1)." if y.shape[1:] == (1,) else "Of one-hot rows: y.argmax(1)."
    raise SettingError(
      "y", first, f"the label of row 0 is not one number: y is {y.dtype} {y.shape}, not [N]", remedy
    )
  if len(y) != num_examples:
    raise SettingError("y", f"{len(y)} labels", f"x has {num_examples} examples", "Give one an example.")
  masked = rows[np.ma.getmaskarray(y)[rows]]
  if len(masked):
    raise SettingError(
      "y", np.ma.masked, f"the label of row {masked.min()} is masked", "Leave such rows out of parts."
    )
  if len(y) and y.dtype.kind not in "biu":
    labels = dict(zip(rows.tolist(), y[rows].tolist()))
    wrong = [row for row, label in labels.items() if not (isinstance(label, Real) and label % 1 == 0)]
    row, remedy = 0, "Convert it: y.astype(int)."
    if wrong:
      row, remedy = min(wrong), "Number the classes from 0, and leave rows without a label out of parts."
    raise SettingError(
      "y", y[row : row + 1].tolist()[0], f"the label of row {row} is {y.dtype}, not a whole number", remedy
    )


def check_classes(
  y: np.ndarray, num_classes: int, rows: np.ndarray, because: str = "", more: str = "say num_classes={}"
) -> None:
  """Raises `SettingError`, which names a label and its row, unless every label is a class.

  Args:
    y: labels, [N], whole numbers, to be from 0 to C - 1.
    num_classes: C.
    rows: the rows that are used, int [n]; what the others hold is not asked.
    because: why just these classes: ends "is not one of the classes 0 to 3".
    more: how to have as many classes as {}.
  """
  wrong = rows[(y[rows] < 0) | (y[rows] >= num_classes)]
  if len(wrong):
    row, labels = int(wrong.min()), set(np.unique(y[rows]).tolist())
    remedy = "Number the classes from 0"
    if labels <= {-1, 1}:
      remedy = "Write 0 for -1: (y + 1) // 2"
    elif max(labels) >= num_classes:
      remedy += f", or {more.format(max(labels) + 1)} where there are so many"
    raise SettingError(
      "y", y[row].item(), f"the label of row {row} is not one of the classes 0 to {num_classes - 1}{because}",
      f"{remedy}.",
    )  # fmt: skip


def check_parts(parts: Sequence[np.ndarray], num_examples: int) -> None:
  """Raises `SettingError`, which names a row and its client, unless the parts are disjoint rows of x.

  Args:
    parts: row numbers of each client.
    num_examples: N; rows are 0, ..., N - 1.
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
