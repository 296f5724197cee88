"""Where a figure comes from: the code, the day, the machine."""

import datetime
import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

import jax

from fedjax_het.data.files import Source
from fedjax_het.errors import DataError
from fedjax_het.experiment.workdir import Workdir, read_starts

TREE = Path(__file__).parents[2]  # a checkout's, or what the package is installed in


def machine() -> str:
  """The processor's name, its family and model where they are told, and its cores."""
  file = Path("/proc/cpuinfo")
  lines = file.read_text().splitlines() if file.exists() else []
  pairs = [[part.strip() for part in line.partition(":")[::2]] for line in reversed(lines)]
  told = dict(pair for pair in pairs if pair[0])
  name = told.get("model name", platform.machine())
  if {"cpu family", "model"} <= told.keys():
    name += f" (family {told['cpu family']}, model {told['model']})"
  cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
  return f"{name}, {cores} cores"


def commit(tree: str | os.PathLike[str] = TREE) -> str | None:
  """The commit of a tree, by its first digits; None for one that git does not know."""
  try:
    found = subprocess.run(
      ["git", "-C", os.fspath(tree), "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    )
  except OSError:  # no git here
    return None
  return found.stdout.strip() or None


def version() -> str | None:
  """The installed package's version; None where it is not installed."""
  try:
    return metadata.version("fedjax_het")
  except metadata.PackageNotFoundError:
    return None


def provenance() -> dict[str, str | int | None]:
  """What stands beside a figure: version and commit of the code, day, processor, devices, JAX's version."""
  return {
    "version": version(),
    "commit": commit() if (TREE / ".git").exists() else None,
    "date": str(datetime.date.today()),
    "machine": machine(),
    "devices": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
    "jax": jax.__version__,
  }


def check_start(run: Workdir, digests: Mapping[str, str]) -> None:
  """Raises `DataError` for a run that began with other data, or with the same among its clients otherwise."""
  starts = read_starts(run.root)
  for name, what, remedy in (
    ("data_digest", "other data", "Give it the same files"),
    ("clients_digest", "the same data, divided otherwise", "Use the code that began it"),
    ("prepared_digest", "other things made of the same label counts", "Use the code that began it"),
  ):
    first = next((start for start in starts if start["data"].get(name) is not None), None)
    if first is not None and (began := first["data"][name]) != digests.get(name):
      by = f"version {first.get('version')}, commit {first.get('commit')}, {first.get('date')}"
      text = f"{run.root} began with {what} ({name} {began}; now {digests.get(name)}; {by})"
      raise DataError(f"{text}. {remedy}, or start in another workdir.")


def note_start(run: Workdir, source: Source, notes: Sequence[str], digests: Mapping[str, str]) -> None:
  """Adds a line to a run's starts.jsonl: what continues it now, and what its data set was found to be."""
  found = {
    "examples": len(source.y), "test_examples": len(source.y_test), "notes": notes, **digests,
  }  # fmt: skip
  earlier = run.starts_path.read_bytes() if run.starts_path.exists() else b""
  cut_short = bool(earlier) and not earlier.endswith(b"\n")
  with run.starts_path.open("a", encoding="utf-8") as file:
    file.write("\n" * cut_short + json.dumps({**provenance(), "data": found}) + "\n")
