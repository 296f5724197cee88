"""Detects settings that a part does not have: misspelt, or left over from another part."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from fedjax_het import models
from fedjax_het.errors import SettingError, check_choice, near
from fedjax_het.methods import METHODS, Method
from fedjax_het.models import MODELS

NONE = "(it has none)"
MOST_NAMED = 4  # most parts that are named as having the setting


def check_known(
  name: str,
  sections: Mapping[str, Mapping[str, Any]],
  known: Collection[str],
  others: Callable[[], Mapping[str, Collection[str]]],
  also: str = "",
) -> None:
  """Raises `SettingError` for a setting that the part called `name` does not have.

  Args:
    name: the part's name.
    sections: section -> settings; the first section has the part's name.
    known: the part's settings.
    others: () -> {part of the same kind: its settings}.
    also: another way to choose the part, for the error.
  """
  first = next(iter(sections))
  for section, settings in sections.items():
    for field, value in settings.items():
      if field == "name" or field in known:
        continue
      problem = f"unknown to {name}"
      if owners := [own for own, has in others().items() if field in has]:
        if len(owners) <= MOST_NAMED:
          problem += f", a setting of {', '.join(owners)}"
        flags = " ".join(
          _flag(own, ({"name": name} if own == first else {}) | _kept(given, known))
          for own, given in sections.items()
          if own == first or not {*given} <= {"name", *known}
        )
        remedy = (
          f"Known: {', '.join(sorted(known)) or NONE}. Settings of another {first} are left where only "
        )
        remedy += f"the name is changed: write {flags}{also}."
      else:
        remedy = near(field, known or [NONE])
      raise SettingError(f"{section}.{field}", value, problem, remedy)


def check_method(section: str, config: Mapping[str, Any]) -> None:
  """Raises `SettingError` for a setting that the method named in a section does not have."""
  name, table = config[section]["name"], METHODS[section]
  check_choice(f"{section}.name", name, table)
  method, sections, also = table[name], [section], ""
  if section == "algorithm":
    sections.append("local")
    example = name if method.models is MODELS else "fedavg"
    also = ", or choose it behind the file's name, as in "
    also += f"--config=configs/quickstart.py:algorithm={example}"
  given = {own: config[own] for own in sections}
  if section == "algorithm" and "name" in config["local"]:
    remedy = "Name the method by --config.algorithm.name."
    raise SettingError("local.name", config["local"]["name"], "is no setting of local training", remedy)
  for field in sorted({*config[section]} & {*config.get("local", {})} if section == "algorithm" else ()):
    raise SettingError(
      f"algorithm.{field}", config[section][field], f"is given in local too, as {config['local'][field]!r}",
      f"Give it once: --config.local.{field}=...",
    )  # fmt: skip
  others = lambda: {other: _settable(entry) for other, entry in table.items()}  # noqa: E731
  check_known(name, given, _settable(method), others, also)


def check_model(given: Mapping[str, Any]) -> None:
  """Raises `SettingError` for an option that the model of a section `model` does not have."""
  check_known(
    given["name"], {"model": given}, models.options_of(given["name"]),
    lambda: {name: models.options_of(name) for name in (*MODELS, *models.GENERATORS)},
  )  # fmt: skip


def _settable(method: Method) -> set[str]:
  return {*method.settings, *method.shares}


def _kept(given: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
  return {field: value for field, value in given.items() if field in known and value is not None}


def _flag(section: str, settings: Mapping[str, Any]) -> str:
  return f'--config.{section}="{dict(settings)}"'
