"""The launcher: `python -m fedjax_het.run --config=configs/NAME.py --workdir=DIR [--config.key=value ...]`.

Starting it again with the same workdir continues the run, or shows its result where it is complete.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
from absl import app, flags, logging
from ml_collections import config_flags

from fedjax_het.engine.cpu import prepare_cpu
from fedjax_het.errors import DataError, NonFiniteLoss, SettingError
from fedjax_het.experiment import quickstart


@contextlib.contextmanager
def mistakes_in_one_line() -> Iterator[None]:
  """Ends the program with one line, not a traceback, for a mistake in a flag or in what it names."""
  try:
    yield
  except (flags.Error, SettingError, AttributeError, KeyError, ImportError, OSError, SyntaxError) as error:
    text = str(error).replace("\\n", " ").strip()
    print(text.splitlines()[-1] if "Traceback" in text else " ".join(text.split()), file=sys.stderr)
    sys.exit(1)


def define_flags() -> None:
  """Defines the launcher's flags; ml_collections reads the command line's overrides already here."""
  config_flags.DEFINE_config_file(
    "config",
    quickstart.__file__,
    "What to run; see configs/. The default is the quickstart.",
    lock_config=False,
    accept_new_attributes=True,  # settings that a file leaves at their defaults; `check_config` knows all
  )
  flags.DEFINE_string("workdir", "runs/quickstart", "Where the run keeps its files.")
  flags.DEFINE_bool("dry_run", False, "Print what the run would take (memory, bytes, steps), and end.")
  flags.DEFINE_float(
    "checkpoint_seconds", 600.0, "A checkpoint at the latest after so long; also at every evaluation."
  )
  flags.DEFINE_string(
    "compile_cache",
    os.environ.get("JAX_COMPILATION_CACHE_DIR", str(Path.home() / ".cache" / "fedjax_het")),
    "Folder of JAX's persistent compilation cache; empty for none.",
  )


def parse_flags(argv: list[str]) -> list[str]:
  """absl's parsing of the command line."""
  with mistakes_in_one_line():
    return flags.FLAGS(argv)


def prepare_jax(cache: str) -> None:
  """The CPU's devices, and the persistent compilation cache; before the first use of a device."""
  prepare_cpu()
  if cache:
    jax.config.update("jax_compilation_cache_dir", cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def main(argv: list[str]) -> int:
  """Runs what the flags say; 0, or 1 after printing what the user can mend."""
  if len(argv) > 1:
    print(f"Unexpected argument {argv[1]!r}: settings are given as --config.key=value.", file=sys.stderr)
    return 1
  logging.set_verbosity(min(logging.get_verbosity(), logging.WARNING))
  prepare_jax(flags.FLAGS.compile_cache)
  from fedjax_het.experiment.dry_run import dry_run
  from fedjax_het.experiment.experiment import run_experiment
  from fedjax_het.experiment.stopping import Stopped

  try:
    if flags.FLAGS.dry_run:
      dry_run(flags.FLAGS.config)
      return 0
    run_experiment(flags.FLAGS.config, flags.FLAGS.workdir, flags.FLAGS.checkpoint_seconds)
  except Stopped as stopped:
    print(stopped, file=sys.stderr)
    return 128 + signal.SIGTERM
  except (SettingError, DataError, NonFiniteLoss) as error:
    print(f"{type(error).__name__}: {error}", file=sys.stderr)
    return 1
  return 0


if __name__ == "__main__":
  with mistakes_in_one_line():
    define_flags()
  app.run(main, flags_parser=parse_flags)
