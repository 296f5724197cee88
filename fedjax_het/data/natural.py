"""The natural partition: the groups that the data came with, all or those that are large enough, or some."""

from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike

from fedjax_het.data.rows import as_array
from fedjax_het.errors import SettingError, check_key, check_whole
from fedjax_het.settings import Count, checked
from fedjax_het.tasks.missing import missing


@checked
def natural(
  groups: ArrayLike, min_size: Count = 1, sample: Count | None = None, key: jax.Array | None = None
) -> list[np.ndarray]:
  """One client per distinct group id: clients in order of id, rows in file order.

  Args:
    groups: ids, int or str, [N].
    min_size: groups of fewer rows are left out.
    sample: how many of the other groups become clients, drawn at random; None: all.
    key: typed key of that draw; without `sample` not used.

  Raises:
    SettingError: `groups` is not a vector with at least one row, one is missing (see `missing`) or of another
      type than the others, no group has `min_size` rows, or fewer than `sample` have.
  """
  ids, order = _sorted(groups)
  _, first = np.unique(ids, return_index=True)
  parts = np.split(order, first[1:])
  whole("min_size", min_size, max(map(len, parts)), why="the largest group has no more rows")
  parts = [rows for rows in parts if len(rows) >= min_size]
  if sample is None:
    return parts
  whole("sample", sample, len(parts), why=f"no more groups have min_size = {min_size} rows")
  if key is None:
    raise SettingError("key", None, "a sample needs one", "Use key=jax.random.key(0).")
  return [parts[i] for i in np.sort(generator(key).permutation(len(parts))[:sample])]


def wrong_count(num_clients: int, groups: int, min_size: int = 1, sample: int | None = None) -> SettingError:
  """What to do where `num_clients` is not the number of groups that become clients."""
  large = f" of at least min_size = {min_size} rows" if min_size > 1 else ""
  if sample is not None:
    problem, remedy = f"sample = {sample} draws another number of the groups", "Set both alike"
  elif num_clients < groups:
    problem = f"the data come in {groups} groups{large}"
    remedy = f"Draw some of them by sample = {num_clients}, take the larger ones by min_size, set {groups}"
  else:
    problem = f"the data come in {groups} groups{large}, and clients are not cut"
    remedy = f"Set at most {groups}, lower min_size" if large else f"Set {groups}"
  return SettingError("num_clients", num_clients, problem, f"{remedy}, or leave num_clients out.")


def generator(key: jax.Array) -> np.random.Generator:
  """NumPy's generator of a checked key."""
  return np.random.default_rng(np.asarray(jax.random.key_data(check_key(key))))


def whole(setting: str, value: object, high: int = 2**31 - 1, low: int = 1, why: str = "") -> None:
  """Raises unless `value` is a whole number in [low, high]; `why` says why there is no more than `high`."""
  if not isinstance(value, int | np.integer) or isinstance(value, bool | np.timedelta64):
    raise SettingError(setting, value, "not a whole number", f"Give an integer of at least {low}.")
  if why and value > high >= low:
    remedy = f"It must be at least {low} and at most {high}."
    raise SettingError(setting, int(value), f"out of range, {why}", remedy)
  check_whole(setting, int(value), low, high)


def _sorted(groups: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
  """Checked group ids in order, [N], and the rows they stand in; rows of one group in file order."""
  given = groups if hasattr(groups, "dtype") or np.isscalar(groups) else _objects(groups)
  found = as_array("groups", given, "Give one id per row.")
  if found.ndim != 1 or not len(found):
    raise SettingError("groups", found.shape, "not a vector of group ids", "Give one id per row.")
  ids = np.asarray(found)
  try:
    absent = np.flatnonzero(missing(found))
    if len(absent):
      few = ", ".join(map(str, absent[:5])) + (", ..." if len(absent) > 5 else "")
      raise SettingError(
        "groups", found[absent[0]],
        f"row {absent[0]} is of no group; {len(absent)} of {len(found)} rows are of none: {few}",
        "Leave such rows out of x, y and groups; a group that is really called so needs another name.",
      )  # fmt: skip
    order = np.argsort(ids, kind="stable")
  except SettingError:
    raise
  except (TypeError, ValueError):
    kinds = sorted({type(one).__name__ for one in ids.tolist()})
    raise SettingError(
      "groups", " and ".join(kinds), "ids without an order", "Give all as str, or all as int."
    ) from None
  return ids[order], order


def _objects(groups: ArrayLike) -> Any:
  """Ids as an array of objects: of a list that holds NaN and words NumPy would make the word "nan"."""
  try:
    return np.asanyarray(groups, object)
  except Exception:  # `as_array` says of which
    return groups
