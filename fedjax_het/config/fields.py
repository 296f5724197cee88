"""All fields that a configuration has or may have, with meaning, type and default: `--describe`.

The meaning of a field is documented once, in the `Args` of the function that takes it.
"""

import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from rich.text import Text

from fedjax_het.conditions import CONDITIONS, IF_UNNAMED
from fedjax_het.config.listing import WIDTH, Entry, entry_of, shown
from fedjax_het.config.sections import Section, sections
from fedjax_het.config.values import each_of
from fedjax_het.data.sources import kind_of
from fedjax_het.errors import check_choice
from fedjax_het.output.terminal import console as new_console
from fedjax_het.settings import NO_DEFAULT

INDENT = 4 * " "
MORE = " (--list names all)"


class Field(NamedTuple):
  """A field of a configuration.

  Attributes:
    path: its dotted path, as in `--config.PATH=VALUE`.
    about: its meaning.
    kind: its type in words; "" for any type.
    default: its value if a configuration leaves it out; `NO_DEFAULT` if it is required.
    value: its value in the configuration; `NO_DEFAULT` if not set.
  """

  path: str
  about: str
  kind: str
  default: Any
  value: Any


def fields(config: Mapping[str, Any]) -> list[Field]:
  """Returns all fields of a configuration, including those at their defaults.

  Raises:
    SettingError: a field or name is unknown; the error names the nearest.
  """
  known = sections()
  found = [field for section in known.values() for field in _of(section, config)]
  for path in _set(config):
    check_choice("field of the configuration", path, [field.path for field in found])
  order = [*known]
  return sorted(found, key=lambda field: order.index(field.path.partition(".")[0]))


def _of(section: Section, config: Mapping[str, Any]) -> Iterator[Field]:
  """Yields a field, or the fields of a section; a client part's settings may be in `algorithm` or `local`."""
  if own := section.setting:
    yield Field(section.name, own.about, own.kind, own.default, config.get(section.name, NO_DEFAULT))
    return
  given, settings = config.get(section.name, section.default), section.settings()
  if section.kind == "choices":
    alone = section._replace(kind="choice")
    for number, own in enumerate(given):
      yield from _of(alone._replace(name=f"{section.name}.{number}"), {f"{section.name}.{number}": own})
    if not given:
      yield Field(section.name, f"a tuple of them, in order{MORE}", "tuple", (), NO_DEFAULT)
    return
  unnamed = IF_UNNAMED.get(section.name) if given else None
  if section.kind == "choice" and (name := given.get("name", unnamed)):
    entry = _chosen(section, f"{section.name}.name", name)
    yield Field(f"{section.name}.name", f"{entry.about}{MORE}", "str", unnamed or NO_DEFAULT, name)
    settings = {**entry.settings}
  elif section.kind == "choice":
    default = section.unless_chosen or None
    about = "the data set's own by default" if section.name == "task" else "which one"
    about += "" if default or section.name == "task" else "; by default none"
    yield Field(f"{section.name}.name", f"{about}{MORE}", "str", default, NO_DEFAULT)
    for name in section.table():
      settings |= {field: own for field, own in section.settings(name).items() if field in given}
  elif section.name == "dataset_options":
    settings = {**_chosen(section, "dataset", kind_of(config["dataset"])).settings}
  for name, own in settings.items():
    inherits = section.name == "algorithm" and name not in given and name in config.get("local", {})
    place, values = ("local", config["local"]) if inherits else (section.name, given)
    yield Field(f"{place}.{name}", own.about, own.kind, own.default, values.get(name, NO_DEFAULT))


def _chosen(section: Section, setting: str, name: str) -> Entry:
  check_choice(setting, name, section.table())
  return entry_of(section, name)


def _set(config: Mapping[str, Any]) -> Iterator[str]:
  """Returns the paths that a configuration sets, with sections expanded to their fields."""
  for name, value in config.items():
    if isinstance(value, Mapping) or hasattr(value, "keys"):
      yield from (f"{name}.{field}" for field in value)
    elif isinstance(value, list | tuple) and name in CONDITIONS:
      yield from (f"{place}.{field}" for place, own in each_of({name: value}) for field in own)
    else:
      yield name


def print_fields(config: Mapping[str, Any], only: str = "") -> None:
  """Prints the fields of a configuration.

  Args:
    config: the configuration.
    only: a field, or a section, to print alone; "" for all.

  Raises:
    SettingError: see `fields`; or there is no such field.
  """
  console = new_console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
  found = fields(config)
  names = {name for field in found for name in (field.path, field.path.partition(".")[0])}
  if only:
    check_choice("describe", only, sorted(names))
  for field in found:
    if only in ("", field.path, field.path.partition(".")[0]):
      about = Text(field.about).wrap(console, console.width - len(INDENT))
      console.print(_line(field), *(Text(INDENT) + line for line in about), sep="\n")
  if not only:
    console.print("\n--config.FIELD=VALUE sets a field; --list prints what there is to name.")


def _line(field: Field) -> Text:
  """Formats a field as "local.lr = 0.05  float, by default 0.01"."""
  text = Text(field.path, "bold")
  if field.value is not NO_DEFAULT:
    text.append(f" = {shown(field.value) or repr('')}")
  default = "" if field.default is NO_DEFAULT else f"by default {shown(field.default) or repr('')}"
  return text.append(f"  {', '.join(filter(None, (field.kind, default)))}", "cyan")
