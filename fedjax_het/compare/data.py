"""Whose figures may be subtracted: those of the same clients' data."""

from collections.abc import Mapping
from typing import Any

FOUND = ("examples", "data_digest")  # of a data set, where it was read
FIELDS = ("dataset", *FOUND, "num_clients", "test_fraction", "stratify", "unseen.fraction")
SECTIONS = ("dataset_options", "partition")  # all of theirs


def of_data(field: str) -> bool:
  """Whether a dotted field says which clients there are, or what they are judged on."""
  return field in FIELDS or field.partition(".")[0] in SECTIONS


def told(field: str, own: Mapping[str, Any]) -> Any:
  """A field's value in a group's `data`, None where it is not set.

  Of sections None, 0 and False are values of their own, as what is not set is the data set's default; else
  they are what is not set.
  """
  if field not in own:
    return None
  value = own[field]
  return value or None if field in FIELDS else str(value) if value is None else value


def unlike(own: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
  """The fields in which two groups' `data` differ; "dataset" alone where that does, as much hangs on it."""
  found = [name for name in own if own[name] != other[name]]
  return ["dataset"] if "dataset" in found else found
