"""Turns the errors of damaged or unreachable files into `DataError` and `SettingError`."""

import contextlib
import csv
import lzma
import os
import pickle
import struct
import tarfile
import tokenize
import wave
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from fedjax_het.errors.kinds import DataError, SettingError

DAMAGE = (
  ArithmeticError, AssertionError, AttributeError, BufferError, EOFError, ImportError, LookupError,
  MemoryError, OSError, RuntimeError, SyntaxError, TypeError, ValueError, csv.Error, lzma.LZMAError,
  pickle.PickleError, struct.error, tarfile.TarError, tokenize.TokenError, wave.Error, zipfile.BadZipFile,
  zlib.error,
)  # fmt: skip
"""Exceptions that readers of Python, NumPy and Pillow raise for damaged files.

RuntimeError includes RecursionError (nested too deeply), and zipfile raises it for encrypted archives.
TokenError and SyntaxError come from an array's header, struct.error and TypeError from images, and
ArithmeticError from sounds and from numbers beyond floats.
"""


@contextlib.contextmanager
def reading(where: object, problem: str = "cannot be read, it is truncated or damaged") -> Iterator[None]:
  """Context manager that turns a file reader's exceptions, see `DAMAGE`, into `DataError`.

  Args:
    where: the file, and the place in it.
    problem: description of the problem.

  Raises:
    DataError: the reader failed. A `DataError` or `SettingError` raised inside passes unchanged.
  """
  try:
    yield
  except (DataError, SettingError):
    raise
  except PermissionError as error:
    raise DataError(f"{error.filename or where} may not be read. Ask its owner.") from error
  except FileNotFoundError as error:
    raise DataError(f"{error.filename or where}: no such file.") from error
  except MemoryError as error:
    raise DataError(f"{where} {problem}: it asks for more memory than there is.") from error
  except DAMAGE as error:
    kind = f"{type(error).__name__}: " if isinstance(error, LookupError) else ""  # the message is a name only
    said = kind + " ".join(str(error).split())[:300] or type(error).__name__
    raise DataError(f"{where} {problem}: {said}") from error


def check_here() -> None:
  """Raises `SettingError` if the folder that the program was started in no longer exists."""
  try:
    os.getcwd()
  except OSError as error:
    problem = f"cannot be found ({error.strerror or error}): it was removed or renamed"
    raise SettingError("working folder", os.curdir, problem, "Change to one that is there.") from error


def folder_of(setting: str, path: str | os.PathLike[str]) -> Path:
  """Returns a path with "~" expanded; raises `SettingError` for no path, or if the home folder is unknown."""
  if not isinstance(path, str | os.PathLike) or "\0" in os.fspath(path):
    raise SettingError(setting, path, "is no path", "Give a text, such as 'data'.")
  try:
    return Path(path).expanduser()
  except RuntimeError as error:
    raise SettingError(setting, os.fspath(path), "names a home folder that is not known",
                       "Write the path without ~.") from error  # fmt: skip
