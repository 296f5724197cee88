"""How far the run is: a live bar on a terminal, a line now and then in a log file."""

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

from fedjax_het.engine.processes import writes
from fedjax_het.errors import check_flag
from fedjax_het.metrics.catalogue import shown
from fedjax_het.output.terminal import console as new_console


class Progress:
  """Rounds done, rounds a second, time left and the latest figures; use it in a `with`.

  The rate is that of the last 20 updates, without what is done instead of rounds, such as compiling. The
  first only starts the clock.

  Args:
    total: rounds of the whole run.
    console: where to show; standard output by default.
    every: seconds between two lines where that is not a terminal.
    quiet: shows nothing.
    transient: a bar goes when it ends.
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
    self._doing: tuple[str, float] | None = None  # what, since when
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
    """Leaves the last state on the screen, also after an error."""
    if self._bar is not None:
      self._bar.stop()
    elif self._shown != self._round:
      self._print()

  def begin(self, start: int) -> None:
    """Says that `start` rounds were done before this start: 0, or the checkpoint's."""
    self._round = self._start = self._shown = start
    if start:
      self._line(f"continuing after round {start}")
    if self._bar is not None:
      self._bar.update(self._task, completed=start)

  @contextlib.contextmanager
  def doing(self, what: str) -> Iterator[None]:
    """Shows what is done instead of rounds: with its seconds on a terminal, as a line elsewhere."""
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
    """Shows that `round` rounds are done, and figures such as `train_loss=0.31, top1=0.97`.

    Figures stay until the next update that has any; metrics in percent are given as fractions.
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
    """One plain line."""
    self._printed, self._shown = time.monotonic(), self._round
    share = 100 * self._round / max(self._total, 1)
    self._line(f"round {self._round}/{self._total} ({share:.0f} %)  {self._rate_text()}  {self._figures()}")

  def _tell(self, what: str) -> None:
    """Says in a log what is done instead of rounds."""
    self._line(what)

  def _line(self, line: str) -> None:
    self._console.out(line.rstrip(), highlight=False)
    self._console.file.flush()

  def _beside(self) -> str:
    """What stands beside the bar."""
    if self._doing is None:
      return self._rate_text()
    what, since = self._doing
    return f"{what}: {time.monotonic() - since:.0f} s"

  def _figures(self) -> str:
    """The latest figures."""
    return self._latest

  def _rate_text(self) -> str:
    """Rounds a second and the time left."""
    if not self._seen:
      return ""
    (t0, r0), (t1, r1) = self._seen[0], self._seen[-1]
    if r1 <= r0 or t1 <= t0:  # the first update, whose time is compilation's
      return ""
    rate = (r1 - r0) / (t1 - t0)
    left = datetime.timedelta(seconds=round((self._total - r1) / rate))
    return f"{rate:.3g} rounds/s  ETA {left}"


class _Bar(Bar):
  """A bar with a text beside it and one below, which are asked for anew whenever it is drawn."""

  def __init__(self, beside: Callable[[], str], below: Callable[[], str], console: Console, transient: bool):
    self._below = below
    rounds = TextColumn("{task.completed:.0f}/{task.total:.0f} rounds")
    super().__init__(
      SpinnerColumn(), BarColumn(bar_width=None), rounds, _Asked(beside), console=console, expand=True,
      transient=transient,
    )  # fmt: skip

  def get_renderables(self) -> Iterable[RenderableType]:
    """The bar, and what is below it."""
    yield from super().get_renderables()
    if below := self._below():
      yield Text(below, "green")


class _Asked(ProgressColumn):
  """A text that is asked for whenever it is drawn."""

  def __init__(self, text: Callable[[], str]):
    super().__init__(Column(no_wrap=True))
    self._text = text

  def render(self, task: Task) -> Text:
    """The text."""
    return Text(self._text(), "cyan")


def of_library(total: int, wanted: bool | None) -> Progress:
  """What a function of the library shows on standard error; see `run`. Of several processes one does.

  Raises:
    SettingError: `wanted` is neither True, False nor None.
  """
  if wanted is not None:
    check_flag("progress", wanted)
  console = new_console(stderr=True)
  if not writes() or not (console.is_terminal if wanted is None else wanted):
    console = new_console(stderr=True, quiet=True, force_terminal=False)
  return Progress(total, console=console, transient=wanted is None)


@contextlib.contextmanager
def doing(what: str, console: Console) -> Iterator[None]:
  """Shows on a terminal, until it is left, what is done and for how long; nothing elsewhere."""
  if not console.is_terminal:
    yield
    return
  started = time.monotonic()
  beside = _Asked(lambda: f"{what}: {time.monotonic() - started:.0f} s")
  with Bar(SpinnerColumn(), beside, console=console, transient=True) as bar:
    bar.add_task("", total=None)
    yield


def _figure(name: str, value: float) -> str:
  """A figure's name and value; a dash where there is none."""
  known = shown(name)
  text = (
    "–" if math.isnan(value) else f"{known.factor * value:.2f} %" if known.unit == "%" else f"{value:.4g}"
  )
  return f"{known.label} {text}"
