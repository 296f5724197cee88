"""Makes XLA use a CPU well."""

import os
from typing import Any

import jax

from fedjax_het.errors import SettingError

# A level below LLVM's highest: steps as fast, compiling 0.85 to 0.98 of the time (docs/results/starts.md).
OPTIONS: dict[str, Any] = {"xla_backend_optimization_level": 2}


def prepare_cpu(devices: int | None = None) -> None:
  """Makes every core a device, so that it trains its own clients.

  Call it before the first use of a device. The launcher does, and a program that uses the library on a CPU
  should. What the environment's XLA_FLAGS or JAX's configuration already say is kept.

  Args:
    devices: number of CPU devices; by default the number of cores that this process may use.

  Raises:
    SettingError: a device was used before.
  """
  flags = os.environ.get("XLA_FLAGS", "")
  chosen = "xla_force_host_platform_device_count" in flags
  chosen |= jax.config.jax_num_cpu_devices >= 1  # type: ignore[attr-defined]
  if devices is not None or not chosen:
    try:
      jax.config.update("jax_num_cpu_devices", devices or usable_cores())
    except RuntimeError as error:
      remedy = "Start anew and call prepare_cpu() first."
      raise SettingError("prepare_cpu", devices, "JAX has used a device already", remedy) from error


def usable_cores() -> int:
  """The number of cores that this process may use."""
  return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def compiler_options() -> dict[str, Any] | None:
  """How to compile on a CPU; None elsewhere, and where XLA_FLAGS are set, which these would replace."""
  chosen = os.environ.get("XLA_FLAGS") or jax.default_backend() != "cpu"
  return None if chosen or not OPTIONS else OPTIONS
