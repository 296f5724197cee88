"""Where a figure comes from: the commit, the day, the machine."""

import datetime
import os
import platform
import subprocess
from pathlib import Path

import jax

ROOT = Path(__file__).resolve().parent.parent


def machine() -> str:
  """The processor's name and its cores, as the machine says."""
  file = Path("/proc/cpuinfo")
  lines = file.read_text().splitlines() if file.exists() else []
  names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
  return f"{names[0] if names else platform.machine()}, {len(os.sched_getaffinity(0))} cores"


def commit(tree: str | Path = ROOT) -> str:
  """The commit of a tree, by its first digits."""
  command = ["git", "-C", os.fspath(tree), "rev-parse", "--short", "HEAD"]
  return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def provenance() -> dict[str, str]:
  """What stands beside a figure."""
  return {
    "commit": commit(), "date": str(datetime.date.today()), "machine": machine(), "jax": jax.__version__
  }  # fmt: skip
