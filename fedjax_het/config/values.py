"""Values of a configuration by their dotted paths, and the numbers that a run's program takes as values."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedjax_het.clients.local_settings import OPTIMIZERS, OURS
from fedjax_het.errors import SettingError
from fedjax_het.methods import TABLES, Method


def plain(config: Any) -> Any:
  """Returns a configuration, or a part of one, as dicts, tuples and lists of plain values."""
  config = config.to_dict() if hasattr(config, "to_dict") else config
  if isinstance(config, Mapping):
    return {name: plain(value) for name, value in config.items()}
  if isinstance(config, list | tuple):
    return type(config)(map(plain, config))
  return config


def replaced(node: Any, path: Sequence[str], value: Any, setting: str = "") -> Any:
  """Returns nested dicts, lists and tuples with another value at a path; elements are reached by number.

  Args:
    node: what the path starts from; it is not changed. A dict that lacks a name gets it.
    path: names of fields, and numbers of elements from 0.
    value: the new value.
    setting: what an error calls the path; by default the path with dots.

  Raises:
    SettingError: the path leads through a value, or there is no element of that number.
  """
  if not path:
    return value
  setting, (first, *rest) = setting or ".".join(path), path
  if isinstance(node, list | tuple):
    if not first.isdecimal() or int(first) >= len(node):
      problem = f"{first} is no number of an element, of which there are {len(node)}, counted from 0"
      above = setting.removesuffix(".".join(path)).rstrip(".")
      one = replaced({}, rest, value) if rest else value
      remedy = f'Name one that is there, or set all of them as a whole: {above}="({one!r},)".'
      raise SettingError(setting, value, problem, remedy)
    own = [*node]
    own[int(first)] = replaced(node[int(first)], rest, value, setting)
    return type(node)(own)
  if not isinstance(node, Mapping):
    above = setting.removesuffix(".".join(path)).rstrip(".")
    raise SettingError(setting, value, f"{above} is a value, which has no fields", f"Write {above}=VALUE.")
  return {**node, first: replaced(node.get(first, {}), rest, value, setting)}


def with_values(config: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
  """Returns a nested configuration with other values of some dotted fields."""
  changed = dict(config)
  for path, value in values.items():
    changed = replaced(changed, path.split("."), value)
  return changed


def each_of(parts: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
  """Yields (place, section) of all sections; the place of one of a tuple of sections has its number."""
  for name, given in parts.items():
    if isinstance(given, Mapping):
      yield name, given
    elif isinstance(given, list | tuple):
      yield from ((f"{name}.{number}", own) for number, own in enumerate(given))


def chosen(parts: Mapping[str, Any]) -> Iterator[tuple[str, Method, Mapping[str, Any]]]:
  """Yields (place, method, the section's settings and name) of each part that a configuration chooses."""
  for place, given in each_of(parts):
    table = TABLES.get(place.partition(".")[0])
    if table and given:
      yield place, table[given["name"]], given


def numbers(parts: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the settings of the parts that a program takes as values: dotted field -> number.

  These are all settings that may be fractions, defaults included, except those of `Method.from_data`. Runs
  that differ in these numbers alone are one program, and each has the bits of that member of a sweep. A
  setting of 0, or of its `Neutral` value, stays a constant, and what it would do is left out. In a sweep over
  other values it is a value of the program too: a participation then draws other cohorts than the engine does
  without it.

  Args:
    parts: the sections of a configuration that choose parts, and `local`.
  """
  found = {}
  optimizer = {**parts["local"], **parts["algorithm"]}.get("optimizer")
  ours = optimizer is None or (isinstance(optimizer, str) and optimizer in OPTIMIZERS)
  unused = () if ours else OURS
  for section, method, own in chosen(parts):
    for name, setting in method.settings.items():
      if name in method.from_data or (section == "algorithm" and name in unused):
        continue
      inherits = section == "algorithm" and name not in own and name in parts["local"]
      place, given = ("local", parts["local"]) if inherits else (section, own)
      value = given.get(name, setting.default)
      if setting.is_value and is_number(value) and value not in (0, setting.neutral):
        found[f"{place}.{name}"] = float(value)
  return found


def is_number(value: Any) -> bool:
  """Returns whether a setting's value is a number."""
  return isinstance(value, int | float) and not isinstance(value, bool)


def is_measured(value: Any) -> bool:
  """Returns whether a value read from a file is a finite number of a plausible size."""
  return is_number(value) and abs(value) < 1e100
