"""Claims: exclusive access of one program to a folder and all folders below it.

A claim is an exclusive lock on FOLDER/.claim, which the system releases when the process ends or dies. It is
refused if another program has claimed the same folder, one above it or one below it. A run calls
`check_claim` before each write, so that it writes nothing into a folder that was removed, moved or taken over
meanwhile. On a file system without locks the latest program takes the claim, and the earlier one ends at its
next write.
"""

import contextlib
import errno
import json
import os
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from fedjax_het.engine.processes import agreed
from fedjax_het.errors import SettingError

try:
  import fcntl
except ImportError:  # Windows
  fcntl = None  # type: ignore[assignment]

CLAIM = ".claim"
OWN = ("checkpoints", "figures", "samples", "tensorboard")  # subfolders without other runs


class Claimed(SettingError):
  """Another process has claimed this run's folder, or one above or below it."""


class Lost(SettingError):
  """A claimed folder, or a run's file in it, was removed or replaced during the run."""


_held: dict[Path, IO[str]] = {}  # folder -> open and locked .claim file, for all claims of this process


@contextlib.contextmanager
def claimed(folder: str | os.PathLike[str], writes: bool = True) -> Iterator[None]:
  """Context manager that claims a folder and all below it for this program; makes the folder if missing.

  Several processes of one run call it at the same point, and the one that writes files takes the claim.

  Raises:
    Claimed: another program has claimed this folder, one above it or one below it; raised in every process.
  """
  folder = Path(os.path.abspath(folder))
  with writable(folder):
    holder = _take(folder) if writes else None
  if agreed(holder is not None)[0]:
    problem = f"another process is at this run{holder or ''}"
    raise Claimed("workdir", str(folder), problem, "Wait for it, or use another workdir.")
  try:
    yield
  finally:
    if writes:
      file = _held[folder]
      for own in [own for own, other in _held.items() if other is file]:
        del _held[own]
      file.close()


def check_claim(path: str | os.PathLike[str]) -> None:
  """Raises if the folder around `path` that this process claimed is no longer the claimed one.

  Paths outside all claims of this process are not checked, because several processes write the files of a
  table.

  Raises:
    Lost: the folder was removed, or another one is in its place.
    Claimed: another program has taken the claim over, on a file system without locks.
  """
  path = Path(os.path.abspath(path))
  folder = next((own for own in (path, *path.parents) if own in _held), None)
  if folder is None or _is_there(folder / CLAIM, _held[folder]):
    return
  if _lock_of_another(folder) is not False:
    problem = f"another process has taken this run over{_holder(folder)}, and this one writes nothing more"
    raise Claimed("workdir", str(folder), problem, "Wait for it, or use another workdir.")
  problem = "it or its .claim was removed or replaced under the run, which writes nothing more there"
  raise Lost("workdir", str(folder), problem, "Start the command again, and leave the folder until it ends.")


def check_claim_together(folder: str | os.PathLike[str]) -> None:
  """`check_claim` for several processes at one point: the writing process checks, and all raise.

  Raises:
    Lost, Claimed: see `check_claim`.
  """
  lost: SettingError | None = None
  try:
    check_claim(folder)
  except (Lost, Claimed) as error:
    lost = error
  if agreed(lost is not None)[0]:
    raise lost or Lost("workdir", str(folder), "the process that writes has lost it", "Start it again.")


@contextlib.contextmanager
def writable(workdir: str | os.PathLike[str]) -> Iterator[None]:
  """Context manager that turns file-system errors into a `SettingError` that the folder cannot be written."""
  try:
    yield
  except OSError as error:
    where = f" at {error.filename}" if error.filename and str(error.filename) != str(workdir) else ""
    problem = f"cannot be written ({error.strerror or error}{where})"
    raise SettingError("workdir", str(workdir), problem, "Name a folder that you may write to.") from error


def lock(file: IO[Any], shared: bool = False) -> bool | None:
  """Tries to lock a file; returns whether this process has the lock, or None on systems without locks."""
  if fcntl is None:
    return None
  try:
    fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
  except OSError as error:
    return False if error.errno in (errno.EWOULDBLOCK, errno.EACCES) else None
  return True


def _take(folder: Path) -> str | None:
  """Claims a folder: returns None on success, else a description of the holder."""
  if other := _around_or_below(folder):
    return other
  folder.mkdir(parents=True, exist_ok=True)
  file = (folder / CLAIM).open("a+", encoding="utf-8")  # keeps its text until it is locked
  locked = lock(file)
  if locked is None and fcntl is not None:  # the holder notices the file
    file.close()
    partial = folder / f"{CLAIM}.{secrets.token_hex(8)}"
    file = partial.open("x+", encoding="utf-8")
    partial.replace(folder / CLAIM)
  elif locked is False or not _is_there(folder / CLAIM, file):  # or just removed by another program
    file.close()
    return _holder(folder)
  if other := _around_or_below(folder):  # again: one of two simultaneous claims sees the other
    file.close()
    return other
  try:
    file.truncate(0)
    file.write(json.dumps({"process": os.getpid(), "host": socket.gethostname()}))
    file.flush()
  except OSError:  # such as a full disk, which would also stop the description
    with contextlib.suppress(OSError):
      file.close()
    raise
  _held.update(dict.fromkeys(_spellings(folder), file))
  return None


def _spellings(folder: Path) -> set[Path]:
  """Returns a folder's path as given, and with links resolved."""
  return {folder, Path(os.path.realpath(folder))}


def _above(folder: Path) -> Iterator[Path]:
  """Yields the folders that contain a folder, by its path as given and with links resolved."""
  yield from {above for own in _spellings(folder) for above in own.parents}


def _below(folder: Path) -> Iterator[Path]:
  """Yields the folders below a folder, except those in which a run keeps its own files."""
  for path, names, _ in os.walk(folder):
    names[:] = [name for name in names if name not in OWN]
    yield from (Path(path, name) for name in names)


def _around_or_below(folder: Path) -> str:
  """Describes a claim of any program around a folder or below it; "" if there is none."""

  for where, folders in (("around", _above(folder)), ("below", _below(folder))):
    if other := next(filter(_lock_of_another, folders), None):
      return f", or at one {where} it, in {other}{_holder(other)}"
  return ""


def _lock_of_another(folder: Path) -> bool | None:
  """Returns whether a folder is claimed, also by another handle of this program; None without locks."""
  try:
    with (folder / CLAIM).open("rb") as file:
      locked = lock(file, shared=True)
  except OSError:  # no claim, or one that this user cannot read
    return False
  return None if locked is None else not locked


def _holder(folder: Path) -> str:
  """Returns the description of the holder in a folder's .claim: " (process 12 on host a)", or ""."""
  try:
    found = json.loads((folder / CLAIM).read_text(encoding="utf-8"))
    return f" (process {found['process']} on {found['host']})"
  except (OSError, ValueError, LookupError, TypeError):
    return ""


def _is_there(path: Path, file: IO[Any]) -> bool:
  """Returns whether an open file is still the one at a path."""
  try:
    return os.path.samestat(path.stat(), os.fstat(file.fileno()))
  except OSError as error:
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE):
      return False
    raise
