"""Decides which runs' figures may be subtracted from each other: those on the same clients' data."""

from collections.abc import Mapping
from typing import Any

FOUND = ("examples", "data_digest")  # recorded in starts.jsonl when the data set was read
FIELDS = ("dataset", *FOUND, "num_clients", "test_fraction", "stratify", "unseen.fraction")
SECTIONS = ("dataset_options", "partition")  # all settings of these sections concern the data


def of_data(field: str) -> bool:
  """Returns whether a dotted field determines which clients there are or which examples evaluate them."""
  return field in FIELDS or field.partition(".")[0] in SECTIONS


def told(field: str, own: Mapping[str, Any]) -> Any:
  """Returns a field's value in a group's `data`, or None if it is not set.

  In sections None, 0 and False differ from a field that is not set, which means the data set's default. In
  all other fields they mean the same as a field that is not set.
  """
  if field not in own:
    return None
  value = own[field]
  return value or None if field in FIELDS else str(value) if value is None else value


def unlike(own: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
  """Returns the fields in which two groups' `data` differ.

  If the data set differs, only "dataset" is returned, because the other fields depend on it.
  """
  found = [name for name in own if own[name] != other[name]]
  return ["dataset"] if "dataset" in found else found
