"""Checks of labels, which run before any training."""

from numbers import Real
from typing import Any

import numpy as np

from fedjax_het.errors import SettingError
from fedjax_het.tasks.missing import check_present

REGRESSION = (
  "give task=fh.tasks.regression() to the data and to the model, which needs as many outputs as there are "
  "numbers (in a configuration: --config.task.name=regression)."
)


def _other_task(y: np.ndarray) -> str:
  """Returns advice on the task that labels with more axes than [N] may be meant for."""
  if y.dtype.kind == "f" and not np.equal(np.mod(y, 1), 0).all():
    return f"These look like regression targets, not classes: {REGRESSION}"
  plain = y.dtype.kind in "biuf" and y.ndim == 2
  if plain and ((y == 0) | (y == 1)).all():
    if (y.sum(1) == 1).all():
      return (
        "Where these are one-hot rows, give y.argmax(1); where they are several yes-or-no labels an example, "
        "task=fh.tasks.multilabel()."
      )
    return "These look like several yes-or-no labels an example: give task=fh.tasks.multilabel()."
  if plain:
    return (
      "Where these are texts with a token at each position as the label, give task=fh.tasks.next_token()."
    )
  return "Give one number an example, or name another task."


def labels_of(y: Any) -> np.ndarray:
  """Returns labels as an array of whole numbers, [N, ...]; raises `SettingError` for anything else."""
  try:
    found = np.asarray(y)
  except Exception:  # whatever a foreign object raises
    found = np.zeros(0, object)
  if found.dtype.kind not in "biu" or not found.ndim:
    problem = "not whole numbers, one or a row of them an example"
    raise SettingError("y", type(y).__name__, problem, "Give the labels as an array of integers, [N, ...].")
  return found.astype(np.int64)


def from_one(y: np.ndarray, num_classes: int) -> str:
  """Returns a remark on class labels, [n], that seem to be counted from 1; "" for others."""
  found = np.unique(y)
  if num_classes < 3 or len(found) != num_classes - 1 or found[0] != 1 or found[-1] != num_classes - 1:
    return ""
  return (
    f"y has the classes 1 to {num_classes - 1}, and classes are numbered from 0: unless class 0 only happens "
    f"to be missing, give y - 1 and num_classes={num_classes - 1}."
  )


def check_rows(y: np.ndarray, num_examples: int, rows: np.ndarray) -> None:
  """Raises `SettingError` unless there is one label per row and no label of a used row is masked.

  Args:
    y: labels, [N, ...].
    num_examples: N.
    rows: the rows that are used, int [n]; the others are not checked.
  """
  if y.ndim == 0:
    raise SettingError(
      "y", y.item(), f"one value, and x has {num_examples} examples", "Give one label per row."
    )
  if len(y) != num_examples:
    raise SettingError("y", f"{len(y)} labels", f"x has {num_examples} examples", "Give one per example.")
  hidden = np.asarray(np.ma.getmaskarray(y)).reshape(len(y), -1)
  masked = rows[hidden[rows].any(axis=1)]
  if len(masked):
    raise SettingError(
      "y", np.ma.masked, f"the label of row {masked.min()} is masked", "Leave such rows out of parts."
    )


def check_axes(y: np.ndarray, axes: str) -> None:
  """Raises `SettingError` unless y has as many axes as the description `axes`, such as "[N, T]"."""
  if y.ndim != axes.count(",") + 1:
    first = y[0].tolist() if y.ndim and len(y) else []
    remedy = _other_task(y) if axes == "[N]" else "Give a row of labels per example, or name another task."
    if y.shape[1:] == (1,) and axes == "[N]":
      remedy = "Squeeze it: y.squeeze(1)."
    problem = "is not one number" if axes == "[N]" else "has other axes"
    raise SettingError(
      "y", first, f"the label of row 0 {problem}: y is {y.dtype} {y.shape}, not {axes}", remedy
    )


def check_whole_labels(y: np.ndarray, rows: np.ndarray) -> None:
  """Raises `SettingError`, naming a label and its row, unless labels are integers (or bool) in value."""
  if not len(y) or y.dtype.kind in "biu":
    return
  check_present(y, rows)
  used = y[rows].reshape(len(rows), -1)
  wrong = [
    (row, label) for row, own in zip(rows.tolist(), used.tolist()) for label in own
    if not (isinstance(label, Real) and label % 1 == 0)
  ]  # fmt: skip
  row, label = min(wrong, key=lambda found: found[0]) if wrong else (0, y.reshape(len(y), -1)[0].tolist()[0])
  remedy = "Number the classes from 0, and leave rows without a label out of parts."
  if wrong and y.dtype.kind == "f" and np.isfinite(used.astype(float)).all():
    remedy = f"These look like regression targets, not classes: {REGRESSION}"
  raise SettingError(
    "y", label, f"the label of row {row} is {y.dtype}, not a whole number",
    remedy if wrong else "Convert it: y.astype(int).",
  )  # fmt: skip


def check_classes(
  y: np.ndarray, num_classes: int, rows: np.ndarray, because: str = "", more: str = "say num_classes={}"
) -> None:
  """Raises `SettingError`, naming a label and its row, unless every label is a class from 0 to C - 1.

  Args:
    y: labels, integers, [N] or several per row, [N, ...].
    num_classes: C, the number of classes.
    rows: the rows that are used, int [n]; the others are not checked.
    because: reason for this number of classes, which ends the message "is not one of the classes 0 to 3".
    more: advice in the message on how to have as many classes as {}.
  """
  used = y[rows].reshape(len(rows), -1)
  outside = (used < 0) | (used >= num_classes)
  if not outside.any():
    return
  at = np.flatnonzero(outside.any(axis=1))
  at = at[np.argmin(rows[at])]
  label, labels = used[at][outside[at]][0].item(), set(np.unique(used).tolist())
  remedy = "Number the classes from 0"
  if labels <= {-1, 1}:
    remedy = "Write 0 for -1: (y + 1) // 2"
  elif max(labels) >= num_classes:
    remedy += f", or {more.format(max(labels) + 1)} where there are so many"
  raise SettingError(
    "y", label, f"the label of row {rows[at]} is not one of the classes 0 to {num_classes - 1}{because}",
    f"{remedy}.",
  )  # fmt: skip


def check_count(found: int, num_classes: int, what: str) -> None:
  """Raises `SettingError` unless the number of labels per example, `found`, equals `num_classes`."""
  if found != num_classes:
    raise SettingError(
      "num_classes", num_classes, f"y has {found} {what} an example", f"Say num_classes={found}."
    )


def check_shape(task: str, shape: tuple[int, ...], wanted: str, fits: bool) -> None:
  """Raises `SettingError` unless a model's outputs fit the task.

  Args:
    task: name of the task.
    shape: shape of the outputs, without the batch axis.
    wanted: description of the required shape.
    fits: whether the outputs fit.
  """
  if not fits:
    raise SettingError(
      "task", task, f"takes outputs {wanted}, and the model's are [B, {', '.join(map(str, shape))}]",
      "Give the model so many outputs, or another task.",
    )  # fmt: skip
