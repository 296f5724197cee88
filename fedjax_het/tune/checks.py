"""Checks of a tuning study that are possible before anything is trained, and what it says of itself."""

import json
import math
import os
from collections.abc import Mapping
from typing import Any

from fedjax_het.config.plan import plan
from fedjax_het.config.typed import Plan
from fedjax_het.data.container import FederatedData
from fedjax_het.errors import SettingError, check_whole
from fedjax_het.experiment.experiment import FREE
from fedjax_het.tune.rungs import budget, members, rung_rounds
from fedjax_het.tune.space import Dimension, Space, Span, checked_space, default_space
from fedjax_het.workdir.folder import Workdir, as_json, filled, leaves, read_record

SETTINGS = "tune.json"
FREE_OF_ALL = tuple(f"config.{name}" for name in FREE)  # fields that may change on resume


def checked_study(
  config: Any, space: Space | None, trials: int, batch: int
) -> tuple[Plan, dict[str, Dimension]]:
  """Returns the plan and the space of a study, checked before any data is read; see `run_tune`."""
  planned = plan(config)
  check_whole("trials", trials, 1)
  check_whole("batch", batch, 2)
  if not planned.valid_fraction:
    problem = "trials are judged on clients' validation rows, and there are none"
    raise SettingError("valid_fraction", planned.valid_fraction, problem, "Add --config.valid_fraction=0.1.")
  own = checked_space(config, default_space(planned) if space is None else space)
  if points_of(own) == 1:
    field, values = next((field, [*values]) for field, values in own.items())
    remedy = "Give a range, low:high, or several numbers."
    raise SettingError(f"space.{field}", values, "leaves nothing to choose", remedy)
  return planned, own


def points_of(space: Space) -> float:
  """Returns the number of different configurations in a space; infinity if a field has a range."""
  return math.prod(math.inf if isinstance(own, Span) else len(own) for own in space.values())


def about_study(config: Any, space: Space | None, trials: int, batch: int) -> list[str]:
  """Returns `about` for a configuration; raises `SettingError` as `run_tune`."""
  planned, own = checked_study(config, space, trials, batch)
  return about(own, trials, batch, planned.rounds)


def import_optuna() -> Any:
  """Returns the module optuna, silenced; raises `SettingError` if it is not installed."""
  try:
    import optuna
  except ImportError as error:
    remedy = "pip install 'fedjax_het[tuning]'."
    raise SettingError("tune", "optuna", "needs Optuna, which is not installed", remedy) from error
  optuna.logging.set_verbosity(optuna.logging.WARNING)
  return optuna


def check_same(root: Workdir, whole: Mapping[str, Any]) -> None:
  """Raises `SettingError` if a folder belongs to another study, or to a run; the error names what differs."""
  if root.config_path.exists():
    problem = "holds a run or a sweep, not a study"
    raise SettingError("workdir", os.fspath(root), problem, "Use another workdir.")
  path = root.root / SETTINGS
  if not path.exists():
    return
  stored = read_record(path)
  if stored is None or not isinstance(stored.get("config"), dict):
    problem = f"its {SETTINGS} cannot be read"
    raise SettingError("workdir", os.fspath(root), problem, "Put it back, or use another workdir.")
  old, new = (
    leaves({**one, "config": filled(one["config"])}) for one in (stored, json.loads(as_json(whole)))
  )
  differ = [name for name in sorted({*old, *new} - {*FREE_OF_ALL}) if old.get(name) != new.get(name)]
  if differ:
    first = differ[0]
    problem = f"the study in {root.root} was begun with {first} = {old.get(first, 'absent')}"
    remedy = "Use another workdir, or the same command to continue this study."
    raise SettingError(first, json.loads(new[first]) if first in new else "absent", problem, remedy)


def check_validation_rows(config: Plan, data: FederatedData) -> None:
  """Raises `SettingError` if `valid_fraction` rounds down to no validation row of any client."""
  if not data.limits[1]:
    problem = "rounds down to no row of any client, and trials are judged on validation rows"
    raise SettingError("valid_fraction", config.valid_fraction, problem, "Use more, such as 0.2.")


def about(space: Space, trials: int, batch: int, rounds: int) -> list[str]:
  """Returns what a study draws from, and its rungs and budget, in a line each."""
  lines = [
    f"space: {path}: {own if isinstance(own, Span) else 'one of ' + ', '.join(map(str, own))}"
    for path, own in space.items()
  ]
  if (points := points_of(space)) < trials:
    lines.append(f"the space has {points} points, fewer than trials: some are trained more than once")
  whole, ends = budget(trials, batch, rounds), rung_rounds(rounds)
  counts = members(min(batch, trials), len(ends))
  rungs = ", ".join(f"{count} to round {end}" for count, end in zip(counts, ends))
  cost = f"{whole} rounds in all, as many as {whole / rounds:.3g} whole runs"
  return [*lines, f"{trials} trials, {min(batch, trials)} at once, of which train {rungs}: {cost}"]
