"""A polite request to stop: SIGTERM, as a cluster makes it, or Ctrl-C; and the second Ctrl-C."""

import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

SOON = b"\nStopping after the rounds under way, with a checkpoint; Ctrl-C once more ends at once.\n"
LATER = b"\nStopping as soon as what goes on (such as compiling) can be left; Ctrl-C again ends at once.\n"
NOW = b"\nInterrupted; what was written before stays, and the same command goes on from there.\n"
SHOWN = b"\x1b[?25h"  # the cursor, which a live bar hides
PATIENCE = 0.5  # seconds in which Python runs a signal's handler, unless it is in a long call of a library

_noted = threading.Event()  # by a `StopRequest` that is open


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
    _noted.clear()

  def _note(self, number: int, frame: FrameType | None) -> None:
    self.made, self.by = True, signal.Signals(number)
    if number == signal.SIGINT:
      _noted.set()
      os.write(2, SOON)
      signal.signal(number, self._before[self.by])


def end_now() -> NoReturn:
  """Ends the program as Ctrl-C does, with nothing but what was printed."""
  with contextlib.suppress(OSError, ValueError):
    sys.stdout.flush()
    if sys.stdout.isatty():
      os.write(1, SHOWN)
  os.write(2, NOW)
  os._exit(128 + signal.SIGINT)


@contextlib.contextmanager
def heard() -> Iterator[None]:
  """Hears Ctrl-C also while the main thread cannot, as when XLA compiles: for a program's whole run.

  The first is then answered at once and heeded later; the second ends the program. Where Python runs the
  signal's handler within `PATIENCE`, nothing is added to what that does. Only in the main thread, and not
  where somebody else has the signals' wakeup descriptor, as an event loop.
  """
  if threading.current_thread() is not threading.main_thread():
    yield
    return
  reader, writer = os.pipe()
  os.set_blocking(writer, False)
  before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
  if before != -1:
    signal.set_wakeup_fd(before)
  threading.Thread(target=_listen, args=(reader,), name="ctrl-c", daemon=True).start()
  try:
    yield
  finally:
    if before == -1:
      signal.set_wakeup_fd(-1)
    os.close(writer)


def _listen(reader: int) -> None:
  """Reads the numbers of signals until the other end is closed."""
  pressed = 0
  while number := os.read(reader, 1):
    if number[0] != signal.SIGINT:
      continue
    pressed += 1
    if select.select([reader], [], [], PATIENCE)[0]:
      continue
    if pressed > 1:
      end_now()
    if not _noted.is_set():
      os.write(2, LATER)
  os.close(reader)
