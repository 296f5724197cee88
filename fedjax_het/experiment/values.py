"""The numbers of a configuration: which are values of its program, and a configuration with others."""

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from fedjax_het.methods import METHODS


def numbers(config: Mapping[str, Any]) -> dict[str, Any]:
  """The settings of a configuration's parts that its program takes as values: dotted field -> number.

  These are all settings that may be fractions, defaults included, except those of `Method.from_data`. Runs
  that differ in these numbers alone are one program, and each has the bits of that member of a sweep. A
  setting of 0 stays a constant, and what it multiplies is left out.
  """
  found = {}
  for section, table in METHODS.items():
    own, method = config[section], table[config[section]["name"]]
    for name, setting in method.settings.items():
      if name in method.from_data:
        continue
      inherits = section == "algorithm" and name not in own and name in config["local"]
      place = "local" if inherits else section
      value = config[place].get(name, setting.default)
      if setting.is_value and is_number(value) and value:
        found[f"{place}.{name}"] = float(value)
  return found


def is_number(value: Any) -> bool:
  """Whether a value of a setting is a number."""
  return isinstance(value, int | float) and not isinstance(value, bool)


def is_measured(value: Any) -> bool:
  """Whether a value that a file holds is a finite number of a size that something measured can have."""
  return is_number(value) and abs(value) < 1e100


def with_values(config: ConfigDict, values: Mapping[str, Any]) -> ConfigDict:
  """A copy of a configuration with other values of some dotted fields."""
  changed = ConfigDict(config.to_dict(), type_safe=False)
  for path, value in values.items():
    *sections, field = path.split(".")
    node = changed
    for section in sections:
      node = node[section]
    node[field] = value
  return changed
