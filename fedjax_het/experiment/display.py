"""What a launched run shows on the terminal: its progress, and at the end its table."""

import os

from rich.console import Console, RenderableType

from fedjax_het.engine.processes import writes
from fedjax_het.experiment.progress import Progress


class Display:
  """Shows a run by itself; a subclass shows it as one of many. Of several processes one shows anything."""

  def progress(self, total: int, start: int) -> Progress:
    """What is told of the rounds, from `start` to `total`."""
    return Progress(total, start, quiet=not writes())

  def show(self, *what: RenderableType) -> None:
    """Tables as `rich` draws them, and lines of text as they are."""
    if writes():
      for one in what:
        print(one) if isinstance(one, str) else console().print(one)


def console() -> Console:
  """Of standard output; 120 wide where that is a file and nobody says otherwise."""
  found = Console()
  return found if found.is_terminal or "COLUMNS" in os.environ else Console(width=120)


TERMINAL = Display()
