"""The runs of a table: which are there already, and which of the others are one program."""

import hashlib
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_het.config.grid import in_order
from fedjax_het.config.own_epochs import of_earlier
from fedjax_het.config.same import with_defaults
from fedjax_het.config.typed import Plan
from fedjax_het.config.values import with_values
from fedjax_het.engine.sweep import grid_of
from fedjax_het.experiment.experiment import FREE
from fedjax_het.tables.paper import Cell
from fedjax_het.workdir.folder import FAILED, TABLE, as_json, read_json, read_record

SUMMARY = "summary.json"
LONGEST = 200  # bytes of a folder's name; file systems take 255


class Wanted(NamedTuple):
  """A cell with a seed, and the plan of its run."""

  cell: Cell
  seed: int
  plan: Plan


class Program(NamedTuple):
  """One run, or several as one program.

  Attributes:
    folder: where.
    plan: of the run, or of the first.
    grid: what differs between the runs, as `run_sweep` takes it; {} for one.
    runs: the runs, in the members' order, `in_order`.
  """

  folder: Path
  plan: Plan
  grid: dict[str, list[Any]]
  runs: list[Wanted]


def identity(config: Plan | Mapping[str, Any]) -> str:
  """What tells a run from any other: all fields, defaults too, but those that change none of its numbers."""
  fields = config.written if isinstance(config, Plan) else config
  return as_json({name: value for name, value in with_defaults(fields).items() if name not in FREE})


def ended(folder: Path) -> dict[str, Path]:
  """The runs below a folder whose end can be read, whatever they are called: identity -> own folder."""
  runs = [(path, config) for path, config in _configured(folder) if "sweep" not in config]
  return {
    identity(config): path
    for name in (FAILED, SUMMARY)  # of two folders with the same run, the one that has its summary
    for path, config in runs
    if read_record(path / name) is not None
  }


def outcome(folder: Path) -> dict[str, Any] | None:
  """A run's summary, else why it failed; None where its folder has neither, or only what is damaged."""
  found = (read_record(folder / name) for name in (SUMMARY, FAILED))
  return next((own for own in found if own is not None), None)


def programs(wanted: Sequence[Wanted], folder: Path, together: int | None = None) -> list[Program]:
  """What is to be started for the runs that have not ended.

  What an earlier start left unfinished goes on as it was begun: stopped, perhaps while it wrote its members'
  summaries, or killed after these and before the sweep's picture and table. The others are one program where
  they differ only in numbers that may vary within one (the seed is one) and have all combinations of these.

  Args:
    wanted: the runs of the table.
    folder: below which everything is kept.
    together: how many runs the machine trains at once. A program of runs that differ in one number holds a
      multiple, and the few that are left over run by themselves. None takes any number, 0 makes each run a
      program of its own.
  """
  over, known = ended(folder), {identity(one.plan): one for one in wanted}
  left = {key: one for key, one in known.items() if key not in over}
  found = []
  for path, config in _configured(folder):
    keys = _stored(config)
    own = {*keys}
    stopped = own <= {*known} and not own.isdisjoint(left) and not (path / TABLE).exists()
    goes_on = own <= {*left} or stopped or (own <= {*known} and _lacks_its_table(path, config, keys, over))
    if keys and goes_on and not _is_member(path):
      left = {key: one for key, one in left.items() if key not in keys}
      runs = [known[key] for key in keys]
      found.append(Program(path, runs[0].plan, config.get("sweep", {}), runs))
  for group in _groups(list(left.values())):
    for runs in _cut(group, together):
      grid = _differing(runs)
      path = _free(folder / _name(runs, grid))
      found.append(Program(path, runs[0].plan, grid, runs))
  place = {identity(one.plan): number for number, one in enumerate(wanted)}
  return sorted(found, key=lambda program: min(place[identity(one.plan)] for one in program.runs))


def _configured(folder: Path) -> list[tuple[Path, dict[str, Any]]]:
  """The folders below a folder that hold a run or a sweep, each with its config.json."""
  found = [(path.parent, read_record(path)) for path in sorted(folder.rglob("config.json"))]
  return [(folder, of_earlier(config)) for folder, config in found if config is not None]


def _stored(config: Mapping[str, Any]) -> list[str]:
  """The runs of a config.json, by their identities; none where another program or an accident wrote it."""
  if "sweep" not in config:
    return [identity(config)]
  try:
    return _members(config["config"], config["sweep"]) if config["sweep"] else []
  except (AttributeError, LookupError, TypeError, ValueError):
    return []


def _free(path: Path) -> Path:
  """The path, or the first of PATH_2, PATH_3, ... that no run has written its configuration to."""
  others = (path.with_name(f"{path.name}_{n}") for n in itertools.count(2))
  return next(own for own in itertools.chain([path], others) if not (own / "config.json").exists())


def _lacks_its_table(
  path: Path, config: Mapping[str, Any], keys: Sequence[str], over: Mapping[str, Path]
) -> bool:
  """Whether a sweep has all its members' summaries and no table: it was killed before what it does last."""
  return (
    "sweep" in config
    and read_json(path / TABLE) is None
    and all(key in over and over[key].is_relative_to(path) for key in keys)
    and all(read_record(over[key] / SUMMARY) is not None for key in keys)
    and os.access(path, os.W_OK)
  )


def _is_member(path: Path) -> bool:
  """Whether a run's folder is in a sweep's."""
  return path.parent.name == "members" and (path.parent.parent / "config.json").exists()


def _numbers(plan: Plan) -> dict[str, Any]:
  """Dotted field -> value, of what may differ within a program: the seed, and numbers that are no counts."""
  fields = ((section, *field) for section, own in plan.parts.items() for field in own.items())
  numbers = {f"{section}.{name}": value for section, name, value in fields if isinstance(value, float)}
  return {**numbers, "seed": plan.seed}


def _differing(runs: Sequence[Wanted]) -> dict[str, list[Any]]:
  """Field -> its values, of the numbers in which some runs differ."""
  values: dict[str, dict[Any, None]] = {}
  for one in runs:
    for name, value in _numbers(one.plan).items():
      values.setdefault(name, {})[value] = None
  return {name: [*own] for name, own in values.items() if len(own) > 1}


def _members(config: Mapping[str, Any], grid: Mapping[str, Sequence[Any]]) -> list[str]:
  """The runs of a program, by their identities."""
  return [identity(with_values(config, values)) for values in grid_of(in_order(grid))]


def _as_grid(runs: Sequence[Wanted]) -> list[Wanted] | None:
  """Runs in the order of the grid that they are; None where they are none."""
  known = {identity(one.plan): one for one in runs}
  keys = _members(runs[0].plan.written, _differing(runs))
  return [known[key] for key in keys] if {*keys} == {*known} else None


def _groups(runs: Sequence[Wanted]) -> list[list[Wanted]]:
  """The runs in groups, each of which can be one program: across cells, else of a cell, else alone."""

  def but_for_numbers(one: Wanted) -> str:
    return identity(with_values(one.plan.written, dict.fromkeys(_numbers(one.plan), 0)))

  ways: Sequence[Callable[[Wanted], str]] = (but_for_numbers, lambda one: one.cell.text)
  found, rest = [], list(runs)
  for alike in ways:
    groups: dict[str, list[Wanted]] = {}
    for one in rest:
      groups.setdefault(alike(one), []).append(one)
    rest = []
    for group in groups.values():
      if (grid := _as_grid(group)) is not None:
        found.append(grid)
      else:
        rest += group
  return [*found, *([one] for one in rest)]


def _cut(runs: list[Wanted], together: int | None) -> list[list[Wanted]]:
  """A group in programs of which as many train at once."""
  if together == 0:
    return [[one] for one in runs]
  size = len(runs) - len(runs) % together if together and len(_differing(runs)) == 1 else len(runs)
  return [*([runs[:size]] if size else []), *([one] for one in runs[size:])]


def _name(runs: Sequence[Wanted], grid: Mapping[str, Sequence[Any]]) -> str:
  """A program's folder: the keys that its cells share, and what differs."""
  common = {
    key: value for key, value in runs[0].cell.keys.items() if all(one.cell.keys[key] == value for one in runs)
  }
  differing = {name.rpartition(".")[2]: "+".join(map(str, values)) for name, values in grid.items()}
  seed = differing.pop("seed", runs[0].seed)
  fields = {**common, **differing, "seed": seed}
  name = ",".join(f"{name}={value}" for name, value in fields.items())
  if len(name.encode()) <= LONGEST:
    return name
  digest = hashlib.sha256(name.encode()).hexdigest()[:12]
  return f"{name.encode()[:LONGEST].decode(errors='ignore')}...{digest}"
