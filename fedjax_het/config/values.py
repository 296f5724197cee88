"""The numbers of a configuration: which are values of its program, and a configuration with others."""

import typing
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from fedjax_het.methods import METHODS


def numbers(config: Mapping[str, Any]) -> dict[str, Any]:
  """The settings of a configuration's parts that its program takes as values: dotted field -> number.

  All that may be fractions, defaults included, but for those of which something is prepared: runs that differ
  in these alone are one program, and each has the bits of that member of a sweep. A setting of 0 stays a
  constant, and what it multiplies is left out.
  """
  found = {}
  for section, table in METHODS.items():
    own, method = config[section], table[config[section]["name"]]
    used = method.prepares.settings if method.prepares else ()
    for name, parameter in method.settings.items():
      if name in used:
        continue
      inherits = section == "algorithm" and name not in own and name in config["local"]
      place = "local" if inherits else section
      value = config[place].get(name, parameter.default)
      if may_be_fraction(parameter.annotation) and is_number(value) and value:
        found[f"{place}.{name}"] = float(value)
  return found


def may_be_fraction(annotation: Any) -> bool:
  """Whether a setting of this annotation is a number that need not be whole."""
  return float in (annotation, *typing.get_args(annotation))


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
