"""Runs what a table lacks and writes its files: the work of `python -m fedjax_het.reproduce`."""

import functools
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from fedjax_het import data as datasets
from fedjax_het.config.plan import plan
from fedjax_het.config.typed import Plan
from fedjax_het.engine.client_store import check_held
from fedjax_het.engine.processes import agreed, of_the_first, writes
from fedjax_het.errors import DataError, NonFiniteLoss, NoStates, SettingError, folder_of
from fedjax_het.experiment.experiment import run_experiment
from fedjax_het.experiment.sweep import run_sweep
from fedjax_het.program.display import TERMINAL
from fedjax_het.program.stopping import Stopped, StopRequest
from fedjax_het.program.where import EVERYWHERE, Where
from fedjax_het.tables import layout
from fedjax_het.tables.board import Board
from fedjax_het.tables.compare import Entry, entries, made
from fedjax_het.tables.paper import Cell, Table, method_of
from fedjax_het.tables.runs import Program, Wanted, ended, identity, outcome, programs
from fedjax_het.workdir.claim import writable
from fedjax_het.workdir.folder import Claimed, check_writable, write_atomic

OF_ALL = (*Where._fields, "checkpoint_seconds")  # settings that are the same for all programs of a table


def wanted(
  table: Table, cells: Sequence[Cell], seeds: Sequence[int], change: Callable[[Any], None]
) -> list[Wanted]:
  """Returns the runs of some cells, one for each cell and seed, with their checked configurations.

  Args:
    table: the table.
    cells: some of its cells.
    seeds: the seeds that each cell is run with.
    change: function that changes each configuration in place.

  Raises:
    SettingError: a configuration is invalid, a seed is repeated, or two cells are the same run.
  """
  if not seeds or len({*seeds}) < len(seeds):
    raise SettingError("seeds", list(seeds), "are none, or one is there twice", "Write --seeds=0,1,2.")
  found: list[Wanted] = []
  for cell in cells:
    for seed in seeds:
      config = table.get_config(cell.text)
      config.seed = seed
      change(config)
      found.append(Wanted(cell, seed, plan(config)))
  known: dict[str, Wanted] = {}
  for one in found:
    same = known.setdefault(identity(one.plan), one)
    if same is not one:
      raise SettingError(
        "table",
        one.cell.text,
        f"is the same run as {same.cell.text}",
        "Change less of both, or leave one out.",
      )
  return found


def reproduce(
  table: Table,
  runs: Sequence[Wanted],
  folder: Path,
  where: Where = EVERYWHERE,
  *,
  together: int | None = None,
  checkpoint_seconds: float = 600.0,
  than: str = "",
) -> list[Entry]:
  """Runs what has not ended yet, and keeps FOLDER/table.md, .csv and .tex up to date.

  An earlier run counts by its configuration, whatever its folder is called, and a stopped start is continued
  by the next. Several processes may make a table together: a run that another process is working on is left
  to it. A run that diverges is noted, and the others go on. A run that is refused, for example because its
  data cannot be made, is an error after the others have been tried.

  Args:
    table: the table.
    runs: the runs to be there in the end, as `wanted` returns them.
    folder: the folder of the runs and of the table's files.
    where: the devices to use.
    together: see `programs`.
    checkpoint_seconds: see `run_experiment`.
    than: the method that the others are compared with, as `method_of` returns it; "" for none.

  Returns:
    The table's entries.

  Raises:
    SettingError: the devices are not available, the folder cannot be written, `than` is no method of the
      runs, or a run was refused.
    DataError: a data set is missing, which is found before anything runs.
    Stopped: SIGTERM or Ctrl-C came; a checkpoint is written.
  """
  check_where(where, runs)
  than, folder = method_of(than, [one.cell for one in runs]), folder_of("workdir", folder)
  todo = alike(programs(runs, folder, together), runs)
  check_data([one.plan for program in todo for one in program.runs])
  if not todo and not os.access(folder, os.W_OK):  # the table is complete, and its folder cannot be written
    return _held(table, runs, folder)[0]
  check_writable(folder)
  folder.mkdir(parents=True, exist_ok=True)
  over = ended(folder)
  keys = [(one.plan, identity(one.plan)) for one in runs]
  past = [(plan, own) for plan, key in keys if key in over and (own := outcome(over[key]))]
  board = Board(todo, past)
  found: list[Entry] = []
  refused: dict[str, Exception] = {}
  with StopRequest() as stop:
    for i, program in enumerate(todo):
      if agreed(stop.made)[0]:
        text = f"Stopped by {stop.by.name} with {len(todo) - i} of {len(todo)} programs to go"
        raise Stopped(f"{text}; the same command goes on from there.", stop.by)
      board.begin(program)
      try:
        problem = _run(program, where, checkpoint_seconds, board)
      except (SettingError, DataError) as error:
        if jax.process_count() > 1 or getattr(error, "setting", "") in OF_ALL:
          raise
        refused[program.folder.name], problem = error, str(error)
      board.end(problem)
      found = write(table, runs, folder, than)
  if refused:
    name, first = next(iter(refused.items()))
    problem = f"{len(refused)} of {len(todo)} programs were refused; this one: {str(first).rstrip('.')}"
    raise SettingError("table", name, problem, "The others were tried, see table.md.") from first
  return found or write(table, runs, folder, than)


def check_where(where: Where, runs: Sequence[Wanted]) -> None:
  """Raises `SettingError` where the devices are not available or cannot hold some cohort's states."""
  where.check()
  check_held(where.device_states, max((one.plan.cohort_size for one in runs), default=0))


def alike(todo: Sequence[Program], runs: Sequence[Wanted]) -> list[Program]:
  """Gives every process the first process's programs, because a shared folder may show each another state."""
  plan = [[str(own.folder), own.grid, [identity(one.plan) for one in own.runs]] for own in todo]
  known = {identity(one.plan): one for one in runs}
  found = []
  for folder, grid, keys in json.loads(of_the_first(json.dumps(plan))):
    own = [known[key] for key in keys]
    found.append(Program(Path(folder), own[0].plan, grid, own))
  return found


def _run(program: Program, where: Where, checkpoint_seconds: float, board: Board) -> str:
  """Runs a program; returns the reason why it has no result, or ""."""
  plan, folder = program.plan, str(program.folder)
  run = (
    functools.partial(run_sweep, plan, program.grid)
    if program.grid
    else functools.partial(run_experiment, plan)
  )
  try:
    try:
      run(folder, where, checkpoint_seconds=checkpoint_seconds, display=board)
    except NoStates:  # this program's clients keep no states, unlike others of the table
      where = where._replace(device_states=None, states_folder=None)
      run(folder, where, checkpoint_seconds=checkpoint_seconds, display=board)
  except Claimed:
    return "another process is at it, which continues it"
  except NonFiniteLoss as error:
    return f"diverged: {error}"
  return ""


def check_data(plans: Sequence[Plan]) -> None:
  """Raises `DataError` where a data set is missing."""
  seen = {}
  for own in plans:
    where = own.dataset, own.data_dir, own.dataset_options
    seen[str(where)] = where
  for name, folder, options in seen.values():
    datasets.load(name, folder, **options)


def write(table: Table, runs: Sequence[Wanted], folder: Path, than: str) -> list[Entry]:
  """Writes table.md, .csv and .tex from the runs in `folder`."""
  found, about = _held(table, runs, folder)
  if writes():
    parts = found, table.cells, than, table.title, about, table.changed
    with writable(folder):
      write_atomic(folder / "table.md", layout.markdown(*parts))
      write_atomic(folder / "table.tex", layout.latex(*parts))
      write_atomic(folder / "table.csv", layout.as_csv(found, table.cells, than, table.changed))
  return found


def show(table: Table, runs: Sequence[Wanted], folder: Path, than: str) -> None:
  """Prints the table of the runs in `folder`."""
  found, about = _held(table, runs, folder)
  TERMINAL.show(layout.drawn(found, table.cells, than, table.title, about, table.changed))


def _held(table: Table, runs: Sequence[Wanted], folder: Path) -> tuple[list[Entry], str]:
  """Returns the entries of the runs that a folder holds, and how these were made."""
  over = ended(folder)
  folders = [over[key] for key in (identity(one.plan) for one in runs) if key in over]
  return entries(table, runs, over), made(folders)
