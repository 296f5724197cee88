"""Detects settings that a part does not have: misspelt, or left over from another part."""

from collections.abc import Collection, Mapping
from typing import Any

from fedjax_het.config.sections import Section, sections
from fedjax_het.errors import SettingError, check_choice, near
from fedjax_het.methods import CLIENTS
from fedjax_het.models import MODELS
from fedjax_het.settings import check_settings

NONE = "(it has none)"
MOST_NAMED = 4  # most parts that are named as having the setting


def check_known(kind: Section, given_of: Mapping[str, Mapping[str, Any]], also: str = "") -> None:
  """Raises `SettingError` for a setting that the part that a section chooses does not have.

  Args:
    kind: the section that has the part's name.
    given_of: section -> settings: this section, and others that may have settings of the part.
    also: another way to choose the part, for the error.
  """
  first, name = kind.name, given_of[kind.name]["name"]
  known = kind.settings(name)
  for section, settings in given_of.items():
    for field, value in settings.items():
      if field == "name" or field in known:
        continue
      problem = f"unknown to {name}"
      if owners := [own for own in kind.table() if field in kind.settings(own)]:
        if len(owners) <= MOST_NAMED:
          problem += f", a setting of {', '.join(owners)}"
        flags = " ".join(
          _flag(own, ({"name": name} if own == first else {}) | _kept(given, known))
          for own, given in given_of.items()
          if own == first or not {*given} <= {"name", *known}
        )
        remedy = (
          f"Known: {', '.join(sorted(known)) or NONE}. Settings of another {first} are left where only "
        )
        remedy += f"the name is changed: write {flags}{also}."
      else:
        remedy = near(field, known or [NONE])
      raise SettingError(f"{section}.{field}", value, problem, remedy)


def check_name(place: str, section: Section, name: str) -> None:
  """Raises `SettingError` unless a section can choose the part of a name, such as "krum" for `server`.

  If other sections can, as `mixing` can choose "krum", the error says so and how to write it there.

  Args:
    place: the section's name, or "SECTION.NUMBER" for one of several.
    section: the section's entry in the registry.
    name: the name that a configuration gives.
  """
  table = section.table()
  if isinstance(name, str) and name not in table:
    choices = [own for own in sections().values() if own.kind in ("choice", "choices")]
    if others := [own for own in choices if name in own.table()]:
      problem = f"unknown here, but a name of {' and of '.join(own.name for own in others)}"
      written = _flag(others[0].name, {"name": name}, several=others[0].kind == "choices")
      remedy = f"Write {written}. Known: {', '.join(sorted(table))}."
      raise SettingError(f"{place}.name", name, problem, remedy)
  check_choice(f"{place}.name", name, table)


def check_method(kind: Section, config: Mapping[str, Any]) -> None:
  """Raises `SettingError` for an unknown setting or an invalid value of the method named in a section."""
  section, also = kind.name, ""
  given, name = {section: config[section]}, config[section]["name"]
  check_name(section, kind, name)
  if section == "algorithm":
    given["local"] = config["local"]
    example = name if CLIENTS[name].models is MODELS else "fedavg"
    also = ", or choose it behind the file's name, as in "
    also += f"--config=configs/quickstart.py:algorithm={example}"
    if "name" in config["local"]:
      remedy = "Name the method by --config.algorithm.name."
      raise SettingError("local.name", config["local"]["name"], "is no setting of local training", remedy)
    for field in sorted({*config["algorithm"]} & {*config["local"]}):
      raise SettingError(
        f"algorithm.{field}", config["algorithm"][field],
        f"is given in local too, as {config['local'][field]!r}", f"Give it once: --config.local.{field}=...",
      )  # fmt: skip
  check_known(kind, given, also)
  for place, settings in given.items():
    own = {field: value for field, value in settings.items() if field != "name"}
    check_settings(f"to {name}", kind.settings(name), own, place=place)


def _kept(given: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
  return {field: value for field, value in given.items() if field in known and value is not None}


def _flag(section: str, settings: Mapping[str, Any], several: bool = False) -> str:
  return f'--config.{section}="{(dict(settings),) if several else dict(settings)}"'
