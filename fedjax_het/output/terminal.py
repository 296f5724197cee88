"""The terminal: a console that shows text as it is, and standard streams that never end a program.

A program that has finished its work must not fail because its output cannot be shown. `protect_streams`
replaces characters that the terminal's encoding does not have, and drops what is written after the device
behind a stream has failed: a full disk, or a pipe that its reader has closed.
"""

import codecs
import contextlib
import errno
import io
import os
import sys
import unicodedata
from collections.abc import Iterable
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from fedjax_het.output.escape import terminal

_LOOK_ALIKE = "fedjax_het_look_alike"  # the error handler's name
_KEPT = ("ignore", "replace", "xmlcharrefreplace", "namereplace")  # handlers that a user has chosen
_LOOK_ALIKES = {
  "±": "+/-", "−": "-", "–": "-", "—": "-", "·": "-", "×": "x", "…": "...", "≤": "<=", "≥": ">=", "≠": "!=",
  "→": "->", "←": "<-", "“": '"', "”": '"', "„": '"', "‘": "'", "’": "'", "∞": "inf", "∝": "~", "√": "sqrt",
  "λ": "lambda", "Λ": "Lambda",
}  # fmt: skip
_OWN = str.maketrans(_LOOK_ALIKES)
_LINES = {"-": "─━═╌┄┈╴╶╸╺╼╾", "|": "│┃║╎┆┊╵╷╹╻"}


class _Console(Console):
  """Shows control characters as their escapes, wherever they come from."""

  def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
    """See `Console`."""
    for own in super().render(renderable, options):
      yield own if own.control else Segment(terminal(own.text), own.style)


def console(**settings: Any) -> Console:
  """A console of `rich` that takes square brackets and colons in a text for what they are.

  Args:
    settings: as `rich.console.Console` takes them.
  """
  return _Console(markup=False, emoji=False, **settings)


def say(*lines: object, error: bool = False) -> None:
  """Prints lines of text on standard output or standard error, with control characters as their escapes."""
  for line in lines:
    print(terminal(line), file=sys.stderr if error else sys.stdout)


def protect_streams() -> None:
  """Makes standard output and standard error of this program take everything; call it first."""
  codecs.register_error(_LOOK_ALIKE, _look_alike)
  sys.stdout, sys.stderr = _protected(sys.stdout, tells=True), _protected(sys.stderr, tells=False)


class _Lasting(io.RawIOBase):
  """Writes to a device until that fails, then nowhere."""

  def __init__(self, raw: io.RawIOBase, tells: bool):
    self._raw, self._tells, self._lost = raw, tells, False

  def writable(self) -> bool:
    """Always."""
    return True

  def isatty(self) -> bool:
    """Whether the device is a terminal."""
    return self._raw.isatty()

  def fileno(self) -> int:
    """The device's."""
    return self._raw.fileno()

  def write(self, data: Any, /) -> int | None:
    """Writes, and says once on standard error if that has become impossible; a closed pipe is no news."""
    if not self._lost:
      try:
        return self._raw.write(data)
      except OSError as error:
        self._lost = True
        if self._tells and error.errno not in (errno.EPIPE, errno.EINVAL):
          say(
            f"Standard output cannot be written ({error.strerror}). What it would show is lost.", error=True
          )
    return memoryview(data).nbytes


class _InASCII(io.TextIOWrapper):
  """Writes the signs that the library's own texts use in ASCII, where the encoding is not UTF-8.

  An encoding may have some of them, but who reads it may take it for another; names in it stay as they are.
  """

  def write(self, text: str, /) -> int:
    """See `io.TextIOWrapper`."""
    return super().write(text.translate(_OWN))


def _protected(stream: TextIO | None, tells: bool) -> TextIO:
  if stream is None:  # closed by who started the program
    return open(os.devnull, "w", encoding="utf-8")
  buffer = getattr(stream, "buffer", None)
  raw = getattr(buffer, "raw", buffer)
  if not isinstance(raw, io.RawIOBase) or isinstance(raw, _Lasting):  # such as a notebook's
    return stream
  with contextlib.suppress(OSError):
    stream.flush()
  kind = io.TextIOWrapper if stream.encoding.lower().startswith("utf") else _InASCII
  return kind(
    io.BufferedWriter(_Lasting(raw, tells)), stream.encoding,
    stream.errors if stream.errors in _KEPT else _LOOK_ALIKE,
    line_buffering=bool(getattr(stream, "line_buffering", False)) or raw is buffer,  # python -u has no buffer
  )  # fmt: skip


def _look_alike(error: UnicodeError) -> tuple[str, int]:
  """What stands for characters that an encoding does not have: look-alikes in ASCII, or escapes."""
  if not isinstance(error, UnicodeEncodeError):
    raise error
  return "".join(map(_in_ascii, error.object[error.start : error.end])), error.end


def _in_ascii(sign: str) -> str:
  if sign in _LOOK_ALIKES:
    return _LOOK_ALIKES[sign]
  if "\u2500" <= sign <= "\u257f":  # a table's lines
    return next((own for own, lines in _LINES.items() if sign in lines), "+")
  if "\u2580" <= sign <= "\u259f" or "\u2800" <= sign <= "\u28ff":  # blocks, and the dots of a spinner
    return "#" if sign < "\u2800" else "*"
  name = unicodedata.name(sign, "").split()
  if name[:1] == ["GREEK"] and name[2:3] == ["LETTER"] and len(name) == 4:
    return name[3].title() if name[1] == "CAPITAL" else name[3].lower()
  plain = unicodedata.normalize("NFKD", sign).encode("ascii", "ignore").decode()
  return plain or sign.encode("ascii", "backslashreplace").decode()
