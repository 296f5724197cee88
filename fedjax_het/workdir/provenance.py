"""Provenance of a run's figures: the code, the date, the machine, and JAX's options."""

import datetime
import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from fedjax_het.data.files import Source
from fedjax_het.engine.cpu import compiler_options, xla_flags
from fedjax_het.errors import DataError, SettingError
from fedjax_het.workdir.folder import Workdir, lines_of, read_starts

TREE = Path(__file__).parents[2]  # the root of a checkout, or of the installation
# JAX's options that determine random draws, and those that affect rounding.
DRAWS = ("jax_default_prng_impl", "jax_random_seed_offset", "jax_threefry_partitionable")
ROUNDING = (
  "jax_default_matmul_precision", "jax_disable_jit", "jax_disable_most_optimizations",
  "jax_exec_time_optimization_effort", "jax_numpy_dtype_promotion", "jax_optimization_level",
)  # fmt: skip
ENVIRONMENT = ("LIBTPU_INIT_ARGS", "NVIDIA_TF32_OVERRIDE")  # likewise
NO_NUMBERS = (
  "xla_dump",
  "xla_force_host_platform_device_count",
  "xla_cpu_collective_call",
)  # change no number


def machine() -> str:
  """Describes the processor: its name, its family and model if known, and its cores."""
  file = Path("/proc/cpuinfo")
  lines = file.read_text().splitlines() if file.exists() else []
  pairs = [[part.strip() for part in line.partition(":")[::2]] for line in reversed(lines)]
  told = dict(pair for pair in pairs if pair[0])
  name = told.get("model name", platform.machine())
  if {"cpu family", "model"} <= told.keys():
    name += f" (family {told['cpu family']}, model {told['model']})"
  cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
  return f"{name}, {cores} core{'s' * (cores != 1)}"


def commit(tree: str | os.PathLike[str] = TREE) -> str | None:
  """Returns the abbreviated commit of a tree, or None if git does not know it."""
  try:
    found = subprocess.run(
      ["git", "-C", os.fspath(tree), "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    )
  except OSError:  # git is not installed
    return None
  return found.stdout.strip() or None


def version() -> str | None:
  """Returns the installed package's version, or None if it is not installed."""
  try:
    return metadata.version("fedjax_het")
  except metadata.PackageNotFoundError:
    return None


def provenance() -> dict[str, str | int | None]:
  """Returns the provenance of a figure: version, commit, date, processor, devices, JAX's version."""
  return {
    "version": version(),
    "commit": commit() if (TREE / ".git").exists() else None,
    "date": str(datetime.date.today()),
    "machine": machine(),
    "devices": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
    "jax": jax.__version__,
  }


def numerics(groups: Mapping[str, int | None]) -> dict[str, dict[str, Any]]:
  """Returns what affects a run's numbers besides code, configuration and data.

  Args:
    groups: see `Runs`.

  Returns:
    "draws": the options of JAX that determine the random numbers of a seed. "bits": everything that affects
    rounding.
  """

  def option(name: str) -> Any:
    value = getattr(jax.config, name, jax.config.values.get(name))  # attributes reflect contexts
    return getattr(value, "value", value)  # an enumeration's value

  platform = jax.default_backend()
  processor = machine().rpartition(",")[0] if platform == "cpu" else jax.devices()[0].device_kind
  flags = {name: value for name, value in xla_flags().items() if not name.startswith(NO_NUMBERS)}
  return {
    "draws": {name: option(name) for name in DRAWS},
    "bits": {
      **{name: option(name) for name in ROUNDING},
      "xla_flags": sorted(f"--{name}={value}" for name, value in flags.items()),
      "compiler_options": sorted(f"{name}={value}" for name, value in (compiler_options() or {}).items()),
      "environment": [f"{name}={os.environ[name]}" for name in ENVIRONMENT if name in os.environ],
      "platform": platform,
      "processor": processor,
      "jax": jax.__version__,
      "jaxlib": metadata.version("jaxlib"),
      **groups,
    },
  }


def check_start(run: Workdir, digests: Mapping[str, str], now: Mapping[str, Mapping[str, Any]]) -> list[str]:
  """Refuses to continue a run with other draws or data, and reports what may change its last bits.

  Args:
    run: its workdir, whose starts.jsonl has a line for each start. Fields that a line lacks are not compared.
    digests: hashes of the data, see docs/reading.md.
    now: `numerics` of this start.

  Returns:
    A sentence for each change since the previous start that affects rounding.

  Raises:
    DataError: the run began with other data, or with another division of them among the clients.
    SettingError: the run began with another value of a JAX option that determines random draws.
  """
  starts = read_starts(run.root)
  for name, what, remedy in (
    ("data_digest", "other data", "Give it the same files"),
    ("clients_digest", "the same data, divided otherwise", "Use the code that began it"),
    ("prepared_digest", "other things made of the same data", "Use the code that began it"),
  ):
    first = next((start for start in starts if start["data"].get(name) is not None), None)
    if first is not None and (began := first["data"][name]) != digests.get(name):
      by = f"version {first.get('version')}, commit {first.get('commit')}, {first.get('date')}"
      text = f"{run.root} began with {what} ({name} {began}; now {digests.get(name)}; {by})"
      raise DataError(f"{text}. {remedy}, or start in another workdir.")
  for name, value in now["draws"].items():
    if (before := _last(starts, "draws", name, value)) != value:
      raise SettingError(
        name, value, f"{run.root} began with {before}, and would go on with other random draws",
        f"Set {name.upper()}={before} in the environment, or start in another workdir.",
      )  # fmt: skip
  damaged = sum(map(bool, lines_of(run.starts_path))) - len(starts)
  said = f"{damaged} of the lines of {run.starts_path} cannot be read; what they said of data and options is "
  return [said + "not compared."] * bool(damaged) + [
    f"This run goes on with {name} = {value!r} and had {before!r} before: from here on its numbers may be "
    "rounded otherwise than in one go."
    for name, value in now["bits"].items()
    if (before := _last(starts, "bits", name, value)) != value
  ]


def _last(starts: Sequence[Mapping[str, Any]], kind: str, name: str, unknown: Any) -> Any:
  """Returns the value that the latest start recorded, among those that recorded any, else `unknown`."""
  noted = (found for start in reversed(starts) if isinstance(found := start.get(kind), Mapping))
  return next((found[name] for found in noted if name in found), unknown)


def note_start(
  run: Workdir,
  source: Source,
  notes: Sequence[str],
  digests: Mapping[str, str],
  now: Mapping[str, Mapping[str, Any]],
) -> None:
  """Appends a line to a run's starts.jsonl: code, machine, `numerics` and data set."""
  found = {
    "examples": len(source.y), "test_examples": len(source.y_test), "notes": notes, **digests,
  }  # fmt: skip
  earlier = run.starts_path.read_bytes() if run.starts_path.exists() else b""
  cut_short = bool(earlier) and not earlier.endswith(b"\n")
  with run.starts_path.open("a", encoding="utf-8") as file:
    file.write("\n" * cut_short + json.dumps({**provenance(), **now, "data": found}) + "\n")
