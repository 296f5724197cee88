"""Detects that memory or a disk does not suffice, and raises `NoRoom` with what helps."""

import contextlib
import errno
import os
import re
import shutil
import sys
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
  """Returns whether an error, or its cause, means a full "disk" or full "memory"; "" for any other error."""
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
  """Context manager that turns the errors of a full disk or full memory into `NoRoom`.

  Args:
    folder: where files are written, to report its disk; None takes the file that the error names.
    what: description of what is written there.
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
  """Describes which disk is full, what should be written, and how much is free."""
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
  """Yields an error, then the chain of causes."""
  while error is not None:
    yield error
    error = error.__cause__ or error.__context__


def existing(path: Path) -> Path:
  """Returns the path, or its nearest parent that exists."""
  path = path.absolute()
  return next(own for own in (path, *path.parents) if own.exists())


def largest_file() -> int | None:
  """Returns the largest file size in bytes that this process may write; None without a limit."""
  if resource is None or (soft := resource.getrlimit(resource.RLIMIT_FSIZE)[0]) == resource.RLIM_INFINITY:
    return None
  return soft


def peak_memory() -> int | None:
  """Returns the largest resident set of this process so far, in bytes; None where it is unknown."""
  if resource is None:
    return None
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def memory_of_devices() -> int:
  """Returns the bytes of memory of this process's devices; for CPUs the machine's; 2^63 - 1 if unknown."""
  devices = jax.local_devices()
  if devices[0].platform == "cpu":
    return memory_there()
  known = [(device.memory_stats() or {}).get("bytes_limit") for device in devices]
  return sum(known) if all(known) else 2**63 - 1  # type: ignore[arg-type]


def check_fits(what: str, needed: int, there: int) -> None:
  """Raises `NoRoom` if `needed` bytes exceed the bytes that are `there`."""
  if needed > there:
    raise NoRoom(
      f"Memory does not suffice: {what} need {in_bytes(needed)}, and there are {in_bytes(there)}. {HELP}"
    )


def check_results(what: str, shapes: Any) -> None:
  """Raises `NoRoom` if arrays of these shapes, spread over all devices, certainly do not fit.

  Copies on several devices and a program's temporary memory are not counted.
  """
  check_fits(what, size(shapes) // jax.process_count(), memory_of_devices())


def check_program(what: str, compiled: Any) -> None:
  """Checks that a compiled program fits into the machine's memory on all of this process's CPU devices.

  It raises `NoRoom` if arguments and results do not fit, and warns if only the temporary memory does not: an
  operating system kills a process without a message when memory is full. Accelerators raise their own errors,
  so nothing is checked for them.
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
  """Returns the bytes of a tree of arrays or of `jax.ShapeDtypeStruct`."""
  return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))
