"""Prints the names that a configuration can use: `--list` for all, `--list=NAME` for one."""

import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, cast

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedjax_het.clients.local_settings import LocalSettings
from fedjax_het.conditions import CONDITIONS, SEVERAL
from fedjax_het.config.sections import Section, sections
from fedjax_het.data.sources import FOLDERS
from fedjax_het.errors import check_choice
from fedjax_het.methods import CLIENTS, METHODS, Method, asked, partners
from fedjax_het.models import GENERATORS, MODELS
from fedjax_het.output.terminal import console as new_console
from fedjax_het.settings import NO_DEFAULT, Setting, origin_of, settings_of

LOCAL = "local training"  # stands for the settings of `LocalSettings` where all names are listed
AS_EPOCHS = "as epochs"  # how the default of `Method.own_epochs` is shown
WIDTH = 110  # width of output that is not a terminal
LISTED = (  # sections whose names are printed, in this order
  *METHODS, *CONDITIONS, "dataset_options", "model", "partition", "label_noise", "feature_shift", "task",
)  # fmt: skip
FIELDS_OF = {"dataset_options": "dataset"} | {name: f"{name}.0.name" for name in SEVERAL}


class Entry(NamedTuple):
  """A name that a configuration can use.

  Attributes:
    name: the name.
    about: a one-line description.
    settings: its settings by name, with the defaults that are shown.
    facts: () -> further facts by label, which are computed from the parts.
  """

  name: str
  about: str
  settings: Mapping[str, Setting]
  facts: Callable[[], Mapping[str, str]] = dict


def shown(default: Any) -> str:
  """Formats a setting's default; "" if there is none."""
  if default is NO_DEFAULT:
    return ""
  return f"{default:.4g}" if isinstance(default, float) else str(default)


def among(names: Iterable[str], everybody: Iterable[str]) -> str:
  """Describes a subset of names briefly: the names, or "any but" the others."""
  names, others = [*names], [name for name in everybody if name not in {*names}]
  if not others:
    return "any"
  return f"any but {', '.join(others)}" if len(others) < len(names) else ", ".join(names)


def can_be_asked(section: str) -> list[str]:
  """Returns the methods of a section that can be inspected, see `methods.asked`."""
  return [name for name, method in METHODS[section].items() if asked(method)[0] is not None]


def of_models() -> list[str]:
  """Returns the server parts that take models; the others take signals."""
  return [
    name for name, method in METHODS["server"].items() if getattr(asked(method)[0], "takes_models", False)
  ]


def goes_with(section: str, name: str) -> str:
  """Describes what a method can be composed with: "mixing: any but fedmgda; server: sgld", or "any".

  Client parts that bring their own part of the section (`Needs.brings`) are not named there, but for them
  that part is "its own".
  """
  each = {}
  for other, names in partners(section, name).items():
    free = [own for own in can_be_asked(other) if section not in brought_by(other, own)]
    each[other] = among([own for own in names if own in free], free)
  each |= dict.fromkeys(brought_by(section, name), "its own")
  if each.get("server") == among(of_models(), can_be_asked("server")):
    each["server"] = "models"
  return "; ".join(f"{other}: {names}" for other, names in each.items() if names != "any") or "any"


def brought_by(section: str, name: str) -> Collection[str]:
  """Returns the sections of which a client part brings its own part; none for other parts."""
  part = asked(CLIENTS[name])[0] if section == "algorithm" else None
  return () if part is None else part.needs.brings


def path_of(method: Method) -> str:
  """Returns the path of a method's file, relative to the package if it is inside."""
  return origin_of(method.factory).__module__.removeprefix("fedjax_het.").replace(".", "/") + ".py"


def entries() -> dict[str, list[Entry]]:
  """Returns all names that a configuration can use, by the field that takes them."""
  known = sections()
  return {
    FIELDS_OF.get(section, f"{section}.name"): [
      entry_of(known[section], name) for name in known[section].table()
    ]
    for section in LISTED
  }


def entry_of(section: Section, name: str) -> Entry:
  """Returns the entry of a name that a section can use."""
  taker, settings = section.table()[name], section.settings(name)
  if isinstance(taker, Method):
    as_epochs = {own: replace(settings[own], default=AS_EPOCHS) for own in taker.own_epochs}
    return Entry(name, taker.about, settings | as_epochs, lambda: _facts(section.name, taker))
  if section.name == "dataset_options" and name in FOLDERS:
    folder, _, wanted = FOLDERS[name]
    return Entry(name, f"{folder}/: {wanted}", settings)
  about = (inspect.getdoc(origin_of(taker)) or "").partition("\n")[0]
  facts = (lambda: {"with": trained_by(name)}) if section.name == "model" else dict
  return Entry(name, about, settings, facts)


def _facts(section: str, method: Method) -> dict[str, str]:
  known = {"keeps": method.keeps, "source": method.source, "file": path_of(method)}
  if why := asked(method)[1]:
    note = f"its factory does not make it around a small model, so what it goes with is not known ({why})"
    return {"note": note} | known
  found = {"with": goes_with(section, method.name)}
  if method.models:
    found["model"] = among(method.models, MODELS | GENERATORS)
  return found | known


def trained_by(model: str) -> str:
  """Describes which client parts can train a model, in the form of `goes_with`."""
  known = can_be_asked("algorithm")
  return f"algorithm: {among([name for name in known if model in CLIENTS[name].models], known)}"


def print_list(name: str = "") -> None:
  """Prints all names with their settings, or one name with the meaning of its settings.

  Args:
    name: the name to print; "" for all.

  Raises:
    SettingError: the name is unknown; the error names the nearest.
  """
  console = new_console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
  if not name:
    for field, group in entries().items():
      _print_all(console, field, group)
    local, table = settings_of(cast(Any, LocalSettings)), _grid(2)
    table.add_row(LOCAL, ", ".join(f"{setting}={shown(one.default)}" for setting, one in local.items()))
    console.print(Text("--config.local", "bold"), table, "", sep="\n")
    console.print("--list=NAME: what the settings of NAME mean (of a client part: in algorithm or local).")
    return
  having = [(field, entry) for field, group in entries().items() for entry in group]
  check_choice("list", name, [entry.name for _, entry in having])
  for field, entry in having:
    if entry.name == name:
      _print_one(console, field, entry)


def _print_all(console: Console, field: str, group: list[Entry]) -> None:
  console.print(Text(f"--config.{field}", "bold"))
  table = _grid(2)
  for entry in group:
    settings, facts = _brief(entry.settings), entry.facts()
    with_what = next((f"{label} {facts[label]}" for label in ("with", "note") if label in facts), "")
    table.add_row(entry.name, "\n".join(filter(None, (entry.about, ", ".join(settings), with_what))))
  console.print(table, "")


def _brief(settings: Mapping[str, Setting]) -> list[str]:
  """Returns "name=default" of each setting, with one name for all of `LocalSettings`."""
  local = settings_of(cast(Any, LocalSettings))
  together = {*local} <= {*settings}
  own = {name: shown(one.default) for name, one in settings.items() if not (together and name in local)}
  brief = [name + f"={default}" * bool(default) for name, default in own.items()]
  return [*brief, LOCAL] if together else brief


def _print_one(console: Console, field: str, entry: Entry) -> None:
  section, _, rest = field.partition(".")
  chosen = f"\"{{'name': '{entry.name}'}}\""  # the whole section: other settings of it may not fit
  flag = f"--config.{section}={chosen}" if rest == "name" else f"--config.{field}={entry.name}"
  console.print(Text(flag, "bold"), Text(entry.about), "", sep="\n")
  facts, settings = _grid(2), _grid(3)
  known = entry.facts()
  for label, text in known.items():
    facts.add_row(label, text)
  for name, own in entry.settings.items():
    settings.add_row(name, shown(own.default), own.about)
  console.print(*([facts, ""] if known else []), settings)


def _grid(columns: int) -> Table:
  table = Table.grid(padding=(0, 2, 0, 0))
  table.add_column(style="bold", no_wrap=True)
  for _ in range(columns - 1):
    table.add_column(overflow="fold")
  return table
