"""The memory that this process can have, and a check that arrays fit in it."""

import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from fedjax_het.errors.kinds import SettingError

try:
  import resource
except ImportError:  # Windows
  resource = None  # type: ignore[assignment]


def memory_there() -> int:
  """Returns the bytes of memory that this process can have at most.

  This is the minimum of the machine's memory with swap, the limits of the process's control groups, and its
  own limit (ulimit -v).
  """
  found = [2**50]
  with contextlib.suppress(AttributeError, OSError, ValueError):  # on systems other than POSIX
    found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
  with contextlib.suppress(OSError, ValueError):
    if swap := re.search(r"SwapTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text()):
      found[-1] += 1024 * int(swap[1])
  groups = ""
  with contextlib.suppress(OSError):
    groups = Path("/proc/self/cgroup").read_text()
  for controllers, group in re.findall(r"^\d+:(|(?:.*,)?memory(?:,.*)?):/(.*)$", groups, re.MULTILINE):
    root = Path("/sys/fs/cgroup", "memory" if controllers else "")
    for folder in (root / group, *(root / group).parents):
      with contextlib.suppress(OSError, ValueError):  # "max"
        found.append(int((folder / ("memory.limit_in_bytes" if controllers else "memory.max")).read_text()))
  if resource is not None and (soft := resource.getrlimit(resource.RLIMIT_AS)[0]) != resource.RLIM_INFINITY:
    found.append(soft)
  return min(found)


def check_memory(setting: str, value: int, wanted: int, what: str) -> None:
  """Raises `SettingError` if arrays would not fit into this process's memory.

  Args:
    setting: name of the setting that determines the arrays' size.
    value: its value.
    wanted: the arrays' bytes.
    what: description of the arrays.
  """
  if wanted > (there := memory_there()):
    problem = f"{what} would take {in_bytes(wanted)}, and this machine has {in_bytes(there)} of memory"
    raise SettingError(setting, value, problem, "Choose a smaller one.")


def in_bytes(count: int) -> str:
  """Returns a number of bytes with a unit, such as "13.1 GB"."""
  said = in_thousands(min(count, 1000**6), ("bytes", "kB", "MB", "GB", "TB", "PB", "EB"))
  return "more than 1000 PB" if said.endswith("EB") else said


def in_thousands(value: float, units: Sequence[str]) -> str:
  """Returns a number >= 0 by three digits, in the largest unit of which there is at least one.

  Args:
    value: the number, in the first unit.
    units: units of which each is a thousand of the one before.
  """
  rounded = float(f"{value:.3g}")  # 999.6 MB are 1 GB
  power = max((power for power in range(len(units)) if rounded >= 1000**power), default=0)
  return f"{rounded / 1000**power:.3g} {units[power]}"
