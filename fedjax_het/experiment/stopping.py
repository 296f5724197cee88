"""A polite request to stop: SIGTERM, as a cluster makes it, or Ctrl-C."""

import os
import signal
import threading
from types import FrameType

SOON = b"\nStopping after the rounds under way, with a checkpoint; Ctrl-C once more ends at once.\n"


class Stopped(Exception):
  """The run was asked to stop, and has written a checkpoint.

  Args:
    text: what is said of it.
    by: the signal that asked.
  """

  def __init__(self, text: str, by: signal.Signals = signal.SIGTERM):
    """See the class."""
    super().__init__(text)
    self.by = by


class StopRequest:
  """Notes SIGTERM and the first Ctrl-C while it is open, in place of dying of them; only in the main thread.

  Attributes:
    made: whether somebody has asked.
    by: the signal that asked; SIGTERM where another process was asked.
  """

  def __init__(self) -> None:
    """Nobody has asked yet."""
    self.made = False
    self.by = signal.SIGTERM

  def __enter__(self) -> "StopRequest":
    """Listens."""
    self._before = {}
    if threading.current_thread() is threading.main_thread():
      ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN  # as a shell has it for jobs behind &
      for number in (signal.SIGTERM, *([] if ignored else [signal.SIGINT])):
        self._before[number] = signal.signal(number, self._note)
    return self

  def __exit__(self, *exc: object) -> None:
    """Hands the signals back."""
    for number, handler in self._before.items():
      signal.signal(number, handler)

  def _note(self, number: int, frame: FrameType | None) -> None:
    self.made, self.by = True, signal.Signals(number)
    if number == signal.SIGINT:
      os.write(2, SOON)
      signal.signal(number, self._before[self.by])
