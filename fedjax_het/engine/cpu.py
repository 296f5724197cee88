"""Sets up JAX's CPU devices and XLA's options for CPUs."""

import os
import shlex
from pathlib import Path
from typing import Any

import jax
import jaxlib.version

from fedjax_het.errors import SettingError, check_whole

# LLVM's second highest level: equally fast steps, 0.85 to 0.98 of the compile time (docs/results/starts.md).
OPTIONS: dict[str, Any] = {"xla_backend_optimization_level": 2}

# XLA ends a process one of whose CPU devices waits for another for longer than a minute, as happens where
# clients differ much, or on a machine that has other work. It also ends a process for an option that it does
# not know, so that these are given only to versions that were tried.
WAITING = {
  "xla_cpu_collective_call_warn_stuck_timeout_seconds": 600,
  "xla_cpu_collective_call_terminate_timeout_seconds": 86_400,
}
TRIED = (0, 13)  # jaxlib below this version knows them

MOST_A_CORE = 64  # CPU devices; with thousands per core the first collective never ends


def prepare_cpu(devices: int | None = None) -> None:
  """Makes every CPU core a JAX device, so that every core trains other clients.

  Call it before the first use of a device. The launcher does so, and a program that uses the library on a CPU
  should. A number of devices in XLA_FLAGS or in JAX's configuration is kept. The devices may then wait for
  each other for a day: XLA_FLAGS is given `WAITING`, except for what it sets.

  Args:
    devices: number of CPU devices; by default the number of cores that this process may use.

  Raises:
    SettingError: a device was used before, `devices` is not an integer >= 1, or there would be more than
      `MOST_A_CORE` devices per core.
  """
  if devices is not None:
    check_whole("devices", devices, 1)
  asked = xla_flags().get("xla_force_host_platform_device_count", "")
  already = jax.config.jax_num_cpu_devices  # type: ignore[attr-defined]
  chosen = asked.isdecimal() or already >= 1
  check_cores(devices or (already if already >= 1 else int(asked) if asked.isdecimal() else 1))
  if devices is not None or not chosen:
    try:
      jax.config.update("jax_num_cpu_devices", devices or usable_cores())
    except RuntimeError as error:
      remedy = "Start anew and call prepare_cpu() first."
      raise SettingError("prepare_cpu", devices, "JAX has used a device already", remedy) from error
  wait_long()


def wait_long() -> None:
  """Adds the options `WAITING` to XLA_FLAGS; one that XLA_FLAGS or a file that it names sets is kept."""
  text = os.environ.get("XLA_FLAGS", "").strip()
  if jaxlib.version.__version_info__ >= TRIED or (text and not text.startswith("-")):
    return
  words = [f"--{name}={value}" for name, value in WAITING.items() if name not in xla_flags()]
  os.environ["XLA_FLAGS"] = " ".join(filter(None, [text, *words]))


def check_cores(devices: int) -> None:
  """Raises `SettingError` for more CPU devices in this process than its cores can serve."""
  cores = usable_cores()
  if devices > MOST_A_CORE * cores:
    raise SettingError(
      "mesh", f"clients:{devices}",
      f"too many devices for this process's {cores} core{'s' * (cores > 1)}, of which each serves at most "
      f"{MOST_A_CORE} CPU devices",
      f"Use --mesh=clients:{cores}, a device a core, or at most clients:{MOST_A_CORE * cores}; devices "
      "change no figure. More clients at once on a device: --client_batch.",
    )  # fmt: skip


def usable_cores() -> int:
  """Returns the number of cores that this process may use."""
  return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def xla_flags() -> dict[str, str]:
  """Returns the XLA options that the environment sets, by name without dashes.

  XLA_FLAGS holds options, or the name of a file with options. An option without a value is "true".
  """
  text = os.environ.get("XLA_FLAGS", "").strip()
  if text and not text.startswith("-"):
    file = Path(text)
    text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
  try:
    words = shlex.split(text)
  except ValueError:  # an unfinished quotation, of which XLA reads what it can
    words = text.split()
  pairs = (word.lstrip("-").partition("=") for word in words if word.startswith("-"))
  return {name: value if given else "true" for name, given, value in pairs}


def compiler_options() -> dict[str, Any] | None:
  """Returns the XLA options of the engine's programs on a CPU; None on other platforms.

  Options of a program take precedence over XLA_FLAGS. An option that XLA_FLAGS sets, or that
  `jax_disable_most_optimizations` decides, is therefore left out, and stays as the user set it.
  """
  if jax.default_backend() != "cpu" or jax.config.values["jax_disable_most_optimizations"]:
    return None
  chosen = xla_flags()
  return {name: value for name, value in OPTIONS.items() if name not in chosen} or None
