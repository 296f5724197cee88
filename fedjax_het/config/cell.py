"""Parsing of a table's cell (the text after the config file's name), and fields that may be None."""

from collections.abc import Iterable, Mapping
from typing import Any

from ml_collections import FieldReference

from fedjax_het.errors import SettingError, check_choice
from fedjax_het.methods import CLIENTS
from fedjax_het.models import MODELS


def parse_cell(text: str | None, defaults: Mapping[str, Any]) -> dict[str, Any]:
  """Parses "dataset=mnist,clients=100" into a dict whose values have the types of `defaults`.

  Raises:
    SettingError: a key is unknown (the error names the nearest) or repeated, or a value has another type.
  """
  given: dict[str, Any] = {}
  for item in filter(None, (text or "").split(",")):
    key, _, value = (own.strip() for own in item.partition("="))
    check_choice("key behind the config file's name", key, defaults)
    if key in given:
      raise SettingError(key, value, f"is given twice, first as {given[key]!r}", "Give it once.")
    kind = type(defaults[key])
    try:
      given[key] = kind(value)
    except ValueError as error:
      raise SettingError(key, value, f"is not of type {kind.__name__}", "Mend it.") from error
  return {**defaults, **given}


def optional(value: Any) -> FieldReference:
  """Returns a placeholder for a configuration's field that the command line may also set to None."""
  return FieldReference(value, field_type=object)


def check_algorithm(name: str, own: Iterable[str], others: bool = True) -> None:
  """Checks the method of a cell: one of the table's, or another, which then has its default settings.

  Args:
    name: the method's name.
    own: the names of the table's methods.
    others: whether every method that trains a classifier runs at the table's settings.

  Raises:
    SettingError: the name is unknown (the error names the nearest), or no method that the table can have.
  """
  if name in own:
    return
  check_choice("algorithm", name, CLIENTS)
  if not (others and CLIENTS[name].models is MODELS):
    remedy = f"Use one of {', '.join(own)}, or configs/smoke.py, which runs every method."
    raise SettingError("algorithm", name, "cannot be run at this table's settings", remedy)
