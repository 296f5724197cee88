"""Runs that differ in nothing but the seed, as one."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedjax_het.compare.data import FOUND, of_data, told
from fedjax_het.compare.runs import Run, leaves
from fedjax_het.config.same import with_defaults
from fedjax_het.errors import SettingError
from fedjax_het.experiment.experiment import FREE
from fedjax_het.studies import STUDIES
from fedjax_het.workdir.folder import as_json

NAMES = ("algorithm.name", "dataset", "mixing.name", "server.name")  # which a label says first, and alone
PARTS = ("algorithm", "local", "mixing", "server")  # whose settings go by their last name
LAST = ("rounds", "eval_every")
UNKNOWN = "not known"  # what a run's data were
ALWAYS = ("dataset", "rounds")  # which every label says where any two differ in them


class Group(NamedTuple):
  """Runs of one configuration but for the seed.

  Attributes:
    label: what tells it from the others.
    fields: dotted field -> value, of those that differ between groups; without those that it does not have.
    runs: by seed.
    counted: of the runs, those whose figures count: the complete ones, or where none is, all that have not
      diverged, at `round`.
    round: None where complete runs count; else the last evaluation that all of `counted` have.
    data: of the fields that differ between groups, those of `data.of_data`; None where one is not set.
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
    """A run's model -> metric -> figures, where it counts, at the group's round; else its last."""
    return run.metrics(self.round if any(run is own for own in self.counted) else None)

  def values(self, model: str, metric: str, figure: str) -> dict[int, float]:
    """seed -> a figure over the clients, of the runs that count and have it.

    Of the model "synthetic" it is top-1 of the classifier that learnt from a run's synthetic examples alone.
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


def grouped(runs: Sequence[Run]) -> list[Group]:
  """The runs in groups, in the order of their first; one that is there twice starts a group of its own."""
  kinds: dict[tuple[str, int], list[Run]] = {}
  seen: dict[tuple[str, int], int] = {}
  configs: dict[tuple[str, int], dict[str, Any]] = {}
  differing_data = _found(runs)
  for run in runs:
    config = leaves(run.config, (*FREE, "seed"))
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
  """Data set -> the fields in which it was not the same to all runs that have written them down."""
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
  """The fields that not all have alike, in the order in which labels say them."""
  fields = dict.fromkeys(name for config in configs for name in config)

  def differs(name: str) -> bool:
    return len({as_json({"": config[name]}) if name in config else "" for config in configs}) > 1

  return sorted(filter(differs, fields), key=_order)


def labels(fields: Sequence[Mapping[str, Any]]) -> list[str]:
  """Of each a short label that tells it from the others: names alone, other fields as "nu=1.0".

  Data set and rounds are in it wherever any two differ in them.
  """
  every = list(dict.fromkeys(name for own in fields for name in own))
  ends = [name.rpartition(".")[2] for name in every]
  always = [name for name in ALWAYS if len({str(own.get(name)) for own in fields}) > 1]
  parts: list[list[str]] = [[] for _ in fields]
  for name in sorted(every, key=_order):
    section, _, end = name.rpartition(".")
    short = end if section in PARTS and ends.count(end) == 1 else name
    title = "" if name in NAMES else f"{short}="
    alike: dict[str, set[str]] = {}
    for own, part in zip(fields, parts):
      alike.setdefault(", ".join(part), set()).add(str(own.get(name)))
    for own, part in zip(fields, parts):
      if name in own and (name in always or len(alike[", ".join(part)]) > 1):
        part.append(f"{title}{own[name]}")
  found = [", ".join(part) or "otherwise" for part in parts]
  return [
    f"{label} ({found[: place + 1].count(label)})" if found.count(label) > 1 else label
    for place, label in enumerate(found)
  ]


def _order(name: str) -> tuple[int, str]:
  """Names, then what a method is set to, then how long and how often."""
  if name in NAMES:
    return NAMES.index(name), name
  if name in LAST:
    return len(NAMES) + 2 + LAST.index(name), name
  return len(NAMES) + (name.partition(".")[0] not in PARTS), name


def baseline_of(groups: Sequence[Group], name: str = "") -> int:
  """The group that the others are compared with: by its label, or a run's name or folder.

  By default the first that has figures to compare.

  Raises:
    SettingError: nobody is called that.
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
  remedy = f"One of: {'; '.join(group.label for group in groups)}; or a run's name or folder."
  raise SettingError("baseline", name, "no run is called that", remedy)
