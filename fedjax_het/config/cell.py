"""A cell of a paper's table, from the string behind the config file's name, and fields that may be None."""

from collections.abc import Mapping
from typing import Any

from ml_collections import FieldReference

from fedjax_het.errors import SettingError, check_choice


def parse_cell(text: str | None, defaults: Mapping[str, Any]) -> dict[str, Any]:
  """ "dataset=mnist,clients=100" -> a dict with the types of `defaults`.

  Raises:
    SettingError: an unknown key (naming the nearest), a key twice, or a value of another type.
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
  """A field of a configuration that the command line may also set to None."""
  return FieldReference(value, field_type=object)
