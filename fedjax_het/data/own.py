"""A user's own data: arrays that are dealt out by a partition, or rows that know whose they are."""

import inspect
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike

from fedjax_het.data.container import FederatedData, federate
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
  """Deals examples out to clients, and divides each client's into train, valid and test.

  Args:
    key: typed key of the partition and of the divisions.
    x: examples, [N, ...], or a tree of such, see `federate`.
    y: labels, [N, ...]; for all partitions but iid classes, [N].
    num_clients: K.
    partition: one of `PARTITIONERS`.
    num_classes: as `federate` has it; None: for classes the largest label and one.
    **settings: the partition's own (such as `alpha`), and those of `federate` (such as `test_fraction`).

  Raises:
    SettingError: an unknown setting, naming the nearest, or what partition or `federate` find.
  """
  check_choice("partition", partition, PARTITIONERS)
  if partition == "natural":
    raise SettingError("partition", partition, "goes by groups", "Use from_groups(key, x, y, groups).")
  own = _own(PARTITIONERS[partition], settings)
  return _laid_out(key, x, y, partition, num_classes, settings, own, num_clients)


def from_groups(
  key: jax.Array,
  x: PyTree,
  y: ArrayLike,
  groups: ArrayLike,
  *,
  num_classes: int | None = None,
  **settings: Any,
) -> FederatedData:
  """Makes a client of every group (a writer, a hospital, a speaker), in order of the groups' names.

  Args:
    key: typed key of the division of each client's rows, and of `sample`.
    x: examples, [N, ...], or a tree of such.
    y: labels, [N, ...].
    groups: whose each row is, int or str, [N].
    num_classes: as for `from_arrays`.
    **settings: those of `natural` (`min_size`, `sample`), and those of `federate`.

  Raises:
    SettingError: as for `from_arrays`; or not one group a row.
  """
  labels, owners = as_array("y", y), as_array("groups", groups, "Give one id per row.")
  if not labels.ndim or owners.shape != labels.shape[:1]:
    remedy = "Give a group and a label for each example."
    count = f"{len(labels)} labels" if labels.ndim else "the labels, which are none"
    raise SettingError("groups", owners.shape, f"not one for each of {count}", remedy)
  own = {"groups": groups, **_own(PARTITIONERS["natural"], settings)}
  return _laid_out(key, x, y, "natural", num_classes, settings, own)


def _own(partitioner: Any, settings: dict[str, Any]) -> dict[str, Any]:
  """The partitioner's settings, taken out of `settings`, of which all are checked."""
  names = {name: [*inspect.signature(f).parameters] for name, f in (("own", partitioner), ("rest", federate))}
  known = {name for of in names.values() for name in of} - {*_GIVEN}
  for name in settings:
    check_choice("setting", name, known)
  return {name: settings.pop(name) for name in [*settings] if name in names["own"]}


def _laid_out(
  key: jax.Array,
  x: PyTree,
  y: ArrayLike,
  name: str,
  num_classes: int | None,
  settings: dict[str, Any],
  own: dict[str, Any],
  num_clients: int | None = None,
) -> FederatedData:
  """Partitions and divides, by two keys of one."""
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
      remedy = f"These look like numbers to be told: {REGRESSION}"
      if not (y % 1).any():
        remedy = "Convert them: y.astype(int)."
    raise SettingError("y", y.dtype, "classes are whole numbers from 0 on", remedy)
  if num_classes is None:
    if (task and not task.classes) or not y.size:
      remedy = "Give it: the number of labels (multilabel), of tokens (next_token), or of numbers to be told."
      raise SettingError("num_classes", None, "cannot be told from the labels", remedy)
    num_classes = max(int(y.max()) + 1, 2)
  check_whole("num_classes", num_classes, 1, None)  # labels beyond 32 bits are told by themselves
  deal, divide = jax.random.split(key)
  parts: Parts = partition(deal, name, y, num_clients, **own)
  return federate(x, y, parts, divide, num_classes=num_classes, **settings)
