"""How far a whole table is: one progress over all its runs."""

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
from fedjax_het.engine.progress import Progress, doing
from fedjax_het.output.terminal import console as new_console
from fedjax_het.program.display import Display
from fedjax_het.tables.runs import Program


def work(plan: Plan) -> float:
  """What a run has to do, to compare it with others of one data set: passes over all clients' examples.

  Where the data say how many clients there are, as many times that.
  """
  epochs = plan.parts["local"].get("epochs", 1)
  return plan.rounds * plan.cohort_size * epochs / (plan.num_clients or 1)


class Board(Display):
  """Shows the runs of a table as one: runs done, the time left, and the run that goes on.

  The time left is what runs of the same method and data set took a unit of `work`, or, where none has run,
  what all took on average; so it is rough until every method has run once.

  Args:
    programs: what there is to do.
    past: (plan, summary) of runs that have ended; those whose `seconds` cannot be read tell nothing.
    console: where to show; standard output by default.
  """

  def __init__(
    self, programs: Sequence[Program], past: Iterable[tuple[Plan, Mapping[str, Any]]],
    console: Console | None = None,
  ):  # fmt: skip
    self._console = console or new_console(quiet=not writes())
    self._left, self._todo = list(programs), 1.0  # what share of the present one this start has to do
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
    """See `Display`; the run's progress, and the table's below it."""
    return _OfOne(self, total, self._console)

  def show(self, *what: RenderableType) -> None:
    """A run's own table is not shown."""

  def begin(self, program: Program) -> None:
    """Says which program is next."""
    self.now, self._began = program, time.monotonic()
    also = f", {len(program.runs)} runs as one program" if len(program.runs) > 1 else ""
    self._say(f"[{self.position}] {program.folder.name}{also}")

  def resume(self, share: float) -> None:
    """Says that so much of the program that was begun had been done before."""
    self._todo = 1.0 - share

  def end(self, outcome: str = "") -> None:
    """Books the program that was begun."""
    seconds, program = time.monotonic() - self._began, self._left.pop(0)
    if not outcome and self._todo:
      self._book(program.plan, seconds, self._todo * sum(work(one.plan) for one in program.runs))
    self._todo = 1.0
    self._runs_left -= len(program.runs)
    self._say(f"    {outcome or 'done'} after {duration(seconds)}; {self.left()}")

  @property
  def position(self) -> str:
    """Such as "3/33": the first run that is not done, of how many."""
    return f"{min(self._total - self._runs_left + 1, self._total)}/{self._total}"

  def left(self, share: float = 0.0) -> str:
    """The time left for the table, where `share` of what was left to do of the present program is done."""
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
  """Runs of a kind take alike a unit of `work`."""
  return plan.dataset, plan.client.name


def duration(seconds: float) -> str:
  """h:mm:ss."""
  return str(datetime.timedelta(seconds=round(seconds)))


class _OfOne(Progress):
  """A run's progress that says beside it how far the table is."""

  def __init__(self, board: Board, total: int, console: Console):
    self._board = board  # on a terminal the first figures are asked for before this has ended
    super().__init__(total, console=console, every=30.0)

  def begin(self, start: int) -> None:
    """See `Progress`."""
    super().begin(start)
    self._board.resume(start / max(self._total, 1))

  def __exit__(self, *exc: object) -> None:
    """A log of a table has lines of a run's rounds now and then, and none for its last: `end` says it."""
    self._shown = self._round
    super().__exit__(*exc)

  def _tell(self, what: str) -> None:
    """Nor what is done instead of rounds."""

  def _figures(self) -> str:
    share = (self._round - self._start) / max(self._total - self._start, 1)
    return f"[{self._board.position}] {self._board.left(share)}  {super()._figures()}"
