"""The launcher: `python -m fedjax_het.run --config=configs/NAME.py --workdir=DIR [--config.key=value ...]`.

Starting it again with the same workdir continues the run, or shows its result where it is complete.
"""

import os
import sys
from pathlib import Path

import jax
from absl import app, flags, logging
from ml_collections import config_flags

from fedjax_het.errors import DataError, NonFiniteLoss, SettingError
from fedjax_het.experiment import quickstart

_CONFIG = config_flags.DEFINE_config_file(
  "config", quickstart.__file__, "What to run; see configs/. The default is the quickstart."
)
_WORKDIR = flags.DEFINE_string("workdir", "runs/quickstart", "Where the run keeps its files.")
_CACHE = flags.DEFINE_string(
  "compile_cache",
  os.environ.get("JAX_COMPILATION_CACHE_DIR", str(Path.home() / ".cache" / "fedjax_het")),
  "Folder of JAX's persistent compilation cache; empty for none.",
)


def prepare_jax(cache: str) -> None:
  """One CPU device a core, and the persistent compilation cache; before the first use of a device."""
  if "XLA_FLAGS" not in os.environ and not jax.config.jax_num_cpu_devices > 1:
    jax.config.update("jax_num_cpu_devices", len(os.sched_getaffinity(0)))
  if cache:
    jax.config.update("jax_compilation_cache_dir", cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def main(argv: list[str]) -> int:
  """Runs what the flags say; 0, or 1 after printing what the user can mend."""
  if len(argv) > 1:
    print(f"Unexpected argument {argv[1]!r}: settings are given as --config.key=value.", file=sys.stderr)
    return 1
  logging.set_verbosity(logging.WARNING if logging.get_verbosity() == logging.INFO else logging.get_verbosity())
  prepare_jax(_CACHE.value)
  from fedjax_het.experiment.experiment import run_experiment

  try:
    run_experiment(_CONFIG.value, _WORKDIR.value)
  except (SettingError, DataError, NonFiniteLoss) as error:
    print(f"{type(error).__name__}: {error}", file=sys.stderr)
    return 1
  return 0


if __name__ == "__main__":
  app.run(main)
