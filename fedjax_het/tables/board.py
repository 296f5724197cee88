"""Progress of a whole table: runs done and time left over all its programs."""

import contextlib
import datetime
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console, RenderableType

from fedjax_het.config.typed import Plan
from fedjax_het.config.values import is_measured
from fedjax_het.engine.processes import writes
from fedjax_het.output.progress import Progress, doing
from fedjax_het.output.terminal import console as new_console
from fedjax_het.program.display import Display
from fedjax_het.tables.runs import Program


def work(plan: Plan) -> float:
  """Returns a run's amount of work, in passes over all clients' examples, comparable within a data set.

  Where `num_clients` is not configured because the data set determines it, this is K times as much for all
  runs of the data set.
  """
  epochs = plan.parts["local"].get("epochs", 1)
  return plan.rounds * plan.cohort_size * epochs / (plan.num_clients or 1)


class Board(Display):
  """Display of a table's progress: runs done, time left, and the program that is running.

  The time left is the remaining `work` times the seconds that a unit of it took in runs of the same method
  and data set, or, where none has run, the average over all runs; so it is rough until every method has run
  once.

  Args:
    programs: the programs to run, in order.
    past: (plan, summary) of runs that have ended; those without readable `seconds` are ignored.
    console: the console to write to; standard output by default.
  """

  def __init__(
    self, programs: Sequence[Program], past: Iterable[tuple[Plan, Mapping[str, Any]]],
    console: Console | None = None,
  ):  # fmt: skip
    self._console = console or new_console(quiet=not writes())
    self._left, self._todo = (
      list(programs),
      1.0,
    )  # fraction of the current program left
    self._total = self._runs_left = sum(len(program.runs) for program in programs)
    self._spent: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])  # seconds, work
    for plan, summary in past:
      seconds = summary.get("seconds")
      if isinstance(seconds, Mapping) and seconds and all(map(is_measured, seconds.values())):
        self._book(plan, sum(seconds.values()), work(plan))

  def doing(self, what: str) -> contextlib.AbstractContextManager[None]:
    """See `Display`."""
    return doing(what, self._console)

  def progress(self, total: int) -> Progress:
    """See `Display`; shows the run's progress, and the table's below it."""
    return _OfOne(self, total, self._console)

  def show(self, *what: RenderableType) -> None:
    """Shows nothing: a run's own table would bury the table's progress."""

  def begin(self, program: Program) -> None:
    """Starts the clock of a program and prints its name."""
    self.now, self._began = program, time.monotonic()
    also = f", {len(program.runs)} runs as one program" if len(program.runs) > 1 else ""
    self._say(f"[{self.position}] {program.folder.name}{also}")

  def resume(self, share: float) -> None:
    """Notes that a fraction `share` of the current program had been done by earlier starts."""
    self._todo = 1.0 - share

  def end(self, outcome: str = "") -> None:
    """Records the time of the current program and prints it, with its outcome and the time left."""
    seconds, program = time.monotonic() - self._began, self._left.pop(0)
    if not outcome and self._todo:
      self._book(program.plan, seconds, self._todo * sum(work(one.plan) for one in program.runs))
    self._todo = 1.0
    self._runs_left -= len(program.runs)
    self._say(f"    {outcome or 'done'} after {duration(seconds)}; {self.left()}")

  @property
  def position(self) -> str:
    """The number of the first run that is not done, and of all runs, such as "3/33"."""
    return f"{min(self._total - self._runs_left + 1, self._total)}/{self._total}"

  def left(self, share: float = 0.0) -> str:
    """Returns the time left as text, where a fraction `share` of this start's work on the program is done."""
    if not self._left:
      return "the table is done"
    if share:
      now, seconds = self._left[0], time.monotonic() - self._began
      rates = {kind(now.plan): seconds / (share * self._todo * sum(work(one.plan) for one in now.runs))}
    else:
      rates = {}
    rates |= {name: seconds / units for name, (seconds, units) in self._spent.items() if name not in rates}
    if not rates:
      return "time left not known yet"
    mean = sum(rates.values()) / len(rates)
    seconds = sum(
      ((1.0 - share) * self._todo if program is self._left[0] else 1.0)
      * sum(work(one.plan) * rates.get(kind(one.plan), mean) for one in program.runs)
      for program in self._left
    )
    return f"table ETA {duration(seconds)}"

  def _book(self, plan: Plan, seconds: float, units: float) -> None:
    spent = self._spent[kind(plan)]
    spent[0] += seconds
    spent[1] += units

  def _say(self, text: str) -> None:
    self._console.out(text, highlight=False)
    self._console.file.flush()


def kind(plan: Plan) -> tuple[str, str]:
  """Returns (data set, method): runs that share both take equally long for a unit of `work`."""
  return plan.dataset, plan.client.name


def duration(seconds: float) -> str:
  """Formats seconds as h:mm:ss."""
  return str(datetime.timedelta(seconds=round(seconds)))


class _OfOne(Progress):
  """A run's progress, followed by the table's progress."""

  def __init__(self, board: Board, total: int, console: Console):
    self._board = board  # set first: on a terminal `super().__init__` already asks for figures
    super().__init__(total, console=console, every=30.0)

  def begin(self, start: int) -> None:
    """See `Progress`."""
    super().begin(start)
    self._board.resume(start / max(self._total, 1))

  def __exit__(self, *exc: object) -> None:
    """Prints no line for the last round, because `Board.end` prints one."""
    self._shown = self._round
    super().__exit__(*exc)

  def _tell(self, what: str) -> None:
    """Prints nothing about work other than rounds, such as an evaluation."""

  def _figures(self) -> str:
    share = (self._round - self._start) / max(self._total - self._start, 1)
    return f"[{self._board.position}] {self._board.left(share)}  {super()._figures()}"
