"""Clients made of a user's own arrays: partitioned, or grouped by a column that says whose each row is."""

import inspect
from typing import Any

import jax
import numpy as np
from absl import logging
from numpy.typing import ArrayLike

from fedjax_het.data.columns import as_text, numbers_of
from fedjax_het.data.container import FederatedData
from fedjax_het.data.encoder import with_names
from fedjax_het.data.federate import federate
from fedjax_het.data.files import Source
from fedjax_het.data.filled import Scaling
from fedjax_het.data.partition import PARTITIONERS, Parts, partition
from fedjax_het.data.rows import as_array
from fedjax_het.errors import SettingError, check_choice, check_key, check_whole
from fedjax_het.tasks import check_task
from fedjax_het.tasks.labels import REGRESSION, check_axes
from fedjax_het.tasks.missing import check_present

PyTree = Any
_GIVEN = ("x", "y", "parts", "key", "num_classes", "labels", "num_clients", "groups")


def from_arrays(
  key: jax.Array,
  x: PyTree,
  y: ArrayLike,
  num_clients: int,
  partition: str = "iid",
  *,
  num_classes: int | None = None,
  **settings: Any,
) -> FederatedData:
  """Partitions examples among clients, and splits each client's rows into train, valid and test.

  Args:
    key: typed key of the partition and of the splits.
    x: examples, [N, ...], or a tree of such, see `federate`.
    y: labels, [N, ...]; every partition but "iid" needs classes, [N].
    num_clients: K.
    partition: one of `PARTITIONERS`.
    num_classes: see `federate`; None, for classes only, is the largest label plus one.
    **settings: settings of the partition (such as `alpha`) and of `federate` (such as `test_fraction`).

  Raises:
    SettingError: a setting is unknown (the error names the nearest one), or partition or `federate` refuse
      one.
  """
  check_choice("partition", partition, PARTITIONERS)
  if partition == "natural":
    raise SettingError("partition", partition, "goes by groups", "Use from_groups(key, x, y, groups).")
  return _laid_out(key, x, y, partition, num_classes, settings, num_clients)


def from_groups(
  key: jax.Array,
  x: PyTree,
  y: ArrayLike,
  groups: ArrayLike,
  *,
  num_classes: int | None = None,
  **settings: Any,
) -> FederatedData:
  """Makes one client of every group (a writer, a hospital, a speaker), in order of the groups' names.

  Args:
    key: typed key of the splits of each client's rows, and of `sample`.
    x: examples, [N, ...], or a tree of such.
    y: labels, [N, ...].
    groups: the group id of each row, int or str, [N].
    num_classes: as for `from_arrays`.
    **settings: settings of `natural` (`min_size`, `sample`) and of `federate`.

  Raises:
    SettingError: as `from_arrays`, or `groups` has not one id for each row.
  """
  labels, owners = as_array("y", y), as_array("groups", groups, "Give one id per row.")
  if not labels.ndim or owners.shape != labels.shape[:1]:
    remedy = "Give a group and a label for each example."
    count = f"{len(labels)} labels" if labels.ndim else "the labels, which are none"
    raise SettingError("groups", owners.shape, f"not one for each of {count}", remedy)
  return _laid_out(key, x, y, "natural", num_classes, settings, groups=groups)


def _own(partitioner: Any, settings: dict[str, Any]) -> dict[str, Any]:
  """Removes the partitioner's settings from `settings` and returns them; raises for unknown names."""
  names = {name: [*inspect.signature(f).parameters] for name, f in (("own", partitioner), ("rest", federate))}
  known = {name for of in names.values() for name in of} - {*_GIVEN}
  for name in settings:
    check_choice("setting", name, known)
  return {name: settings.pop(name) for name in [*settings] if name in names["own"]}


def _laid_out(
  key: jax.Array, x: PyTree, y: ArrayLike, name: str, num_classes: int | None, settings: dict[str, Any],
  num_clients: int | None = None, **own: Any,
) -> FederatedData:  # fmt: skip
  """Partitions the rows and calls `federate`, each with its own key folded from `key`."""
  own |= _own(PARTITIONERS[name], settings)
  key = check_key(key)
  task = settings.get("task")
  if task is not None:
    check_task(task)
  y = as_array("y", y)
  if not y.ndim:
    raise SettingError("y", y, "is one label", "Give one for each example, [N].")
  if (task is None or task.classes) and y.dtype.kind not in "iub":
    check_present(y)
    if (
      y.dtype.kind == "f"
      and len(y)
      and (wrong := np.flatnonzero(np.isinf(y).reshape(len(y), -1).any(axis=1))).size
    ):
      problem = (
        f"the label of row {wrong[0]} is infinite, which is no class; {len(wrong)} of {len(y)} rows are so"
      )
      raise SettingError(
        "y", y[wrong[0]].tolist(), problem, "Leave such rows out before classes are numbered."
      )
    if y.dtype.kind == "f" and task is None:
      check_axes(y, "[N]")
    remedy = "Number them: names, y = np.unique(y, return_inverse=True); or name another task."
    if y.dtype.kind == "f":
      remedy = f"These look like regression targets: {REGRESSION}"
      if not (y % 1).any():
        remedy = "Convert them: y.astype(int)."
    raise SettingError("y", y.dtype, "classes are whole numbers from 0 on", remedy)
  if num_classes is None:
    if (task and not task.classes) or not y.size:
      remedy = "Give it: the number of labels (multilabel), of tokens (next_token), or of regression targets."
      raise SettingError("num_classes", None, "cannot be derived from the labels", remedy)
    num_classes = max(int(y.max()) + 1, 2)
  check_whole("num_classes", num_classes, 1, None)  # `federate` refuses labels beyond 32 bits
  deal, divide = jax.random.split(key)
  parts: Parts = partition(deal, name, y, num_clients, **own)
  data = federate(x, y, parts, divide, num_classes=num_classes, **settings)
  return with_names(data, clients=names_of(own["groups"], parts)) if "groups" in own else data


def of_source(key: jax.Array | None, source: Source, **settings: Any) -> FederatedData:
  """Makes clients of a source: of its groups where it has some, else by a partition.

  Args:
    key: typed key of the partition and the splits; None is `jax.random.key(0)`.
    source: the data set, whose notes are told by `tell`, by default as warnings.
    **settings: those of `from_groups` or `from_arrays`, which replace the source's own.
  """
  own: dict[str, Any] = {
    "num_classes": source.num_classes, "standardize": source.standardize, "pooled": source.pooled,
    "name": source.name, "task": source.task,
  }  # fmt: skip
  if source.split is not None:
    own["split"] = source.split
  for note in source.notes:
    settings.get("tell", logging.warning)(f"{source.name}: {note}")
  key, settings = jax.random.key(0) if key is None else key, own | settings
  if source.groups is None:
    if "num_clients" not in settings:
      remedy = "Give num_clients=10, or the column that says whose each row is."
      raise SettingError("num_clients", None, "is missing: rows are of no clients", remedy)
    data = from_arrays(key, source.x, source.y, **settings)
  else:
    data = from_groups(key, source.x, source.y, source.groups, **settings)
  data = with_names(data, labels=source.labels, columns=source.columns)
  if data.encoder.scaling is not None or not numbers_of(source.columns):
    return data
  # Later rows may lack numbers that all rows had.
  train = np.asarray(data.x)[data.train.rows()].astype(np.float64)
  return with_names(data, scaling=Scaling.of(train, ()))


def names_of(groups: ArrayLike, parts: Parts) -> tuple[str, ...]:
  """Returns the name of each client, the id of its rows' group, as a text without blanks around it.

  Raises:
    SettingError: two clients have one name.
  """
  ids = np.asarray(groups)
  own = [ids[np.asarray(rows)[0]] for rows in parts]
  names = tuple(map(as_text, own))
  first: dict[str, Any] = {}
  for name, one in zip(names, own):
    if name in first:
      problem = f"names two clients, {str(first[name])!r} and {str(one)!r}, which differ in blanks alone"
      raise SettingError("groups", name, problem, "Strip them, or give one another name.")
    first[name] = one
  return names
