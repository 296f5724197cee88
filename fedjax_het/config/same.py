"""Equality of configurations: two are the same if they are equal once every default is filled in."""

from collections.abc import Mapping
from typing import Any

from fedjax_het.config.sections import sections

HOMES = ("algorithm", "local")  # sections that may have a setting of the client part


def with_defaults(stored: Mapping[str, Any]) -> dict[str, Any]:
  """Returns a configuration's nested fields with every default filled in, and without its empty sections.

  All settings of the client part are then in `algorithm`. Unknown fields are not changed.

  Args:
    stored: the content of a run's or a sweep's config.json.
  """
  if isinstance(stored.get("sweep"), Mapping) and isinstance(stored.get("config"), Mapping):
    return {**stored, "config": with_defaults(stored["config"])}
  found = dict(stored)
  if all(isinstance(found.get(home), Mapping) for home in HOMES):
    found["algorithm"] = {**found.pop("local"), **found["algorithm"]}
  for name, section in sections().items():
    given = found.get(name, section.default)
    if name == "local" or (section.required and name not in found):
      continue
    if section.kind == "field":
      if not section.required:
        found[name] = given
    elif given == {"name": section.unless_chosen}:
      found.pop(name)
    elif isinstance(given, Mapping) and (given or section.always):
      chosen = found.get("dataset") if name == "dataset_options" else given.get("name")
      found[name] = section.filled(given, chosen)
    elif section.kind == "choices" and given and isinstance(given, list | tuple):
      found[name] = [section.filled(own, own.get("name")) for own in given]
    elif not given:
      found.pop(name, None)
  return found


def as_given(path: str, *configs: Mapping[str, Any]) -> str:
  """Returns the name of a field of `with_defaults` in a configuration: `local.lr` for `algorithm.lr`.

  Args:
    path: the dotted field.
    configs: dotted fields of configurations; the first one that has the field determines the section.
  """
  other = path.replace("algorithm.", "local.", 1)
  return next((name for config in configs for name in (path, other) if name in config), path)
