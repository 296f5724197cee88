"""The command line of `python -m fedjax_het.leaderboard`."""

import math
from pathlib import Path
from typing import Any

from absl import app, flags, logging

from fedjax_het.config.shipped import shipped
from fedjax_het.errors import SettingError, check_here, check_range, folder_of
from fedjax_het.output.terminal import protect_streams, say
from fedjax_het.program.command_line import (
  leave_out_waiting,
  mistakes_in_one_line,
  parse_flags,
  show_in_help,
  told,
)
from fedjax_het.program.machine import define_machine_flags, prepare_jax, where_of_flags
from fedjax_het.program.packages import load_packages
from fedjax_het.program.stopping import outlive_save

BOARD = "configs/leaderboard.py"


def define_flags() -> None:
  """Defines the command-line flags of `leaderboard`."""
  flags.DEFINE_list("tasks", [], "Tasks, separated by commas; all by default.")
  flags.DEFINE_list("methods", [], "Methods, separated by commas; all that go with a task by default.")
  flags.DEFINE_float(
    "minutes", 150.0, "No row is begun after so many minutes; one that was begun is finished."
  )
  flags.DEFINE_string("workdir", "runs/leaderboard", "Where rows that are being made are kept.")
  flags.DEFINE_string(
    "raw", None, "Folder of raw figures; by default docs/results/raw/leaderboard of the board's checkout."
  )
  flags.DEFINE_string(
    "page", None, "Write the page and its pictures into this folder, such as docs; nothing is run."
  )
  flags.DEFINE_string("board", BOARD, "The file with tasks, methods and numbers of trials.")
  flags.DEFINE_string("data_dir", "", "Folder of the data sets.")
  flags.DEFINE_bool("dry_run", False, "Print which rows are there, missing or stale, and end.")
  define_machine_flags()


def main(argv: list[str]) -> int:
  """Makes the rows that the flags select; returns 0, or 1 after printing a user's error."""
  if len(argv) > 1:
    say(f"Unexpected argument {argv[1]!r}: rows are selected by --tasks=A,B --methods=C,D.", error=True)
    return 1
  logging.set_verbosity(min(logging.get_verbosity(), logging.WARNING))
  leave_out_waiting()
  return told(make)


def raw_folder(board: Path, given: str | None) -> Path:
  """Returns the folder of the raw figures: the given one, or that of the checkout which has the board."""
  if given:
    return folder_of("raw", given)
  return board.resolve().parent.parent / "docs" / "results" / "raw" / "leaderboard"


def make() -> None:
  """Makes the missing rows that the flags select, or the page."""
  from fedjax_het.leaderboard.board import read_board, rows_of
  from fedjax_het.leaderboard.page import write_page
  from fedjax_het.leaderboard.work import states_of, tell, work
  from fedjax_het.tune.checks import import_optuna

  given: Any = flags.FLAGS
  check_range("minutes", given.minutes, 0.0, below=math.inf, on_host=True)
  if not Path(shipped(given.board)).is_file():
    raise SettingError("board", given.board, "no such file", f"Name a board such as {BOARD}.")
  board = read_board(shipped(given.board))
  rows, raw = rows_of(board, given.tasks, given.methods), raw_folder(board.path, given.raw)
  if given.page is not None:
    for path in write_page(board, raw, folder_of("page", given.page)):
      say(f"Written: {path}")
    return
  prepare_jax()
  states = states_of(board, rows, raw)
  for row, reason in states.refused.items():
    say(f"does not go: {row.task}, {row.method}: {reason}")
  tell(states)
  if given.dry_run:
    for row in states.missing:
      say(f"missing: {row.task}, {row.method}, {board.number_of_trials(row)} trials")
    return
  import_optuna()
  work(
    board, states.missing, raw, folder_of("workdir", given.workdir), where_of_flags(), minutes=given.minutes,
    data_dir=given.data_dir, checkpoint_seconds=given.checkpoint_seconds,
  )  # fmt: skip


def launch() -> None:
  """Runs the program of the command line and exits with its status."""
  protect_streams()
  outlive_save()
  with mistakes_in_one_line():
    check_here()
    load_packages()
    define_flags()
    show_in_help(__name__, define_machine_flags.__module__)
  app.run(main, flags_parser=parse_flags)
