"""How far the run is: a live bar on a terminal, a line now and then in a log file."""

import datetime
import math
import time
from collections import deque

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn
from rich.progress import Progress as Bar

from fedjax_het.metrics.catalogue import shown


class Progress:
  """Rounds done, rounds a second, time left and the latest figures; use it in a `with`.

  The rate is that of the last 20 updates. The first only starts the clock, so the compilation before it does
  not spoil the estimate.

  Args:
    total: rounds of the whole run.
    start: rounds done before this start (0, or the checkpoint's).
    console: where to show; standard output by default.
    every: seconds between two lines where that is not a terminal.
    quiet: shows nothing.
  """

  def __init__(
    self, total: int, start: int = 0, *, console: Console | None = None, every: float = 5.0,
    quiet: bool = False,
  ):  # fmt: skip
    """See the class."""
    self._console = console or Console(quiet=quiet)
    self._total, self._round, self._start, self._every = total, start, start, every
    self._latest = ""
    self._seen: deque[tuple[float, int]] = deque(maxlen=20)
    self._printed = time.monotonic()
    self._shown = start
    self._bar: Bar | None = None
    if self._console.is_terminal:
      columns = (
        SpinnerColumn(),
        BarColumn(bar_width=None),
        TextColumn("{task.completed:.0f}/{task.total:.0f} rounds"),
        TextColumn("{task.fields[rate]}", style="cyan"),
        TextColumn("{task.fields[latest]}", style="green"),
      )
      self._bar = Bar(*columns, console=self._console, expand=True)
      self._task = self._bar.add_task("", total=total, completed=start, rate="compiling", latest="")

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

  def update(self, round: int, /, **latest: float) -> None:
    """Shows that `round` rounds are done, and figures such as `loss=0.31, top1=0.97`.

    Figures stay until the next update that has any; metrics in percent are given as fractions.
    """
    self._round = round
    self._seen.append((time.monotonic(), round))
    if latest:
      self._latest = "  ".join(_figure(name, value) for name, value in latest.items())
    if self._bar is not None:
      self._bar.update(self._task, completed=round, rate=self._rate_text(), latest=self._latest)
    elif time.monotonic() - self._printed >= self._every:
      self._print()

  def _print(self) -> None:
    """One plain line."""
    self._printed, self._shown = time.monotonic(), self._round
    share = 100 * self._round / max(self._total, 1)
    line = f"round {self._round}/{self._total} ({share:.0f} %)  {self._rate_text()}  {self._latest}"
    self._console.out(line.rstrip(), highlight=False)
    self._console.file.flush()

  def _rate_text(self) -> str:
    """Rounds a second and the time left."""
    (t0, r0), (t1, r1) = self._seen[0], self._seen[-1]
    if r1 <= r0 or t1 <= t0:  # the first update, whose time is compilation's
      return ""
    rate = (r1 - r0) / (t1 - t0)
    left = datetime.timedelta(seconds=round((self._total - r1) / rate))
    return f"{rate:.3g} rounds/s  ETA {left}"


def _figure(name: str, value: float) -> str:
  """A figure's name and value; a dash where there is none."""
  text = "–" if math.isnan(value) else f"{100 * value:.2f} %" if shown(name).unit == "%" else f"{value:.4g}"
  return f"{name.replace('_', ' ')} {text}"
