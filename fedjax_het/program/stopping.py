"""Requests by signals: to stop (SIGTERM, as a cluster makes it, or Ctrl-C), or for a checkpoint (SIGUSR1)."""

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
SHOWN = b"\x1b[?25h"  # the cursor, which a live bar hides
SAVE: signal.Signals | None = getattr(signal, "SIGUSR1", None)  # None on Windows
PATIENCE = 0.5  # seconds in which Python runs a signal's handler, unless it is in a long call of a library

_noted = threading.Event()  # by a `StopRequest`, while `heard` is open


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
  """Notes SIGTERM, SIGUSR1 and the first Ctrl-C while it is open, in place of dying of them.

  Only in the main thread; SIGUSR1 only where nobody else listens to it.

  One that is opened within another tells it what it notes, and knows what that has noted.

  Attributes:
    made: whether somebody has asked.
    by: the signal that asked; SIGTERM where another process was asked.
    save: whether SIGUSR1 has asked for a checkpoint; who writes one sets it back.
  """

  def __init__(self) -> None:
    """Nobody has asked yet."""
    self.made = self.save = False
    self.by = signal.SIGTERM
    self._outer: StopRequest | None = None

  def __enter__(self) -> "StopRequest":
    """Listens."""
    self._before = {}
    if threading.current_thread() is threading.main_thread():
      ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN  # as a shell has it for jobs behind &
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
    """Hands the signals back."""
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
  """Whether a signal has no handler but the system's or one of this module."""
  handler = signal.getsignal(number)
  own = isinstance(getattr(handler, "__self__", None), StopRequest) or handler is _not_yet
  return own or handler in (signal.SIG_DFL, signal.SIG_IGN)


def _not_yet(number: int, frame: FrameType | None) -> None:
  """Answers SIGUSR1 while a program has nothing to write a checkpoint of; the system would end it."""


def outlive_save() -> None:
  """Keeps SIGUSR1 from ending a program that is still being prepared: before anything slow is imported."""
  if SAVE and signal.getsignal(SAVE) == signal.SIG_DFL:
    signal.signal(SAVE, _not_yet)


def say(what: bytes) -> None:
  """Writes a line to standard error, above a live bar where there is one: it wipes out what is below it."""
  if isinstance(sys.stderr, FileProxy):
    with contextlib.suppress(RuntimeError):  # the signal came while the same stream was written
      sys.stderr.write(what.decode().lstrip())
      return
  os.write(2, what)


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
  signal's handler within `PATIENCE`, nothing is added to what that does; but an interrupt that came where
  Python drops exceptions, as in a callback of its garbage collector, is repeated until it is heeded. Only in
  the main thread, and not where somebody else has the signals' wakeup descriptor, as an event loop.
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
  """Reads the numbers of signals until the other end is closed."""
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
      if not repeated:  # to a thread: to the process, it would become one with somebody's under way
        repeated = True
        signal.pthread_kill(main, signal.SIGINT)
