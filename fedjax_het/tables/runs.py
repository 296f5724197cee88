"""The runs of a table: which have ended, and which of the others are trained together as one program."""

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
from fedjax_het.config.values import each_of, with_values
from fedjax_het.engine.sweep import grid_of
from fedjax_het.experiment.experiment import FREE
from fedjax_het.tables.paper import Cell
from fedjax_het.workdir.folder import FAILED, TABLE, as_json, read_json, read_record

SUMMARY = "summary.json"
LONGEST = 200  # most bytes of a folder's name; file systems allow 255


class Wanted(NamedTuple):
  """A run of a table: a cell, a seed, and the plan."""

  cell: Cell
  seed: int
  plan: Plan


class Program(NamedTuple):
  """One run, or several that are trained as one program (a sweep).

  Attributes:
    folder: its workdir.
    plan: the plan of the run, or of the first one.
    grid: the fields in which the runs differ, as `run_sweep` takes them; {} for one run.
    runs: the runs in the order of the sweep's members.
  """

  folder: Path
  plan: Plan
  grid: dict[str, list[Any]]
  runs: list[Wanted]


def identity(config: Plan | Mapping[str, Any]) -> str:
  """Returns a text that identifies a run: all its fields, defaults too, that may change its numbers."""
  fields = config.written if isinstance(config, Plan) else config
  return as_json({name: value for name, value in with_defaults(fields).items() if name not in FREE})


def ended(folder: Path) -> dict[str, Path]:
  """Finds the runs below a folder that have ended: identity -> folder."""
  runs = [(path, config) for path, config in _configured(folder) if "sweep" not in config]
  return {
    identity(config): path
    for name in (FAILED, SUMMARY)  # if two folders hold the same run, a summary is preferred
    for path, config in runs
    if read_record(path / name) is not None
  }


def outcome(folder: Path) -> dict[str, Any] | None:
  """Returns a run's summary, else the record of its failure, else None; damaged files do not count."""
  found = (read_record(folder / name) for name in (SUMMARY, FAILED))
  return next((own for own in found if own is not None), None)


def programs(wanted: Sequence[Wanted], folder: Path, together: int | None = None) -> list[Program]:
  """Returns the programs to start for the runs that have not ended, in the table's order.

  A program that an earlier start left unfinished is continued as it was begun, even if only a sweep's table
  is missing. The remaining runs become one program where they differ only in the seed and in numbers that may
  vary within a program, and where they have all combinations of these values.

  Args:
    wanted: the runs of the table.
    folder: the folder that holds all runs of the table.
    together: how many runs the machine trains at once. A program whose runs differ in one field has a
      multiple of this many, and the remaining runs are programs by themselves. None is no limit, 0 makes each
      run a program.
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
  """Returns the folders below a folder that hold a run or a sweep, each with its config.json."""
  found = [(path.parent, read_record(path)) for path in sorted(folder.rglob("config.json"))]
  return [(folder, of_earlier(config)) for folder, config in found if config is not None]


def _stored(config: Mapping[str, Any]) -> list[str]:
  """Returns the identities of the runs of a config.json; none if it is not one that a run writes."""
  if "sweep" not in config:
    return [identity(config)]
  try:
    return _members(config["config"], config["sweep"]) if config["sweep"] else []
  except (AttributeError, LookupError, TypeError, ValueError):
    return []


def _free(path: Path) -> Path:
  """Returns the path, or the first of PATH_2, PATH_3, ... in which there is no run yet."""
  others = (path.with_name(f"{path.name}_{n}") for n in itertools.count(2))
  return next(own for own in itertools.chain([path], others) if not (own / "config.json").exists())


def _lacks_its_table(
  path: Path, config: Mapping[str, Any], keys: Sequence[str], over: Mapping[str, Path]
) -> bool:
  """Returns whether a sweep has all its members' summaries but no table, which it writes last."""
  return (
    "sweep" in config
    and read_json(path / TABLE) is None
    and all(key in over and over[key].is_relative_to(path) for key in keys)
    and all(read_record(over[key] / SUMMARY) is not None for key in keys)
    and os.access(path, os.W_OK)
  )


def _is_member(path: Path) -> bool:
  """Returns whether a run's folder is inside a sweep's folder."""
  return path.parent.name == "members" and (path.parent.parent / "config.json").exists()


def _numbers(plan: Plan) -> dict[str, Any]:
  """Returns the fields that may vary within a program, the seed and floats: dotted field -> value."""
  fields = ((section, *field) for section, own in each_of(plan.parts) for field in own.items())
  numbers = {f"{section}.{name}": value for section, name, value in fields if isinstance(value, float)}
  return {**numbers, "seed": plan.seed}


def _differing(runs: Sequence[Wanted]) -> dict[str, list[Any]]:
  """Returns the fields in which some runs differ: field -> values."""
  values: dict[str, dict[Any, None]] = {}
  for one in runs:
    for name, value in _numbers(one.plan).items():
      values.setdefault(name, {})[value] = None
  return {name: [*own] for name, own in values.items() if len(own) > 1}


def _members(config: Mapping[str, Any], grid: Mapping[str, Sequence[Any]]) -> list[str]:
  """Returns the identities of a program's runs."""
  return [identity(with_values(config, values)) for values in grid_of(in_order(grid))]


def _as_grid(runs: Sequence[Wanted]) -> list[Wanted] | None:
  """Returns runs in the order of the grid that they form, or None where they form no grid."""
  known = {identity(one.plan): one for one in runs}
  keys = _members(runs[0].plan.written, _differing(runs))
  return [known[key] for key in keys] if {*keys} == {*known} else None


def _groups(runs: Sequence[Wanted]) -> list[list[Wanted]]:
  """Divides runs into groups that can each be one program: across cells, else within a cell, else alone."""

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
  """Divides a group into programs whose size is a multiple of `together`."""
  if together == 0:
    return [[one] for one in runs]
  size = len(runs) - len(runs) % together if together and len(_differing(runs)) == 1 else len(runs)
  return [*([runs[:size]] if size else []), *([one] for one in runs[size:])]


def _name(runs: Sequence[Wanted], grid: Mapping[str, Sequence[Any]]) -> str:
  """Returns a program's folder name: the keys that its cells share, and the fields that differ."""
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
