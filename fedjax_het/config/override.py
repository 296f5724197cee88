"""Changes of a configuration by the command line, also in sections that its file does not have."""

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from fedjax_het.config.sections import sections
from fedjax_het.config.values import replaced
from fedjax_het.errors import SettingError, near


def with_empty_sections(config: ConfigDict) -> list[str]:
  """Adds the missing sections to a configuration as empty ones; returns their names."""
  found = {name: one for name, one in sections().items() if one.kind != "field" and name not in config}
  for name, one in found.items():
    config[name] = ConfigDict() if isinstance(one.default, dict) else one.default
  return [*found]


def leave_out_empty(config: ConfigDict, names: list[str]) -> None:
  """Removes the added sections that are still empty, because an empty section is the default."""
  for name in names:
    if name in config and not config[name]:
      del config[name]


def is_beyond_flags(config: ConfigDict, path: str) -> bool:
  """Returns whether ml_collections' own flags cannot set a field, given by its dotted path.

  They cannot where the path leads into a tuple, a plain value or a section that is not there, or to a field
  that a file set to None.
  """
  node, (*above, field) = config, path.split(".")
  for section in above:
    if not isinstance(node, ConfigDict) or section not in node:
      return True
    node = node[section]
  return not isinstance(node, ConfigDict) or _is_untyped(node, field)


def _is_untyped(node: ConfigDict, field: str) -> bool:
  """Returns whether a file set a field to a plain None, of which ml_collections knows no type."""
  return field in node and node.get_type(field) is type(None)


def _check_has_fields(path: str, section: str, config: ConfigDict, value: Any) -> None:
  """Raises `SettingError` unless a configuration has a section of this name, or may have one."""
  known = sections()
  if section not in {*known, *config}:
    problem = f"{section} is unknown to the configuration"
    raise SettingError(f"config.{path}", value, problem, near(section, {*known, *config}))
  if section not in config:
    problem = f"{section} is a value, which has no fields"
    raise SettingError(f"config.{path}", value, problem, f"Write --config.{section}=VALUE.")


def change(config: ConfigDict, changes: Mapping[str, Any]) -> None:
  """Sets dotted fields of a configuration, and the fields that follow from them, in place.

  Elements of a tuple or a list are reached by their number, from 0.

  Raises:
    SettingError: a value has another type than the field, the field's section does not exist, or there is no
      element of that number.
  """
  put_in = with_empty_sections(config)
  for path, value in changes.items():
    *above, field = path.split(".")
    node = config
    for depth, section in enumerate(above):
      if depth == 0:
        _check_has_fields(path, section, node, value)
      elif section not in node:
        node[section] = ConfigDict()
      inside = node[section]
      if isinstance(inside, list | tuple):
        field, value = section, replaced(inside, [*above[depth + 1 :], field], value, f"config.{path}")
        break
      if not isinstance(inside, ConfigDict):
        whole = ".".join(above)
        problem = f"{section} is a value, which has no fields"
        raise SettingError(f"config.{path}", value, problem, f"Write --config.{whole}=VALUE.")
      node = inside
    try:
      node[field] = value
    except TypeError as error:
      raise SettingError(f"config.{path}", value, str(error), "Give a value of that type.") from error
  leave_out_empty(config, put_in)
