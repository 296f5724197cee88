"""Makes XLA use a CPU well."""

import os
import re
from typing import Any

import jax

from fedjax_het.errors import SettingError, check_whole

# A level below LLVM's highest: steps as fast, compiling 0.85 to 0.98 of the time (docs/results/starts.md).
OPTIONS: dict[str, Any] = {"xla_backend_optimization_level": 2}

MOST_A_CORE = 64  # CPU devices; with thousands a core the first sum over all of them waits for ever


def prepare_cpu(devices: int | None = None) -> None:
  """Makes every core a device, so that it trains its own clients.

  Call it before the first use of a device. The launcher does, and a program that uses the library on a CPU
  should. What the environment's XLA_FLAGS or JAX's configuration already say is kept.

  Args:
    devices: number of CPU devices; by default the number of cores that this process may use.

  Raises:
    SettingError: a device was used before, `devices` is no number from 1 on, or there would be more than
      `MOST_A_CORE` devices a core.
  """
  if devices is not None:
    check_whole("devices", devices, 1)
  flags = re.findall(r"xla_force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
  already = jax.config.jax_num_cpu_devices  # type: ignore[attr-defined]
  chosen = flags or already >= 1
  check_cores(devices or (already if already >= 1 else int(flags[-1]) if flags else 1))
  if devices is not None or not chosen:
    try:
      jax.config.update("jax_num_cpu_devices", devices or usable_cores())
    except RuntimeError as error:
      remedy = "Start anew and call prepare_cpu() first."
      raise SettingError("prepare_cpu", devices, "JAX has used a device already", remedy) from error


def check_cores(devices: int) -> None:
  """Raises `SettingError` for more CPU devices in this process than its cores can ever serve."""
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
  """The number of cores that this process may use."""
  return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def compiler_options() -> dict[str, Any] | None:
  """How to compile on a CPU; None elsewhere, and where XLA_FLAGS are set, which these would replace."""
  chosen = os.environ.get("XLA_FLAGS") or jax.default_backend() != "cpu"
  return None if chosen or not OPTIONS else OPTIONS
