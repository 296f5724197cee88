"""Memory and disks that do not suffice: what there is, and the error that says so in words."""

import contextlib
import errno
import os
import re
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from fedjax_het.errors import NoRoom, in_bytes, memory_there

try:
  import resource
except ImportError:  # Windows
  resource = None  # type: ignore[assignment]

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
DISK = re.compile("No space left on device|Disk quota exceeded|File too large")
MEMORY = re.compile("RESOURCE_EXHAUSTED|[Oo]ut of memory|std::bad_alloc|Cannot allocate memory")
DISK_HELP = (
  "What was written before stays: make room, or raise the limit (ulimit -f), and start the same command "
  "again, which goes on from there; or name another workdir."
)
HELP = (
  "--dry_run says what a run would take. Less is taken by fewer clients side by side (client_batch), by "
  "fewer examples (device_rows) or clients' states (device_states, with states_folder on a disk) on the "
  "devices, by more devices (mesh), and by a smaller model, batch or cohort."
)


def full(error: BaseException) -> str:
  """What does not suffice, "disk" or "memory", by an error or by what caused it; "" for any other error."""
  for one in chain(error):
    number = one.errno if isinstance(one, OSError) else None
    if number in FULL or (number is None and DISK.search(str(one))):
      return "disk"
    if isinstance(one, MemoryError) or number == errno.ENOMEM:
      return "memory"
    if isinstance(one, RuntimeError | ValueError) and MEMORY.search(str(one)):
      return "memory"
  return ""


@contextlib.contextmanager
def in_words(folder: str | os.PathLike[str] | None = None, what: str = "what is written") -> Iterator[None]:
  """Turns the errors of a full disk and of full memory, whoever raises them, into `NoRoom`.

  Args:
    folder: where files are written, whose disk is looked at; None for wherever the error says.
    what: is written there, in words.
  """
  try:
    yield
  except NoRoom:
    raise
  except Exception as error:
    if not (kind := full(error)):
      raise
    if kind == "disk":
      raise NoRoom(f"{disk_in_words(error, folder, what)}. {DISK_HELP}") from error
    first = (str(error).splitlines() or [type(error).__name__])[0][:200].rstrip(". ")
    raise NoRoom(
      f"Memory does not suffice ({first}); there are {in_bytes(memory_there())}. {HELP}"
    ) from error


def disk_in_words(error: BaseException, folder: str | os.PathLike[str] | None, what: str) -> str:
  """Which disk is full, what was to be written, and what is free there."""
  place = getattr(error, "filename", None) if folder is None else folder
  there = existing(Path(os.fspath(place))) if isinstance(place, str | os.PathLike) else None
  most = largest_file()
  if most is not None and any("too large" in str(one) for one in chain(error)):
    return f"A file in {there or 'a folder'} would be larger than this process may write, {most:,} bytes"
  if there is None:
    return "A disk is full"
  free = shutil.disk_usage(there).free
  return f"The disk of {there} has no room for {what}: it is full, with {free:,} bytes to spare"


def chain(error: BaseException | None) -> Iterator[BaseException]:
  """An error, what caused it, what caused that, and so on."""
  while error is not None:
    yield error
    error = error.__cause__ or error.__context__


def existing(path: Path) -> Path:
  """The path, or the nearest folder above it that is there."""
  path = path.absolute()
  return next(own for own in (path, *path.parents) if own.exists())


def largest_file() -> int | None:
  """The most bytes that a file of this process may have; None where there is no such limit."""
  if resource is None or (soft := resource.getrlimit(resource.RLIMIT_FSIZE)[0]) == resource.RLIM_INFINITY:
    return None
  return soft


def memory_of_devices() -> int:
  """Bytes that this process's devices have together: the machine's for CPUs; 2^63 - 1 where none says it."""
  devices = jax.local_devices()
  if devices[0].platform == "cpu":
    return memory_there()
  known = [(device.memory_stats() or {}).get("bytes_limit") for device in devices]
  return sum(known) if all(known) else 2**63 - 1  # type: ignore[arg-type]


def check_fits(what: str, needed: int, there: int) -> None:
  """Raises `NoRoom` where something needs more bytes than there are."""
  if needed > there:
    raise NoRoom(
      f"Memory does not suffice: {what} need {in_bytes(needed)}, and there are {in_bytes(there)}. {HELP}"
    )


def check_results(what: str, shapes: Any) -> None:
  """Raises `NoRoom` where arrays of these shapes, spread over all devices, surely do not fit.

  Copies on several devices and all that a program needs beside its results are not counted.
  """
  check_fits(what, size(shapes) // jax.process_count(), memory_of_devices())


def check_program(what: str, compiled: Any) -> None:
  """Looks whether a compiled program has room in a machine's memory, for all of this process's CPU devices.

  Raises `NoRoom` where what it is given and what it returns do not fit, and warns where only what it takes in
  between does not: a machine whose memory is full ends a process without a word. Accelerators say so
  themselves.
  """
  devices = jax.local_devices()
  found = compiled.memory_analysis() if devices[0].platform == "cpu" else None
  if found is None:
    return
  each = found.argument_size_in_bytes + found.output_size_in_bytes - found.alias_size_in_bytes
  there = memory_there()
  check_fits(what, len(devices) * each, there)
  if (needed := len(devices) * (each + found.temp_size_in_bytes)) > there:
    text = f"{what} may need {in_bytes(needed)} of memory, and there are {in_bytes(there)}. {HELP}"
    warnings.warn(text, stacklevel=2)


def size(shapes: Any) -> int:
  """Bytes of a tree of arrays or of their shapes."""
  return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))
