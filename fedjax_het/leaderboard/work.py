"""The board's work: which rows are there, missing or stale, and the making of those that are missing."""

import datetime
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from fedjax_het.leaderboard.board import Board, Row
from fedjax_het.leaderboard.raw import fingerprint, made_by, path_of, read_raw, stale, write_raw
from fedjax_het.leaderboard.row import make_row
from fedjax_het.output.progress import Progress
from fedjax_het.output.terminal import console, say
from fedjax_het.program.display import Display
from fedjax_het.program.where import Where


class States(NamedTuple):
  """What is known of the board's rows.

  Attributes:
    there: rows whose raw figures are there, with these.
    stale: rows whose figures are there -> what has changed since, a text each.
    missing: rows without figures.
    refused: rows of methods that do not go with their task -> the reason.
    elsewhere: rows of tasks that run on a GPU only, where there is none.
  """

  there: dict[Row, dict[str, Any]]
  stale: dict[Row, list[str]]
  missing: list[Row]
  refused: dict[Row, str]
  elsewhere: list[Row]


def states_of(board: Board, rows: Sequence[Row], raw: Path, on_gpu: bool | None = None) -> States:
  """Returns what is known of some rows; no data are read.

  Args:
    board: the board.
    rows: the rows.
    raw: the folder of the raw figures.
    on_gpu: whether JAX has an accelerator; by default that is asked.
  """
  on_gpu = jax.default_backend() != "cpu" if on_gpu is None else on_gpu
  found = States({}, {}, [], {}, [])
  for row in rows:
    own = read_raw(raw, row)
    if reason := board.goes(row):
      found.refused[row] = reason
    elif own is not None:
      found.there[row] = own
      if changed := stale(own, made_by(board, row)):
        found.stale[row] = changed
    elif board.tasks[row.task].get("gpu") and not on_gpu:
      found.elsewhere.append(row)
    else:
      found.missing.append(row)
  return found


def tell(states: States) -> None:
  """Prints how many rows are there, and which are stale, with what has changed."""
  elsewhere = f", {len(states.elsewhere)} need a GPU" if states.elsewhere else ""
  refused = f", {len(states.refused)} do not go together" if states.refused else ""
  say(f"{len(states.there)} rows are there, {len(states.missing)} are missing{elsewhere}{refused}.")
  for row, changed in states.stale.items():
    say(f"stale: {row.task}, {row.method}: {'; '.join(changed)}. Delete its raw figures to make it again.")


def work(
  board: Board, missing: Sequence[Row], raw: Path, workdir: Path, where: Where, *, minutes: float,
  data_dir: str = "", checkpoint_seconds: float = 600.0, make: Callable[..., dict[str, Any]] = make_row,
  clock: Callable[[], float] = time.monotonic,
) -> list[Row]:  # fmt: skip
  """Makes rows until all are there or the time is over, and writes the raw figures of each as it ends.

  The row that is being made when the time is over is finished. A row that was begun by an earlier call goes
  on from its workdir, `workdir`/TASK/METHOD-FINGERPRINT, so that a row whose settings have changed begins
  anew.

  Args:
    board: the board.
    missing: the rows to make, in order.
    raw: the folder of the raw figures.
    workdir: the folder of the rows' workdirs.
    where: the devices.
    minutes: the time after which no further row is begun.
    data_dir: the data sets' folder.
    checkpoint_seconds: see `run_experiment`.
    make: makes a row.
    clock: returns seconds.

  Returns:
    The rows that were made.

  Raises:
    Stopped: SIGTERM or Ctrl-C came, and a checkpoint is written.
  """
  begin, made = clock(), []
  for number, row in enumerate(missing):
    spent = clock() - begin
    if spent >= 60.0 * minutes:
      say(f"{minutes:g} minutes are over: {len(missing) - number} rows are left to the next call.")
      break
    left = spent / number * (len(missing) - number) if number else None
    about = "" if left is None else f"; board ETA {datetime.timedelta(seconds=round(left))}"
    say(
      f"[{number + 1}/{len(missing)}] {row.task}, {row.method}, {board.number_of_trials(row)} trials{about}"
    )
    place = workdir / row.task / f"{row.method}-{fingerprint(made_by(board, row))}"
    found = make(
      board, row, place, where, OfOne(f"[{number + 1}/{len(missing)}] {row.method} "), data_dir=data_dir,
      checkpoint_seconds=checkpoint_seconds,
    )  # fmt: skip
    write_raw(raw, row, found)
    made.append(row)
    say(f"    {found.get('failed') or told(found)}; {path_of(raw, row)}")
  return made


def told(found: Mapping[str, Any]) -> str:
  """Returns a row's result in a line: the mean over its seeds, and what was chosen."""
  values = [own["mean"] for own in found["seeds"].values() if own.get("mean") is not None]
  mean = f"{sum(values) / len(values):.4f}" if values else "no value"
  chosen = ", ".join(f"{field} = {value:.4g}" for field, value in found["chosen"].items())
  seconds = found["tuning"]["seconds"] + found["seconds"]
  return f"{found['metric']} {mean} over {len(values)} seeds with {chosen}, after {seconds:.0f} s"


class OfOne(Display):
  """Display of one row: its progress with the row's place before it, and no tables.

  Args:
    place: what stands before the progress.
  """

  def __init__(self, place: str):
    """See the class."""
    self._place = place

  def progress(self, total: int) -> Progress:
    """See `Display`."""
    return _Placed(self._place, total)

  def show(self, *what: Any) -> None:
    """Shows nothing: a row's own tables would bury the board's progress."""


class _Placed(Progress):
  """A row's progress, with its place on the board before the figures."""

  def __init__(self, place: str, total: int):
    self._place = place  # first: on a terminal `super().__init__` already asks for figures
    super().__init__(total, console=console(), every=30.0)

  def _tell(self, what: str) -> None:
    """Prints nothing about work other than rounds."""

  def _figures(self) -> str:
    return f"{self._place}{super()._figures()}"
