"""The natural partition: each group that the data came with (a writer, a hospital) is a client."""

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
  """Makes one client of each group id; clients are in order of their ids, rows in file order.

  Args:
    groups: the group id of each row, int or str, [N].
    min_size: groups with fewer rows are left out.
    sample: how many of the remaining groups become clients, drawn at random; None: all of them.
    key: typed key of that draw; not used without `sample`.

  Raises:
    SettingError: `groups` is no vector or empty, an id is missing (see `missing`) or has another type than
      the others, no group has `min_size` rows, or fewer than `sample` groups have.
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
  """Makes the error for a `num_clients` that differs from the number of groups that become clients.

  Args:
    num_clients: the number that was set.
    groups: the number of groups of at least `min_size` rows.
    min_size, sample: as set, see `natural`.
  """
  large = f" of at least min_size = {min_size} rows" if min_size > 1 else ""
  if sample is not None:
    problem, remedy = f"sample = {sample} draws another number of groups", "Set both to one number"
  elif num_clients < groups:
    problem = f"the data come in {groups} groups{large}"
    remedy = f"Draw some of them by sample = {num_clients}, take the larger ones by min_size, set {groups}"
  else:
    problem = f"the data come in {groups} groups{large}, and clients are not cut"
    remedy = f"Set at most {groups}, lower min_size" if large else f"Set {groups}"
  return SettingError("num_clients", num_clients, problem, f"{remedy}, or leave num_clients out.")


def generator(key: jax.Array) -> np.random.Generator:
  """Returns NumPy's random generator seeded by a typed key; raises `SettingError` for what is no key."""
  return np.random.default_rng(np.asarray(jax.random.key_data(check_key(key))))


def whole(setting: str, value: object, high: int = 2**31 - 1, low: int = 1, why: str = "") -> None:
  """Raises `SettingError` unless `value` is a whole number in [low, high].

  `why` says in the error why `high` is the largest possible value.
  """
  if not isinstance(value, int | np.integer) or isinstance(value, bool | np.timedelta64):
    raise SettingError(setting, value, "not a whole number", f"Give an integer of at least {low}.")
  if why and value > high >= low:
    remedy = f"It must be at least {low} and at most {high}."
    raise SettingError(setting, int(value), f"out of range, {why}", remedy)
  check_whole(setting, int(value), low, high)


def _sorted(groups: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
  """Returns the sorted group ids, [N], and their rows, int [N]; rows of one group stay in file order.

  Raises `SettingError` for missing ids and for ids without an order.
  """
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
  """Converts ids to an array of objects, because NumPy makes strings of a list with NaN and words."""
  try:
    return np.asanyarray(groups, object)
  except Exception:  # `as_array` raises the error for it
    return groups
