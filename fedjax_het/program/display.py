"""Display of a launched run on the terminal: its progress, and at the end its table."""

import contextlib
import os

from rich.console import Console, RenderableType

from fedjax_het.engine.base import Runs
from fedjax_het.engine.processes import writes
from fedjax_het.output.progress import Progress, doing
from fedjax_het.output.terminal import console as new_console
from fedjax_het.output.terminal import say


class Display:
  """Shows a single run; a subclass shows a run as one of many. Only one process shows anything."""

  def doing(self, what: str) -> contextlib.AbstractContextManager[None]:
    """Context manager that shows the current work before there is a progress bar."""
    return doing(what, new_console(quiet=not writes()))

  def trains(self, engine: Runs) -> None:
    """Is called with the engine before it trains."""

  def progress(self, total: int) -> Progress:
    """Returns the progress display of `total` rounds."""
    return Progress(total, quiet=not writes())

  def show(self, *what: RenderableType) -> None:
    """Prints tables of `rich` and lines of text."""
    if writes():
      for one in what:
        say(one) if isinstance(one, str) else console().print(one)


def console() -> Console:
  """Makes the console of standard output, 120 columns wide if that is a file and COLUMNS is not set."""
  found = new_console()
  return found if found.is_terminal or "COLUMNS" in os.environ else new_console(width=120)


TERMINAL = Display()
