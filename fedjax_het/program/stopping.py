"""Signal handling: requests to stop (SIGTERM, Ctrl-C) and to write a checkpoint (SIGUSR1)."""

import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

from rich.file_proxy import FileProxy

SOON = b"\nStopping after the rounds under way, with a checkpoint; Ctrl-C once more ends at once.\n"
LATER = b"\nStopping as soon as what goes on (such as compiling) can be left; Ctrl-C again ends at once.\n"
SAVING = b"\nA checkpoint follows after the rounds under way, and the run goes on.\n"
NOW = b"\nInterrupted; what was written before stays, and the same command goes on from there.\n"
SHOWN = b"\x1b[?25h"  # shows the cursor, which a live bar hides
SAVE: signal.Signals | None = getattr(signal, "SIGUSR1", None)  # None on Windows
PATIENCE = 0.5  # seconds within which Python runs a signal handler, except during a long library call

_noted = threading.Event()  # set by a `StopRequest`, while `heard` is open


class Stopped(Exception):
  """The run was asked to stop, and has written a checkpoint.

  Args:
    text: the message.
    by: the signal that was received.
  """

  def __init__(self, text: str, by: signal.Signals = signal.SIGTERM):
    """See the class."""
    super().__init__(text)
    self.by = by


class StopRequest:
  """Context manager that records SIGTERM, SIGUSR1 and the first Ctrl-C instead of ending the program.

  It works in the main thread only, and for SIGUSR1 only if no other handler is installed.

  A nested request shares what it records with the outer one.

  Attributes:
    made: whether a stop was requested.
    by: the signal that was received; SIGTERM if another process received one.
    save: whether SIGUSR1 requested a checkpoint; reset by whoever writes it.
  """

  def __init__(self) -> None:
    """Starts without a request."""
    self.made = self.save = False
    self.by = signal.SIGTERM
    self._outer: StopRequest | None = None

  def __enter__(self) -> "StopRequest":
    """Installs the signal handlers."""
    self._before = {}
    if threading.current_thread() is threading.main_thread():
      ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN  # set by shells for background jobs
      for number in (signal.SIGTERM, *([] if ignored else [signal.SIGINT])):
        self._before[number] = signal.signal(number, self._note)
        own = getattr(self._before[number], "__self__", None)
        self._outer = own if isinstance(own, StopRequest) else self._outer
      if SAVE and _is_ours_to_hear(SAVE):
        self._before[SAVE] = signal.signal(SAVE, self._note_save)
    if self._outer is not None and self._outer.made:
      self.made, self.by = True, self._outer.by
    return self

  def __exit__(self, *exc: object) -> None:
    """Restores the previous signal handlers."""
    for number, handler in self._before.items():
      signal.signal(number, handler)

  def _note(self, number: int, frame: FrameType | None) -> None:
    again = self.made and self.by == signal.SIGINT == number
    self.made, self.by = True, signal.Signals(number)
    if self._outer is not None:
      self._outer._note(number, frame)
    elif again:
      raise KeyboardInterrupt
    elif number == signal.SIGINT:
      _noted.set()
      say(SOON)

  def _note_save(self, number: int, frame: FrameType | None) -> None:
    self.save = True
    say(SAVING)


def _is_ours_to_hear(number: signal.Signals) -> bool:
  """Returns whether a signal has the system's default handler or one of this module."""
  handler = signal.getsignal(number)
  own = isinstance(getattr(handler, "__self__", None), StopRequest) or handler is _not_yet
  return own or handler in (signal.SIG_DFL, signal.SIG_IGN)


def _not_yet(number: int, frame: FrameType | None) -> None:
  """Handles SIGUSR1 while there is nothing to checkpoint, because the default would end the program."""


def outlive_save() -> None:
  """Keeps SIGUSR1 from ending a program that is still starting; called before slow imports."""
  if SAVE and signal.getsignal(SAVE) == signal.SIG_DFL:
    signal.signal(SAVE, _not_yet)


def say(what: bytes) -> None:
  """Writes a line to standard error, above a live progress bar, which would otherwise erase it."""
  if isinstance(sys.stderr, FileProxy):
    with contextlib.suppress(RuntimeError):  # the signal interrupted a write to the same stream
      sys.stderr.write(what.decode().lstrip())
      return
  os.write(2, what)


def end_now() -> NoReturn:
  """Ends the program as Ctrl-C does, without further output."""
  with contextlib.suppress(OSError, ValueError):
    sys.stdout.flush()
    if sys.stdout.isatty():
      os.write(1, SHOWN)
  os.write(2, NOW)
  os._exit(128 + signal.SIGINT)


@contextlib.contextmanager
def heard() -> Iterator[None]:
  """Context manager that reacts to Ctrl-C even while the main thread cannot, as during an XLA compilation.

  The first Ctrl-C is acknowledged at once and takes effect later; the second ends the program. If Python runs
  the signal handler within `PATIENCE`, nothing else happens. An interrupt that arrives where Python drops
  exceptions, such as in a garbage-collection callback, is repeated until it takes effect. It is used in the
  main thread only, and not if another component, such as an event loop, uses the signals' wakeup descriptor.
  """
  if threading.current_thread() is not threading.main_thread():
    yield
    return
  _noted.clear()
  saving = signal.signal(SAVE, _not_yet) if SAVE and signal.getsignal(SAVE) == signal.SIG_DFL else None
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
    if SAVE and saving is not None:
      signal.signal(SAVE, saving)


def _listen(reader: int) -> None:
  """Reads signal numbers until the other end of the pipe is closed."""
  main = threading.main_thread().ident
  assert main is not None
  pressed, repeated = 0, False
  wait = PATIENCE
  while True:
    pending = pressed > 1 or (pressed and not _noted.is_set())
    if select.select([reader], [], [], wait if pending else None)[0]:
      number = os.read(reader, 1)
      if not number:
        return os.close(reader)
      if number[0] == signal.SIGINT and repeated:
        repeated = False
      elif number[0] == signal.SIGINT:
        pressed, wait = pressed + 1, PATIENCE
    elif pressed > 1:
      end_now()
    elif not _noted.is_set():
      if wait == PATIENCE:
        say(LATER)
      wait = 4 * PATIENCE
      if not repeated:  # to the thread, because signals to the process are merged with pending ones
        repeated = True
        signal.pthread_kill(main, signal.SIGINT)
