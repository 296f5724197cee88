"""Groups of runs that differ in the seed only, and what tells whether two groups have the same data."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedjax_het.compare.runs import FOUND, Run, leaves
from fedjax_het.conditions import CONDITIONS, SEVERAL
from fedjax_het.config.same import with_defaults
from fedjax_het.errors import SettingError
from fedjax_het.experiment.experiment import FREE
from fedjax_het.methods import METHODS
from fedjax_het.metrics.budget import mean_budget
from fedjax_het.metrics.late import unsettled
from fedjax_het.studies import STUDIES
from fedjax_het.workdir.folder import as_json

NAMES = ("algorithm.name", "dataset", "mixing.name", "server.name")  # fields shown first in labels, by value
PARTS = ("local", *METHODS, *CONDITIONS)  # sections left out in labels: "nu=1.0"
LAST = ("rounds", "eval_every")
UNKNOWN = "not known"  # stands for the data of a run that has not recorded them
OF_DATA = ("dataset", *FOUND, "num_clients", "test_fraction", "stratify", "unseen.fraction")
SECTIONS_OF_DATA = ("dataset_options", "partition")  # all settings of these sections concern the data
OF_CONDITIONS = tuple(f"{section}.name" for section in CONDITIONS if section not in SEVERAL)
# Fields that are in every label if any two groups differ in them.
ALWAYS = ("dataset", "rounds", *OF_CONDITIONS)


class Group(NamedTuple):
  """Runs of one configuration with different seeds.

  Attributes:
    label: a short text that no other group has.
    fields: dotted field -> value, for fields that differ between groups and that this group has.
    runs: its runs, sorted by seed.
    counted: the runs whose figures are averaged: the complete ones, or where there are none, all that have
      not diverged, at `round`.
    round: None where complete runs count; else the round of the last evaluation that all of `counted` have.
    data: dotted field -> value, for fields that differ between groups and for which `of_data` holds;
      None where one is not set.
  """

  label: str
  fields: Mapping[str, Any]
  runs: Sequence[Run]
  counted: Sequence[Run]
  round: int | None
  data: Mapping[str, Any]

  @property
  def state(self) -> str:
    """How far its runs have come, in a few words."""
    counts: dict[str, int] = {}
    for run in self.runs:
      counts[run.state] = counts.get(run.state, 0) + 1
    if len(counts) == 1:
      text = next(iter(counts))
    else:
      text = "; ".join(f"{count} {state}" for state, count in counts.items())
    late = self.round is not None and any(run.reached != self.round for run in self.counted)
    return f"{text}; figures of round {self.round}" if late else text

  def metrics(self, run: Run) -> Mapping[str, Any]:
    """Returns a run's figures, model -> metric -> figures.

    For a run that counts these are of the group's round, else of the run's last evaluation.
    """
    return run.metrics(self.round if any(run is own for own in self.counted) else None)

  def values(self, model: str, metric: str, figure: str) -> dict[int, float]:
    """Returns a figure over the clients for the runs that count and have it: seed -> value.

    For the model "synthetic" it is the top-1 accuracy of the classifier that is trained on a run's synthetic
    examples only.
    """
    found = {}
    for run in self.counted:
      metrics = {**self.metrics(run)}
      for study in STUDIES:
        metrics |= study.judged(run.summary)
      value = ((metrics.get(model) or {}).get(metric) or {}).get(figure)
      if value is not None:
        found[run.seed] = value
    return found


def budget_of(group: Group) -> dict[str, float]:
  """Returns what a complete run of a group took, a mean over its seeds, see `metrics.budget`."""
  return mean_budget([run.summary for run in group.counted if run.complete])


def late_of(group: Group, model: str, metric: str) -> tuple[float, float] | None:
  """Returns the lowest and highest late mean of a group's complete runs if one of them has not settled."""
  runs = [run.summary for run in group.counted if run.complete]
  if not any(unsettled(own, model, metric) for own in runs):
    return None
  ranges = [((own.get("late") or {}).get(model) or {}).get(metric) or {} for own in runs]
  ends = [own[end] for own in ranges for end in ("min", "max") if own.get(end) is not None]
  return min(ends), max(ends)


def grouped(runs: Sequence[Run]) -> list[Group]:
  """Groups runs, in the order of each group's first run; a repeated seed starts another group."""
  kinds: dict[tuple[str, int], list[Run]] = {}
  seen: dict[tuple[str, int], int] = {}
  configs: dict[tuple[str, int], dict[str, Any]] = {}
  differing_data = _found(runs)
  for run in runs:
    config = leaves(run.config, (*FREE, "seed", "tracking"))
    data = {field: run.found.get(field, UNKNOWN) for field in differing_data[_data_set(run)]}
    kind = as_json(leaves(with_defaults(run.config), (*FREE, "seed")) | data)
    config |= data
    copy = seen[kind, run.seed] = seen.get((kind, run.seed), -1) + 1
    kinds.setdefault((kind, copy), []).append(run)
    configs[kind, copy] = config
  differing = differences(list(configs.values()))
  fields = [{name: each[name] for name in differing if name in each} for each in configs.values()]
  groups = []
  for label, own, members in zip(labels(fields), fields, kinds.values()):
    members = sorted(members, key=lambda run: run.seed)
    data = {name: told(name, own) for name in differing if of_data(name)}
    groups.append(Group(label, own, members, *_counted(members), data))
  if not differing:
    first = runs[0].config
    one = f"{first['algorithm']['name']} on {first.get('dataset', '?')}"
    groups = [group._replace(label=one if len(groups) == 1 else group.runs[0].name) for group in groups]
  return groups


def _data_set(run: Run) -> str:
  return as_json({field: run.config.get(field) for field in ("dataset", "dataset_options")})


def _found(runs: Sequence[Run]) -> dict[str, list[str]]:
  """Returns the recorded fields of each data set that differed between runs: data set -> fields."""
  seen: dict[str, dict[str, set[Any]]] = {}
  for run in runs:
    own = seen.setdefault(_data_set(run), {field: set() for field in FOUND})
    for field, value in run.found.items():
      own[field].add(value)
  return {name: [field for field, values in own.items() if len(values) > 1] for name, own in seen.items()}


def _counted(runs: Sequence[Run]) -> tuple[list[Run], int | None]:
  complete = [run for run in runs if run.complete]
  if complete:
    return complete, None
  going = [run for run in runs if not run.diverged and run.lines]
  shared = set.intersection(*({line["round"] for line in run.lines} for run in going)) if going else set()
  return (going, max(shared)) if shared else ([], None)


def differences(configs: Sequence[Mapping[str, Any]]) -> list[str]:
  """Returns the fields in which some configurations differ, in the order of their appearance in labels."""
  fields = dict.fromkeys(name for config in configs for name in config)

  def differs(name: str) -> bool:
    return len({as_json({"": config[name]}) if name in config else "" for config in configs}) > 1

  return sorted(filter(differs, fields), key=_order)


def labels(fields: Sequence[Mapping[str, Any]]) -> list[str]:
  """Returns a short, unique label for each group: names without their fields, other settings as "nu=1.0".

  The data set, the rounds and the names of conditions, as "attack=alie", are in every label if any two groups
  differ in them.
  """
  found = [", ".join(own.values()) or "otherwise" for own in _named(fields)]
  return [
    f"{label} ({found[: place + 1].count(label)})" if found.count(label) > 1 else label
    for place, label in enumerate(found)
  ]


def unnamed(groups: Sequence[Group]) -> dict[str, list[Any]]:
  """Returns the fields in which groups differ without a label that says so: dotted field -> its values.

  Only fields that the configurations of all groups have count, so that a method's own settings do not.
  """
  fields = [group.fields for group in groups]
  labelled = {name for own in _named(fields) for name in own}
  shared = [name for name in fields[0] if name not in labelled and all(name in own for own in fields)]
  return {name: [*{as_json({"": own[name]}): own[name] for own in fields}.values()] for name in shared}


def _named(fields: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
  """Returns the parts of each group's label by field, such as {"algorithm.nu": "nu=1.0"}."""
  every = list(dict.fromkeys(name for own in fields for name in own))
  ends = [name.rpartition(".")[2] for name in every]
  always = [name for name in ALWAYS if len({str(own.get(name)) for own in fields}) > 1]
  parts: list[dict[str, str]] = [{} for _ in fields]
  for name in sorted(every, key=_order):
    section, _, end = name.rpartition(".")
    short = end if section in PARTS and ends.count(end) == 1 else name
    title = "" if name in NAMES else f"{section if name in OF_CONDITIONS else short}="
    alike: dict[str, set[str]] = {}
    for own, part in zip(fields, parts):
      alike.setdefault(", ".join(part.values()), set()).add(str(own.get(name)))
    for own, part in zip(fields, parts):
      if name in own and (name in always or len(alike[", ".join(part.values())]) > 1):
        part[name] = f"{title}{own[name]}"
  return parts


def _order(name: str) -> tuple[int, str]:
  """Sort key of fields in labels: names, conditions, methods' settings, others, lengths and frequencies."""
  if name in NAMES:
    return NAMES.index(name), name
  if name in OF_CONDITIONS:
    return len(NAMES) + OF_CONDITIONS.index(name), name
  before = len(NAMES) + len(OF_CONDITIONS)
  if name in LAST:
    return before + 2 + LAST.index(name), name
  return before + (name.partition(".")[0] not in PARTS), name


def baseline_of(groups: Sequence[Group], name: str = "") -> int:
  """Returns the index of the group that the others are compared with, named by label, run or folder.

  The beginning of a label, or of a run's name, suffices where it fits one group only. By default it is the
  first group that has figures.

  Raises:
    SettingError: no group or run has that name, or several begin with it.
  """
  if not name:
    return next((place for place, group in enumerate(groups) if group.counted), 0)
  known = {group.label: place for place, group in enumerate(groups)}
  for place, group in enumerate(groups):
    for run in group.runs:
      known.setdefault(run.name, place)
      known.setdefault(str(run.folder), place)
  for own in (name, os.path.abspath(os.path.expanduser(name))):
    if own in known:
      return known[own]
  begun = {place for own, place in known.items() if own.startswith(name)}
  if len(begun) == 1:
    return begun.pop()
  if begun:
    labels = "; ".join(groups[place].label for place in sorted(begun))
    raise SettingError("baseline", name, "several begin with it", f"Write more of one of: {labels}.")
  remedy = f"One of: {'; '.join(group.label for group in groups)}; or a run's name or folder."
  raise SettingError("baseline", name, "no run is called that", remedy)


def of_data(field: str) -> bool:
  """Returns whether a dotted field determines which clients there are or which examples evaluate them."""
  return field in OF_DATA or field.partition(".")[0] in SECTIONS_OF_DATA


def told(field: str, own: Mapping[str, Any]) -> Any:
  """Returns a field's value in a group's `data`, or None if it is not set.

  In sections None, 0 and False differ from a field that is not set, which means the data set's default. In
  all other fields they mean the same as a field that is not set.
  """
  if field not in own:
    return None
  value = own[field]
  return value or None if field in OF_DATA else str(value) if value is None else value


def unlike(own: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
  """Returns the fields in which two groups' `data` differ.

  If the data set differs, only "dataset" is returned, because the other fields depend on it.
  """
  found = [name for name in own if own[name] != other[name]]
  return ["dataset"] if "dataset" in found else found
