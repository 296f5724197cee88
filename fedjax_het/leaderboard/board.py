"""The board: its tasks, methods, numbers of trials and spaces, read from a configuration file."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from fedjax_het.config.file import called, load_module
from fedjax_het.config.plan import plan
from fedjax_het.errors import SettingError, check_choice
from fedjax_het.leaderboard.budget import LEAST
from fedjax_het.leaderboard.spaces import SPACES
from fedjax_het.methods import METHODS
from fedjax_het.tune.space import Dimension, parse

NEEDED = ("get_config", "names", "TASKS", "TRIALS")


class Row(NamedTuple):
  """A row of the board: a method on a task."""

  task: str
  method: str


class Board(NamedTuple):
  """A board, as `read_board` reads it.

  Attributes:
    path: its file.
    tasks: name -> its settings, of which `what` says how the clients differ, `lr` is the range of the
      learning rate and `gpu`, if true, keeps the task from CPUs.
    names: () -> the methods' names, in order; those that packages add included.
    trials: task -> method -> number of trials. A method that is not there has as many as `fedavg`.
    get_config: "task=T,method=M" -> configuration.
    left_out: method -> why it has no rows.
  """

  path: Path
  tasks: Mapping[str, Mapping[str, Any]]
  names: Callable[[], Sequence[str]]
  trials: Mapping[str, Mapping[str, int]]
  get_config: Callable[[str], ConfigDict]
  left_out: Mapping[str, str] = {}

  def config(self, row: Row) -> ConfigDict:
    """Returns the configuration of a row; raises `SettingError` where the file cannot make it."""
    text = f"task={row.task},method={row.method}"
    return called("board", text, self.path, self.get_config, text, what=f"{self.path} cannot make it")

  def goes(self, row: Row) -> str:
    """Returns "" if a method goes with a task, else the reason, as far as it shows before data are read."""
    try:
      plan(self.config(row))
    except SettingError as error:
      return str(error)
    return ""

  def space(self, row: Row) -> dict[str, Dimension]:
    """Returns what is tuned of a row: the learning rate in the task's range, and the method's strengths."""
    section = section_of(row.method)
    own = SPACES.get(row.method, ({}, ""))[0]
    texts = {"local.lr": self.tasks[row.task]["lr"]} | {f"{section}.{name}": own[name] for name in own}
    return {field: parse(f"space.{field}", text) for field, text in texts.items()}

  def number_of_trials(self, row: Row) -> int:
    """Returns how many trials a row is tuned with."""
    of_task = self.trials[row.task]
    return of_task.get(row.method, of_task.get("fedavg", LEAST))


def section_of(method: str) -> str:
  """Returns the section of a configuration that a method's name belongs to.

  Raises:
    SettingError: no table has the name; the error names the nearest.
  """
  known = {name: section for section, table in METHODS.items() for name in table}
  check_choice("methods", method, known)
  return known[method]


def read_board(path: str | Path) -> Board:
  """Reads a board's file.

  Raises:
    SettingError: the file cannot be read or lacks what makes a board.
  """
  path = Path(path)
  module = load_module("board", path)
  for name in NEEDED:
    if not hasattr(module, name):
      raise SettingError("board", str(path), f"has no {name}", "See configs/leaderboard.py.")
  found = Board(
    path, module.TASKS, module.names, module.TRIALS, module.get_config, getattr(module, "LEFT_OUT", {})
  )
  for task, own in found.tasks.items():
    if not isinstance(own, Mapping) or not all(isinstance(own.get(name), str) for name in ("what", "lr")):
      problem = f"its task {task} has no `what` or no `lr`, as texts"
      raise SettingError("board", str(path), problem, "Give both, see configs/leaderboard.py.")
    try:
      parse(f"TASKS[{task!r}]['lr']", own["lr"])
    except SettingError as error:
      raise SettingError("board", str(path), f"is wrong: {error}", "Mend it.") from error
    if task not in found.trials:
      raise SettingError("board", str(path), f"its TRIALS lack the task {task}", "Give it {'fedavg': 4}.")
    if low := [own for own in found.trials[task].values() if own < LEAST]:
      problem = f"a method of {task} has {low[0]} trials"
      raise SettingError("board", str(path), problem, f"Give each at least {LEAST}.")
  return found


def rows_of(board: Board, tasks: Sequence[str], methods: Sequence[str]) -> list[Row]:
  """Returns the rows of some tasks and methods, all by default, in the board's order.

  Raises:
    SettingError: a task or method is unknown, or has no rows; the error says why.
  """
  names = board.names()
  for task in tasks:
    check_choice("tasks", task, board.tasks)
  for method in methods:
    if method in board.left_out:
      raise SettingError("methods", method, f"has no rows: {board.left_out[method]}", "Leave it out.")
    check_choice("methods", method, names)
  return [
    Row(task, method)
    for task in board.tasks
    if not tasks or task in tasks
    for method in names
    if not methods or method in methods
  ]
