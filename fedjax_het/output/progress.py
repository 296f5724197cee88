"""The progress of a run: a live bar on a terminal, and a line every few seconds in a log file."""

import contextlib
import datetime
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from rich.console import Console, RenderableType
from rich.progress import BarColumn, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.progress import Progress as Bar
from rich.table import Column
from rich.text import Text

from fedjax_het.errors import check_flag
from fedjax_het.metrics.catalogue import shown
from fedjax_het.output.terminal import console as new_console


class Progress:
  """Shows finished rounds, rounds per second, time left and the latest figures; a context manager.

  The rate is that of the last 20 updates, without the time of other work such as compiling. The first update
  only starts the clock.

  Args:
    total: number of rounds of the whole run.
    console: where to show the progress; standard output by default.
    every: seconds between two lines if `console` is not a terminal.
    quiet: whether to show nothing.
    transient: whether the bar disappears at the end.
  """

  def __init__(
    self,
    total: int,
    *,
    console: Console | None = None,
    every: float = 5.0,
    quiet: bool = False,
    transient: bool = False,
  ):
    """See the class."""
    self._console = console or new_console(quiet=quiet)
    self._total, self._round, self._start, self._every = total, 0, 0, every
    self._latest = ""
    self._doing: tuple[str, float] | None = None  # (work, its start)
    self._seen: deque[tuple[float, int]] = deque(maxlen=20)
    self._printed = time.monotonic()
    self._shown = 0
    self._bar: _Bar | None = None
    if self._console.is_terminal:
      self._bar = _Bar(self._beside, self._figures, self._console, transient)
      self._task = self._bar.add_task("", total=total)

  def __enter__(self) -> "Progress":
    """Starts the clock and the bar."""
    self._printed = time.monotonic()
    if self._bar is not None:
      self._bar.start()
    return self

  def __exit__(self, *exc: object) -> None:
    """Stops the bar, or prints the last line, also after an error."""
    if self._bar is not None:
      self._bar.stop()
    elif self._shown != self._round:
      self._print()

  def begin(self, start: int) -> None:
    """Sets the number of rounds that an earlier start has finished: 0, or the checkpoint's."""
    self._round = self._start = self._shown = start
    if start:
      self._line(f"continuing after round {start}")
    if self._bar is not None:
      self._bar.update(self._task, completed=start)

  @contextlib.contextmanager
  def doing(self, what: str) -> Iterator[None]:
    """Shows other work than rounds while it lasts: beside the bar with its seconds, or as a line in a log."""
    since = time.monotonic()
    before, self._doing = self._doing, (what, since)
    if self._bar is None:
      self._tell(what)
    try:
      yield
    finally:
      if before is None:
        spent = time.monotonic() - since
        self._seen = deque(((then + spent, done) for then, done in self._seen), self._seen.maxlen)
      self._doing = before

  def update(self, round: int, /, **latest: float) -> None:
    """Shows the number of finished rounds, and figures such as `train_loss=0.31, top1=0.97`.

    Figures stay until the next update that has any. Metrics in percent are given as fractions.
    """
    self._round = round
    self._seen.append((time.monotonic(), round))
    if latest:
      self._latest = "  ".join(_figure(name, value) for name, value in latest.items())
    if self._bar is not None:
      self._bar.update(self._task, completed=round)
    elif time.monotonic() - self._printed >= self._every:
      self._print()

  def _print(self) -> None:
    """Prints the progress in a plain line."""
    self._printed, self._shown = time.monotonic(), self._round
    share = 100 * self._round / max(self._total, 1)
    self._line(f"round {self._round}/{self._total} ({share:.0f} %)  {self._rate_text()}  {self._figures()}")

  def _tell(self, what: str) -> None:
    """Prints other work than rounds in a log."""
    self._line(what)

  def _line(self, line: str) -> None:
    self._console.out(line.rstrip(), highlight=False)
    self._console.file.flush()

  def _beside(self) -> str:
    """Returns the text beside the bar."""
    if self._doing is None:
      return self._rate_text()
    what, since = self._doing
    return f"{what}: {time.monotonic() - since:.0f} s"

  def _figures(self) -> str:
    """Returns the latest figures as text."""
    return self._latest

  def _rate_text(self) -> str:
    """Returns rounds per second and the time left as text; "" before the second update."""
    if not self._seen:
      return ""
    (t0, r0), (t1, r1) = self._seen[0], self._seen[-1]
    if r1 <= r0 or t1 <= t0:  # the first update, whose time is that of compiling
      return ""
    rate = (r1 - r0) / (t1 - t0)
    left = datetime.timedelta(seconds=round((self._total - r1) / rate))
    return f"{rate:.3g} rounds/s  ETA {left}"


class _Bar(Bar):
  """A bar with a text beside it and one below it; both functions are called whenever it is drawn."""

  def __init__(self, beside: Callable[[], str], below: Callable[[], str], console: Console, transient: bool):
    self._below = below
    rounds = TextColumn("{task.completed:.0f}/{task.total:.0f} rounds")
    super().__init__(
      SpinnerColumn(), BarColumn(bar_width=None), rounds, _Asked(beside), console=console, expand=True,
      transient=transient,
    )  # fmt: skip

  def get_renderables(self) -> Iterable[RenderableType]:
    """Yields the bar, and the text below it if there is any."""
    yield from super().get_renderables()
    if below := self._below():
      yield Text(below, "green")


class _Asked(ProgressColumn):
  """A column whose text is a function that is called whenever it is drawn."""

  def __init__(self, text: Callable[[], str]):
    super().__init__(Column(no_wrap=True))
    self._text = text

  def render(self, task: Task) -> Text:
    """Returns the present text."""
    return Text(self._text(), "cyan")


def of_library(total: int, wanted: bool | None, writes: bool) -> Progress:
  """Returns the progress that `run` and `sweep` show on standard error.

  Args:
    total: number of rounds.
    wanted: whether to show it; None only on a terminal, where the bar then disappears at the end.
    writes: whether this process shows anything; one of several processes does.

  Raises:
    SettingError: `wanted` is neither True, False nor None.
  """
  if wanted is not None:
    check_flag("progress", wanted)
  console = new_console(stderr=True)
  if not writes or not (console.is_terminal if wanted is None else wanted):
    console = new_console(stderr=True, quiet=True, force_terminal=False)
  return Progress(total, console=console, transient=wanted is None)


@contextlib.contextmanager
def doing(what: str, console: Console) -> Iterator[None]:
  """Shows work and its duration while the context lasts, on a terminal only."""
  if not console.is_terminal:
    yield
    return
  started = time.monotonic()
  beside = _Asked(lambda: f"{what}: {time.monotonic() - started:.0f} s")
  with Bar(SpinnerColumn(), beside, console=console, transient=True) as bar:
    bar.add_task("", total=None)
    yield


def _figure(name: str, value: float) -> str:
  """Returns a figure's name and value as text; a dash for NaN."""
  known = shown(name)
  text = (
    "–" if math.isnan(value) else f"{known.factor * value:.2f} %" if known.unit == "%" else f"{value:.4g}"
  )
  return f"{known.label} {text}"
