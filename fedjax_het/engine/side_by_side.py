"""Joins the data of several runs for one program, with each example once if the runs share examples."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_het.data.container import FederatedData
from fedjax_het.errors import SettingError

ARRAYS = ("x", "y", "train", "valid", "test", "rows")


class Fields(NamedTuple):
  """Arrays of the `FederatedData` of M runs, by field name.

  Attributes:
    common: fields that all runs share.
    own: fields of each run, [M, ...].
  """

  common: dict[str, Any]
  own: dict[str, Any]


def equally_long(data: Sequence[FederatedData]) -> list[FederatedData]:
  """Returns the data sets padded to equally many rows; no client has the additional rows."""
  most = max(len(each.y) for each in data)

  def filled(leaf: Any) -> np.ndarray:
    return np.concatenate([leaf, np.repeat(leaf[:1], most - len(leaf), axis=0)])

  def one(each: FederatedData) -> FederatedData:
    lengths = {len(leaf) for leaf in jax.tree.leaves((each.x, each.y))}
    if lengths != {len(each.y)} or lengths == {most}:  # the former is refused elsewhere
      return each
    return dataclasses.replace(each, x=jax.tree.map(filled, each.x), y=filled(each.y))

  once = {id(each): one(each) for each in data}
  return [once[id(each)] for each in data]


def sized_beside(data: Sequence[FederatedData]) -> list[FederatedData]:
  """Returns the data sets with common `limits`, so that each is computed as in one program with all."""
  limits, uniform = _limits(data)
  return [dataclasses.replace(each, limits=limits, uniform=uniform) for each in data]


def form(data: Sequence[FederatedData]) -> FederatedData:
  """Returns the common static part of several data sets, without arrays.

  Raises:
    SettingError: shapes, dtypes, scales or numbers of classes differ.
  """

  def read(each: FederatedData) -> str:
    leaves = [f"{leaf.dtype} {leaf.shape}" for leaf in jax.tree.leaves(each)]
    return f"{', '.join(leaves)}; scale {each.scale}; {each.num_classes} classes"

  kinds = {read(each) for each in data}
  if len(kinds) > 1:
    raise SettingError(
      "data", sorted(kinds), "not alike",
      "Give members equally many clients, and examples of one shape, dtype, scale and number of classes.",
    )  # fmt: skip
  limits, uniform = _limits(data)
  return dataclasses.replace(
    data[0],
    **dict.fromkeys(ARRAYS),  # type: ignore[arg-type]
    limits=limits,
    uniform=uniform,
  )


def _limits(data: Sequence[FederatedData]) -> tuple[tuple[int, int, int], tuple[bool, bool, bool]]:
  """Returns common `limits` and `uniform`; raises `SettingError` if only some have validation parts."""
  validated = [each.limits[1] > 0 for each in data]
  if any(validated) and not all(validated):
    problem = "some members have examples to validate on, and others none"
    raise SettingError("valid_fraction", validated, problem, "Give all or none.")
  limits = [max(each.limits[j] for each in data) for j in range(3)]
  alike = [all(each.uniform[j] and each.limits[j] == limits[j] for each in data) for j in range(3)]
  return (limits[0], limits[1], limits[2]), (alike[0], alike[1], alike[2])


def whole(form: FederatedData, fields: Fields) -> FederatedData:
  """Returns one run's data from the static part, the common fields and the run's own fields."""
  return dataclasses.replace(form, **fields.common, **fields.own)


def stacked(data: Sequence[FederatedData]) -> Fields:
  """Returns the data unpooled: all fields are common for one data set, and none for one per run."""
  if len(data) == 1:
    return Fields({name: getattr(data[0], name) for name in ARRAYS}, {})
  return Fields({}, _stack(data, ARRAYS))


def pooled(data: Sequence[FederatedData]) -> Fields:
  """Returns the runs' data with each distinct (example, label) stored once for all runs."""
  seen: dict[bytes, int] = {}
  rows: dict[int, np.ndarray] = {}
  tables = []
  for each in {id(each): each for each in data}.values():
    before, examples = len(seen), (each.x, each.y)
    places = np.array([seen.setdefault(row, len(seen)) for row in _rows_as_bytes(examples)], np.int32)
    numbers, first = np.unique(places, return_index=True)
    new = first[numbers >= before]
    tables.append(jax.tree.map(lambda leaf: np.asarray(leaf)[new], examples))  # noqa: B023
    rows[id(each)] = places
  x, y = jax.tree.map(lambda *leaves: np.concatenate(leaves), *tables)
  own = _stack(data, ("train", "valid", "test"))
  return Fields({"x": x, "y": y}, own | {"rows": np.stack([rows[id(each)] for each in data])})


def smallest(data: Sequence[FederatedData], held: int) -> Fields:
  """Returns `pooled` or `stacked`, whichever takes fewer bytes on a device that holds `held` runs' data."""
  if held > 1 and len(data) > 1:
    found = pooled(data)
    if size(found.common) + held * size(found.own) // len(data) < held * size(data[0]):
      return found
  return stacked(data)


def size(tree: Any) -> int:
  """Returns the bytes of a tree's arrays."""
  return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


def _stack(data: Sequence[FederatedData], names: Sequence[str]) -> dict[str, Any]:
  return {
    name: jax.tree.map(lambda *leaves: np.stack(leaves), *(getattr(each, name) for each in data))
    for name in names
  }


def _rows_as_bytes(examples: Any) -> list[bytes]:
  """Returns each example as bytes; equal bytes mean equal bits of all arrays."""
  arrays = [np.ascontiguousarray(leaf) for leaf in jax.tree.leaves(examples)]
  joined = np.concatenate([leaf.reshape(len(leaf), -1).view(np.uint8) for leaf in arrays], axis=1)
  return joined.view(f"V{joined.shape[1]}").ravel().tolist()
