"""What a launched run shows on the terminal: its progress, and at the end its table."""

import contextlib
import os

from rich.console import Console, RenderableType

from fedjax_het.engine.processes import writes
from fedjax_het.output.progress import Progress, doing
from fedjax_het.output.terminal import console as new_console
from fedjax_het.output.terminal import say


class Display:
  """Shows a run by itself; a subclass shows it as one of many. Of several processes one shows anything."""

  def doing(self, what: str) -> contextlib.AbstractContextManager[None]:
    """Says what goes on before there is a progress, as long as it is not left."""
    return doing(what, new_console(quiet=not writes()))

  def progress(self, total: int) -> Progress:
    """What is told of `total` rounds, and of what is done before the first."""
    return Progress(total, quiet=not writes())

  def show(self, *what: RenderableType) -> None:
    """Tables as `rich` draws them, and lines of text as they are."""
    if writes():
      for one in what:
        say(one) if isinstance(one, str) else console().print(one)


def console() -> Console:
  """Of standard output; 120 wide where that is a file and nobody says otherwise."""
  found = new_console()
  return found if found.is_terminal or "COLUMNS" in os.environ else new_console(width=120)


TERMINAL = Display()
