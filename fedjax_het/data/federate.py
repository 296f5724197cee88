"""Puts a data set's rows and a partition together: each client's examples are laid out and split."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from fedjax_het.data.container import FederatedData, PyTree, slices_of
from fedjax_het.data.encoder import with_names
from fedjax_het.data.filled import fill
from fedjax_het.data.natural import generator
from fedjax_het.data.rows import (
  as_array,
  as_held,
  check_finite,
  check_parts,
  check_split,
  count_rows,
  held_out_last,
  part_of,
  rows_of,
)
from fedjax_het.data.scale import check_images
from fedjax_het.errors import SettingError, check_flag, check_key, check_range, check_whole, listed
from fedjax_het.tasks import Task, check_task, classification
from fedjax_het.tasks.labels import check_rows, from_one


def federate(
  x: PyTree,
  y: np.ndarray,
  parts: Sequence[np.ndarray],
  key: jax.Array,
  *,
  num_classes: int,
  task: Task | None = None,
  test_fraction: float | None = None,
  valid_fraction: float = 0.0,
  standardize: Sequence[int] = (),
  pooled: bool = False,
  stratify: bool = False,
  scale: float | None = None,
  name: str = "",
  train_y: np.ndarray | None = None,
  split: np.ndarray | None = None,
  tell: Callable[[str], object] = logging.warning,
) -> FederatedData:
  """Lays a partition's clients out in flat arrays, and splits each one's rows into train, valid and test.

  The means that replace missing values (NaN), and the means and standard deviations of `standardize`, are
  of each client's own training rows, so that neither its test rows nor other clients leak into them.

  Args:
    x: examples, [N, ...], uint8 (images or a table), float32 (NaN where a value is missing) or int32 ids; a
      list of equally long rows; or a tree (dict, tuple, ...) of such arrays with equally many rows, such as
      tokens and their mask.
    y: labels, [N, ...], as the task wants them: for classes [N], whole numbers in [0, num_classes), or bool.
      Labels of rows that belong to no client are not looked at.
    parts: row numbers of each client, a list of K arrays or one array [K, n]. A row may belong to no client,
      but not to two.
    key: typed key of the random split.
    num_classes: number of classes; 2 for a binary task, also where the model has one logit. For other tasks
      the number A of binary labels, V of tokens, or D of regression targets.
    task: what is predicted, see `tasks`; classification by default.
    test_fraction: share of every client's rows held out for its test set, rounded down; 0.2 where neither
      this nor `split` is given.
    valid_fraction: share of the remaining rows held out to choose λ and settings on, rounded down.
    standardize: columns of x, float32 [N, D], of which every client's rows become (x - mean) / deviation
      (the population's); a column whose training values are all equal, or all missing, becomes 0.
    pooled: whether means and deviations are of all clients' training rows.
    stratify: for classes, whether each client's held-out rows have its own shares of them: of a class of n_c
      of its n rows ⌊m n_c / n⌋ or one more, where m rows are held out, and those that are left over go to the
      classes with the largest remainders.
    scale: factor > 0 by which examples are multiplied, as float32, whenever a batch is read, such as 1/255
      for the bytes of flattened images. By default, and for each array of a tree, uint8 of three axes or more
      and uint16 of four axes or more are images and are read as [0, 1] (1/255 and 1/65535); other uint8 are a
      table with factor 1; all else keeps its values and type. Images of other whole numbers, [N, H, W, C],
      need a scale.
    name: the data set's name.
    train_y: labels, [N, ...], that replace y in training and validation rows, such as noisy labels, so that
      no client validates on clean ones. Test rows keep y, and the stratified split uses y.
    split: integers, [N], for data with a given train-test split, in place of `test_fraction`: 0 for rows to
      train on, 1 for rows to test on, -1 for rows to leave out.
    tell: called with a sentence for each client whose training rows have no value at all in a column of x
      that is filled or standardised, and which becomes 0; and with one if all classes but 0 occur.

  Raises:
    SettingError: a label is masked or not one of the task's (the error names the label and its row); examples
      are masked or no real numbers; labels or examples exceed 32 bits; images of whole numbers have no scale;
      a part has rows that x lacks or that another part has; `num_classes` is not a whole number above 0;
      `key` is no key or `task` no task; a fraction is outside [0, 1); a client keeps no training row; there
      are no clients; `scale` is not above 0, or x is a tree; `stratify` is set and labels are no classes;
      `standardize` names no column of floats; a column to be filled or standardised has an infinite value;
      `split` has not one value for each row, or is given together with `test_fraction`.
  """
  if split is not None and test_fraction is not None:
    raise SettingError(
      "test_fraction", test_fraction, "cannot be combined with split", "Leave out one of the two."
    )
  test_fraction = 0.2 if test_fraction is None else test_fraction
  for setting, value in (("test_fraction", test_fraction), ("valid_fraction", valid_fraction)):
    check_range(setting, value, 0.0, below=1.0, on_host=True)
  check_whole("num_classes", num_classes, 1, None)
  key = check_key(key)
  parts = listed("parts", parts, "one array of row numbers per client")
  if not parts:
    raise SettingError("num_clients", 0, "there are no clients", "Partition into at least one.")
  task = classification() if task is None else task
  check_task(task)
  x, y, parts = rows_of(x), as_array("y", y), [*map(part_of, parts)]
  count = count_rows(x)
  check_rows(y, count, np.zeros(0, int))
  check_parts(parts, count)
  owned = np.concatenate(parts).astype(int)
  task.check(y, count, owned, num_classes)
  if task.classes and (remark := from_one(y[owned], num_classes)):
    tell(remark)
  if train_y is not None:
    train_y = as_array("train_y", train_y)
    task.check(train_y, count, owned, num_classes)
  if split is not None:
    split = check_split(split, count)
  check_flag("stratify", stratify)
  check_flag("pooled", pooled)
  if stratify and not task.classes:
    raise SettingError("stratify", stratify, f"the labels of {task.name} are no classes", "Leave it out.")
  if stratify and not valid_fraction and (split is not None or not test_fraction):
    problem = "no rows are drawn to be held out" + ("" if split is None else ": `split` divides the data")
    raise SettingError("stratify", stratify, problem, "Leave it out, or set valid_fraction.")
  if scale is not None:
    check_range("scale", scale, above=0.0, below=np.inf)
    if not isinstance(x, np.ndarray):
      raise SettingError("scale", scale, "x is a tree of arrays", "Scale its arrays before.")
  if isinstance(standardize, int):
    raise SettingError("standardize", standardize, "not numbers of columns", "Name them: (0, 1).")
  standardize = listed("standardize", standardize, "numbers of columns")
  if not all(
    isinstance(one, int | np.integer) and not isinstance(one, bool | np.timedelta64) for one in standardize
  ):
    raise SettingError("standardize", tuple(standardize), "not numbers of columns", "Name them: (0, 1).")
  if len(standardize) and not (_floats(x) and 0 <= min(standardize) <= max(standardize) < x.shape[1]):
    found = jax.tree.map(lambda leaf: f"{leaf.dtype} {leaf.shape}", x)
    raise SettingError(
      "standardize", tuple(standardize), f"x is {found}", "Name columns of floats in [N, D]."
    )
  check_images(x, scale)
  rng = generator(key)
  order, sizes = [], np.zeros((len(parts), 3), np.int64)
  for i, rows in enumerate(parts):
    rows = rng.permutation(rows)
    if split is not None:
      rows = rows[split[rows] >= 0]
      rows = rows[np.argsort(split[rows], kind="stable")]
    n_test = share(len(rows), test_fraction) if split is None else int(split[rows].sum())
    n_valid = share(len(rows) - n_test, valid_fraction)
    if stratify:
      rows = held_out_last(rows, y[rows], n_test) if split is None else rows
      rest = len(rows) - n_test
      rows[:rest] = held_out_last(rows[:rest], y[rows[:rest]], n_valid)
    sizes[i] = len(rows) - n_test - n_valid, n_valid, n_test
    if sizes[i, 0] < 1:
      raise SettingError(
        "test_fraction" if split is None else "split", test_fraction if split is None else "given",
        f"client {i} with {len(rows)} examples keeps none to train on",
        "Lower test_fraction or valid_fraction, leave small clients out (natural: min_size), or use fewer."
        if split is None
        else "Lower valid_fraction, leave such clients out, or have rows of each client that train.",
      )  # fmt: skip
    order.append(rows)
  rows = np.concatenate(order)
  slices, scaling = slices_of(sizes), None

  def laid_out(leaf: np.ndarray) -> np.ndarray:
    nonlocal scaling
    leaf = leaf[rows]
    unknown = np.isnan(leaf).any() if jnp.issubdtype(leaf.dtype, jnp.floating) else False
    if len(standardize) or unknown:
      check_finite(leaf, rows)
      scaling = fill(leaf, slices["train"].start, sizes, [*standardize], tell, pooled)
    return as_held(leaf)

  labels = as_held(np.asarray(y[rows]), task.dtype, "y")
  if train_y is not None:
    seen = np.concatenate([slices["train"].rows(), slices["valid"].rows()])
    labels[seen] = as_held(np.asarray(train_y[rows[seen]]), task.dtype, "train_y")
  data = FederatedData(
    jax.tree.map(laid_out, x),
    labels,
    **slices,
    num_classes=int(num_classes),
    name=name,
    scale=None if scale is None else float(scale),
    weights=task.weights,
  )
  return with_names(data, scaling=scaling if isinstance(x, np.ndarray) else None)


def _floats(x: PyTree) -> bool:
  """Returns whether the examples are one table of floats, [N, D]."""
  return isinstance(x, np.ndarray) and x.ndim == 2 and jnp.issubdtype(x.dtype, jnp.floating)


def share(count: int, fraction: float) -> int:
  """Returns ⌊count · fraction⌋ without rounding errors: 29 for 100 · 0.29, which is 28.999... in floats."""
  return int(count * fraction + 1e-9)
