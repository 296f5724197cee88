"""All fields that a configuration has or may have, with meaning, type and default: `--describe`.

The meaning of a field is documented once, in the `Args` of the function that takes it.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from rich.text import Text

from fedjax_het.config.listing import AS_EPOCHS, WIDTH, Entry, entries, shown
from fedjax_het.config.sections import sections
from fedjax_het.data.clients import split_clients
from fedjax_het.data.federate import federate
from fedjax_het.data.partition import partition
from fedjax_het.data.sources import kind_of, load
from fedjax_het.engine.run import run
from fedjax_het.errors import check_choice
from fedjax_het.methods import METHODS
from fedjax_het.output.terminal import console as new_console
from fedjax_het.settings import NO_DEFAULT, settings_of
from fedjax_het.studies.unseen import after_steps

INDENT = 4 * " "


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


# Fields that are an argument of a function: (function, the argument's name if it differs).
ARGUMENTS: dict[str, tuple[Callable[..., Any], str]] = {
  "dataset": (load, "name"),
  "data_dir": (load, ""),
  "dataset_options.resize": (load, "resize"),
  "num_clients": (partition, ""),
  "test_fraction": (federate, ""),
  "valid_fraction": (federate, ""),
  "stratify": (federate, ""),
  "rounds": (run, ""),
  "cohort_size": (run, ""),
  "eval_every": (run, ""),
  "late_evaluations": (run, ""),
  "unseen.fraction": (split_clients, ""),
  "unseen.steps": (after_steps, ""),
}
# Fields that the launcher itself uses: meaning, type, default.
OWN: dict[str, tuple[str, str, Any]] = {
  "seed": ("what partition, split, first parameters and every round's draws follow from", "int", NO_DEFAULT),
  "partition.seed": (
    "what the partition and each client's split into train, valid and test follow from, in place of `seed`",
    "int", None,
  ),
}  # fmt: skip


def fields(config: Mapping[str, Any]) -> list[Field]:
  """Returns all fields of a configuration, including those at their defaults.

  Raises:
    SettingError: a field or name is unknown; the error names the nearest.
  """
  found = [*_all(config)]
  for path in _set(config):
    check_choice("field of the configuration", path, [field.path for field in found])
  order = [*sections()]
  return sorted(found, key=lambda field: order.index(field.path.partition(".")[0]))


def _all(config: Mapping[str, Any]) -> Iterator[Field]:
  def field(path: str, about: str, kind: str, default: Any) -> Field:
    section, _, name = path.partition(".")
    value = config.get(section, {} if name else NO_DEFAULT)
    return Field(path, about, kind, default, value.get(name, NO_DEFAULT) if name else value)

  known = entries()
  for path, (factory, argument) in ARGUMENTS.items():
    setting = settings_of(factory)[argument or path.rpartition(".")[2]]
    yield field(path, setting.about, setting.kind, setting.default)
  for path, (about, kind, default) in OWN.items():
    yield field(path, about, kind, default)
  for place in sections().values():
    if place.options is None:
      continue
    for name, setting in place.options.settings.items():
      path = name if place.kind == "field" else f"{place.name}.{name}"
      yield field(path, setting.about, setting.kind, setting.default)

  def of(entry: Entry, section: str) -> Iterator[Field]:
    settings = settings_of(entry.factory)
    for name, (default, about) in entry.settings.items():
      if f"{section}.{name}" in ARGUMENTS:  # an option of every data set
        continue
      setting = settings.get(name)
      kind, value = (setting.kind, setting.default) if setting else ("", default or None)
      value = AS_EPOCHS if default == AS_EPOCHS else value
      yield field(f"{section}.{name}", about, kind, value)

  def named(section: str, name: str) -> Entry:
    group = {entry.name: entry for entry in known.get(f"{section}.name", known.get(section, []))}
    check_choice(f"{section}.name", name, group)
    return group[name]

  data = named("dataset", kind_of(config["dataset"]))
  yield from of(data, "dataset_options")
  choices = [own.name for own in sections().values() if own.kind == "choice"]
  for section in choices:
    if section == "algorithm":  # its settings may be in either of two sections
      continue
    given = config.get(section, {})
    if name := given.get("name"):
      entry = named(section, name)
      yield field(f"{section}.name", f"{entry.about} (--list names all)", "str", NO_DEFAULT)
      yield from of(entry, section)
      continue
    also = {own.path: own for entry in known[f"{section}.name"] for own in of(entry, section)}
    about = "the data set's own by default" if section == "task" else "which one; by default none"
    yield field(f"{section}.name", f"{about} (--list names all)", "str", None)
    yield from (own for path, own in also.items() if path.partition(".")[2] in given)
  client = named("algorithm", config["algorithm"]["name"])
  yield field("algorithm.name", f"{client.about} (--list names all)", "str", NO_DEFAULT)
  more = METHODS["algorithm"][client.name].from_data
  for own in of(client, "algorithm"):  # a setting may be in either section
    name = own.path.partition(".")[2]
    if name in more:
      own = own._replace(kind=more[name].kind, default=more[name].default)
    if name in config.get("local", {}) and name not in config["algorithm"]:
      own = own._replace(path=f"local.{name}", value=config["local"][name])
    yield own


def _set(config: Mapping[str, Any]) -> Iterator[str]:
  """Returns the paths that a configuration sets, with sections expanded to their fields."""
  for name, value in config.items():
    if isinstance(value, Mapping) or hasattr(value, "keys"):
      yield from (f"{name}.{field}" for field in value)
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
