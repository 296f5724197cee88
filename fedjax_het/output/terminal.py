"""Console and standard streams that never end a program because its output cannot be shown.

`protect_streams` replaces characters that the terminal's encoding does not have, and drops all output after
the device behind a stream has failed, such as a full disk or a pipe that its reader has closed.
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

_LOOK_ALIKE = "fedjax_het_look_alike"  # the name of the encoding error handler
_KEPT = ("ignore", "replace", "xmlcharrefreplace", "namereplace")  # handlers chosen by the user
_LOOK_ALIKES = {
  "±": "+/-", "−": "-", "–": "-", "—": "-", "·": "-", "×": "x", "…": "...", "≤": "<=", "≥": ">=", "≠": "!=",
  "→": "->", "←": "<-", "“": '"', "”": '"', "„": '"', "‘": "'", "’": "'", "∞": "inf", "∝": "~", "√": "sqrt",
  "λ": "lambda", "Λ": "Lambda",
}  # fmt: skip
_OWN = str.maketrans(_LOOK_ALIKES)
_LINES = {"-": "─━═╌┄┈╴╶╸╺╼╾", "|": "│┃║╎┆┊╵╷╹╻"}


class _Console(Console):
  """Console that shows control characters in all output as their escapes."""

  def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
    """See `Console`; the escapes replace control characters in every segment."""
    for own in super().render(renderable, options):
      yield own if own.control else Segment(terminal(own.text), own.style)


def console(**settings: Any) -> Console:
  """Makes a console of `rich` that does not interpret square brackets and colons as markup.

  Args:
    settings: arguments of `rich.console.Console`.
  """
  return _Console(markup=False, emoji=False, **settings)


def say(*lines: object, error: bool = False) -> None:
  """Prints lines of text on standard output or standard error, with control characters as their escapes."""
  for line in lines:
    print(terminal(line), file=sys.stderr if error else sys.stdout)


def protect_streams() -> None:
  """Replaces standard output and error by streams that accept any text; must be called first."""
  codecs.register_error(_LOOK_ALIKE, _look_alike)
  sys.stdout, sys.stderr = _protected(sys.stdout, tells=True), _protected(sys.stderr, tells=False)


class _Lasting(io.RawIOBase):
  """Raw stream that writes to a device until that fails, and then drops everything."""

  def __init__(self, raw: io.RawIOBase, tells: bool):
    self._raw, self._tells, self._lost = raw, tells, False

  def writable(self) -> bool:
    """Returns True, as the stream can be written until it is closed."""
    return True

  def isatty(self) -> bool:
    """Returns whether the device is a terminal."""
    return self._raw.isatty()

  def fileno(self) -> int:
    """Returns the file descriptor of the device."""
    return self._raw.fileno()

  def write(self, data: Any, /) -> int | None:
    """Writes bytes; reports on standard error once if that has failed, unless a reader closed the pipe."""
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
  """Text stream that replaces the symbols of the library's own texts by ASCII if the encoding is not UTF-8.

  Other encodings have some of these symbols, but readers may decode them with another one. Letters, as in
  names, are not replaced.
  """

  def write(self, text: str, /) -> int:
    """See `io.TextIOWrapper`."""
    return super().write(text.translate(_OWN))


def _protected(stream: TextIO | None, tells: bool) -> TextIO:
  if stream is None:  # closed by the parent process
    return open(os.devnull, "w", encoding="utf-8")
  buffer = getattr(stream, "buffer", None)
  raw = getattr(buffer, "raw", buffer)
  if not isinstance(raw, io.RawIOBase) or isinstance(raw, _Lasting):  # a notebook's stream, for example
    return stream
  with contextlib.suppress(OSError):
    stream.flush()
  kind = io.TextIOWrapper if stream.encoding.lower().startswith("utf") else _InASCII
  return kind(
    io.BufferedWriter(_Lasting(raw, tells)), stream.encoding,
    stream.errors if stream.errors in _KEPT else _LOOK_ALIKE,
    line_buffering=bool(getattr(stream, "line_buffering", False)) or raw is buffer,  # unbuffered: python -u
  )  # fmt: skip


def _look_alike(error: UnicodeError) -> tuple[str, int]:
  """Encoding error handler that replaces characters by look-alikes in ASCII, or by escapes."""
  if not isinstance(error, UnicodeEncodeError):
    raise error
  return "".join(map(_in_ascii, error.object[error.start : error.end])), error.end


def _in_ascii(sign: str) -> str:
  if sign in _LOOK_ALIKES:
    return _LOOK_ALIKES[sign]
  if "\u2500" <= sign <= "\u257f":  # box-drawing characters of tables
    return next((own for own, lines in _LINES.items() if sign in lines), "+")
  if "\u2580" <= sign <= "\u259f" or "\u2800" <= sign <= "\u28ff":  # blocks and Braille dots
    return "#" if sign < "\u2800" else "*"
  name = unicodedata.name(sign, "").split()
  if name[:1] == ["GREEK"] and name[2:3] == ["LETTER"] and len(name) == 4:
    return name[3].title() if name[1] == "CAPITAL" else name[3].lower()
  plain = unicodedata.normalize("NFKD", sign).encode("ascii", "ignore").decode()
  return plain or sign.encode("ascii", "backslashreplace").decode()
