"""Runs what a table lacks, and writes it: the work of `python -m fedjax_het.reproduce`."""

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

OF_ALL = (*Where._fields, "checkpoint_seconds")  # settings that concern all programs alike


def wanted(
  table: Table, cells: Sequence[Cell], seeds: Sequence[int], change: Callable[[Any], None]
) -> list[Wanted]:
  """The runs of some cells, each with every seed, checked.

  Args:
    table: whose cells.
    cells: which.
    seeds: which.
    change: what to make of each configuration.

  Raises:
    SettingError: a configuration that cannot be, a seed twice, or cells that are the same run.
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

  A run that is there already counts by its configuration, whatever its folder is called. A stopped start
  is continued by the next. A run that diverges is noted, and the others go on, as
  they do where another process is at one: several may make a table together; and where a run is refused, as
  its data cannot be made, which is an error when the others have been tried.

  Args:
    table: which.
    runs: of `wanted`.
    folder: where runs and table are kept.
    where: devices.
    together: see `programs`.
    checkpoint_seconds: see `run_experiment`.
    than: the method that the others are compared with, as `method_of` knows it; by default none.

  Returns:
    The table's figures.

  Raises:
    SettingError: the devices cannot be as asked, the folder cannot be written, `than` is no method of the
      runs, or a run was refused.
    DataError: a data set is not there; found before anything runs.
    Stopped: SIGTERM or Ctrl-C came; a checkpoint is written.
  """
  check_where(where, runs)
  than, folder = method_of(than, [one.cell for one in runs]), folder_of("workdir", folder)
  todo = alike(programs(runs, folder, together), runs)
  check_data([one.plan for program in todo for one in program.runs])
  if not todo and not os.access(folder, os.W_OK):  # complete, and nobody's to write
    return _held(table, runs, folder)[0]
  make_folder(folder)
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
    raise SettingError("table", name, problem, "The others were tried, and stand in table.md.") from first
  return found or write(table, runs, folder, than)


def check_where(where: Where, runs: Sequence[Wanted]) -> None:
  """Raises `SettingError` where the devices cannot be as asked, or cannot hold some cohort's states."""
  where.check()
  check_held(where.device_states, max((one.plan.cohort_size for one in runs), default=0))


def alike(todo: Sequence[Program], runs: Sequence[Wanted]) -> list[Program]:
  """The first process's programs, in every process: what each sees in a shared folder may be older."""
  plan = [[str(own.folder), own.grid, [identity(one.plan) for one in own.runs]] for own in todo]
  known = {identity(one.plan): one for one in runs}
  found = []
  for folder, grid, keys in json.loads(of_the_first(json.dumps(plan))):
    own = [known[key] for key in keys]
    found.append(Program(Path(folder), own[0].plan, grid, own))
  return found


def _run(program: Program, where: Where, checkpoint_seconds: float, board: Board) -> str:
  """Runs a program; why it came to nothing, else nothing."""
  plan, folder = program.plan, str(program.folder)
  run = (
    functools.partial(run_sweep, plan, program.grid)
    if program.grid
    else functools.partial(run_experiment, plan)
  )
  try:
    try:
      run(folder, where, checkpoint_seconds=checkpoint_seconds, display=board)
    except NoStates:  # in a table where others' clients keep some
      where = where._replace(device_states=None, states_folder=None)
      run(folder, where, checkpoint_seconds=checkpoint_seconds, display=board)
  except Claimed:
    return "another process is at it, and it is left to that"
  except NonFiniteLoss as error:
    return f"diverged: {error}"
  return ""


def make_folder(folder: Path) -> None:
  """Makes a table's folder; raises `SettingError` where it cannot be made or written."""
  check_writable(folder)
  folder.mkdir(parents=True, exist_ok=True)


def check_data(plans: Sequence[Plan]) -> None:
  """Raises `DataError` where a data set is not there."""
  seen = {}
  for own in plans:
    where = own.dataset, own.data_dir, own.dataset_options
    seen[str(where)] = where
  for name, folder, options in seen.values():
    datasets.load(name, folder, **options)


def write(table: Table, runs: Sequence[Wanted], folder: Path, than: str) -> list[Entry]:
  """Writes the table's files from what `folder` holds."""
  found, about = _held(table, runs, folder)
  if writes():
    parts = found, table.cells, than, table.title, about, table.changed
    with writable(folder):
      write_atomic(folder / "table.md", layout.markdown(*parts))
      write_atomic(folder / "table.tex", layout.latex(*parts))
      write_atomic(folder / "table.csv", layout.as_csv(found, table.cells, than, table.changed))
  return found


def show(table: Table, runs: Sequence[Wanted], folder: Path, than: str) -> None:
  """Prints the table of what `folder` holds."""
  found, about = _held(table, runs, folder)
  TERMINAL.show(layout.drawn(found, table.cells, than, table.title, about, table.changed))


def _held(table: Table, runs: Sequence[Wanted], folder: Path) -> tuple[list[Entry], str]:
  """The figures of the runs that a folder holds, and where these were made."""
  over = ended(folder)
  folders = [over[key] for key in (identity(one.plan) for one in runs) if key in over]
  return entries(table, runs, over), made(folders)
