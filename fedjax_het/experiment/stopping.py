"""A polite request to stop, as a cluster makes it: SIGTERM."""

import signal
import threading
from types import FrameType


class Stopped(Exception):
  """The run was asked to stop, and has written a checkpoint."""


class StopRequest:
  """Notes SIGTERM while it is open, in place of dying of it; only in the main thread."""

  def __init__(self) -> None:
    """Nobody has asked yet."""
    self.made = False

  def __enter__(self) -> "StopRequest":
    """Listens."""
    self._listens = threading.current_thread() is threading.main_thread()
    if self._listens:
      self._before = signal.signal(signal.SIGTERM, self._note)
    return self

  def __exit__(self, *exc: object) -> None:
    """Hands SIGTERM back."""
    if self._listens:
      signal.signal(signal.SIGTERM, self._before)

  def _note(self, number: int, frame: FrameType | None) -> None:
    self.made = True
