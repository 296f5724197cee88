"""The launcher: `python -m fedjax_het.run --config=configs/NAME.py --workdir=DIR [--config.key=value ...]`.

Starting it again with the same workdir continues the run, or shows its result where it is complete.
`--sweep.FIELD=value,value,...` runs every combination of the fields' values as one program. `--list` prints
what a configuration can name, `--describe` the fields of this one.
"""

import ast
import contextlib
import functools
import math
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
from absl import app, flags, logging
from ml_collections import config_flags

from fedjax_het.engine.cpu import prepare_cpu
from fedjax_het.errors import DataError, NonFiniteLoss, NoRoom, SettingError
from fedjax_het.experiment import quickstart
from fedjax_het.experiment.shipped import shipped
from fedjax_het.experiment.where import Where, parse_mesh


@contextlib.contextmanager
def mistakes_in_one_line() -> Iterator[None]:
  """Ends the program with one line, not a traceback, for a mistake in a flag or in what it names."""
  try:
    yield
  except (flags.Error, AttributeError, KeyError, ImportError, OSError, SyntaxError, ValueError) as error:
    text = str(error)
    if isinstance(error, KeyError):
      text = f"Unknown setting: {error.args[0]}"
      if "Did you mean" not in text:
        text += ". A section that the configuration has not is given whole, as in"
        text += """ --config.label_noise="{'name': 'pair', 'ratio': 0.4}"."""
    text = text.replace("\\n", " ").strip()
    nested = "Traceback" in text or "Attempted" in text  # of a config file: the last line says what is wrong
    text = text.splitlines()[-1].strip() if nested else " ".join(text.split())
    if section := re.match(r"flag --(config\.\w+)=(\S+): Failed to parse .* as a ConfigDict", text):
      text = f"{section[1]} = {section[2]}: is a section of settings. Write --{section[1]}.name={section[2]}."
    if "before a value for --config was specified" in text:
      text += " Put --config=FILE before --config.FIELD=VALUE."
    if text.startswith("Unknown command line flag"):
      text = text.rstrip(".") + ". Settings are given as --config.NAME=VALUE; --help lists the flags."
    if "No such file or directory" in text:
      text += f", seen from {Path.cwd()}. Name a configuration file that is there."
    print(text, file=sys.stderr)
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
  flags.DEFINE_integer("member_batch", None, "Runs of a sweep that a device trains at once; as client_batch.")
  text = "Print what a configuration can name, or with --list=NAME what the settings of that are, and end."
  plain: flags.ArgumentParser[str] = flags.ArgumentParser()
  flags.DEFINE_flag(flags.Flag(plain, None, "list", None, text, boolean=True))  # whose value may be left out
  text = "Print all fields of the configuration, or with --describe=FIELD one or a section, and end."
  flags.DEFINE_flag(flags.Flag(plain, None, "describe", None, text, boolean=True))
  flags.DEFINE_bool("dry_run", False, "Print what the run would take (memory, bytes, steps), and end.")
  define_machine_flags()


def define_machine_flags() -> None:
  """Flags of where something is computed, which do not say what."""
  flags.DEFINE_string(
    "mesh", "", "clients:N spreads the work over N devices; all by default. CPUs are cut to N."
  )
  flags.DEFINE_integer(
    "client_batch",
    None,
    "Clients that a device trains at once; by default 1 on a CPU, else all. "
    "Numbers differ with it by rounding.",
  )
  flags.DEFINE_integer(
    "device_rows",
    None,
    "Examples that a device holds at once, the others staying on the host; by default all.",
  )
  flags.DEFINE_integer(
    "device_states",
    None,
    "Clients' states (such as their own models) that the devices hold at once, all staying on the host; "
    "by default all are on the devices.",
  )
  flags.DEFINE_string(
    "states_folder", None, "A folder on a disk for the states that --device_states keeps on the host."
  )
  flags.DEFINE_bool(
    "distributed", False, "Join the processes of a SLURM, Kubernetes or TPU job, or those of --coordinator."
  )
  flags.DEFINE_string("coordinator", None, "HOST:PORT of the first process, where no cluster says so.")
  flags.DEFINE_integer("processes", None, "Number of processes, where no cluster says so.")
  flags.DEFINE_integer("process", None, "This process's number from 0, where no cluster says so.")
  flags.DEFINE_float(
    "checkpoint_seconds", 600.0, "A checkpoint at the latest after so long; also at every evaluation."
  )
  flags.DEFINE_string(
    "compile_cache",
    os.environ.get("JAX_COMPILATION_CACHE_DIR", str(Path.home() / ".cache" / "fedjax_het")),
    "Folder of JAX's persistent compilation cache; empty for none.",
  )


def show_in_help(*modules: str) -> None:
  """Makes --help of the program that was started list the flags that some modules define."""
  for module in modules:
    for flag in flags.FLAGS.flags_by_module_dict().get(module, ()):
      flags.FLAGS.register_key_flag_for_module(sys.argv[0], flag)


def with_shipped(argv: list[str], flag: str) -> list[str]:
  """The command line with the project's own file behind `flag` where "configs/NAME.py" is not at hand."""

  def one(before: str, argument: str) -> str:
    name, equals, path = argument.partition("=")
    if name.lstrip("-") == flag and equals:
      return f"{name}={shipped(path)}"
    return shipped(argument) if before in (f"-{flag}", f"--{flag}") else argument

  return [one(*pair) for pair in zip(["", *argv], argv)]


def take_sweep(argv: list[str]) -> tuple[list[str], dict[str, list[Any]]]:
  """The command line without its --sweep.FIELD=values, and those as a grid.

  Raises:
    SettingError: a sweep flag without values, or for a field that another has.
  """
  rest: list[str] = []
  grid: dict[str, list[Any]] = {}
  for argument in argv:
    name, _, values = argument.partition("=")
    if not name.lstrip("-").startswith("sweep."):
      rest.append(argument)
      continue
    path = name.lstrip("-").removeprefix("sweep.")
    if path in grid:
      remedy = f"Write --sweep.{path}={','.join([*map(str, grid[path]), values])}."
      raise SettingError(f"sweep.{path}", values, "was given before", remedy)
    grid[path] = []
    for value in values.split(","):
      try:
        grid[path].append(ast.literal_eval(value))
      except (ValueError, SyntaxError) as error:
        remedy = "Sweep numbers, as --sweep.seed=0,1,2; start a run of its own for each name."
        raise SettingError(f"sweep.{path}", values, f"{value!r} is no number", remedy) from error
  return rest, grid


def parse_flags(argv: list[str]) -> list[str]:
  """absl's parsing of the command line."""
  with mistakes_in_one_line():
    rest = flags.FLAGS(argv)
    flags.FLAGS.config.get("rounds")  # a file that could not be read says so only when asked
    return rest


def prepare_jax() -> None:
  """The processes, the CPU's devices, and the persistent cache; before the first use of a device."""
  given, processes = flags.FLAGS, 1
  devices = parse_mesh(given.mesh)
  if given.distributed:
    # JAX would swallow SIGTERM until the run listens to it.
    jax.config.update("jax_enable_preemption_service", False)
    try:
      jax.distributed.initialize(given.coordinator, given.processes, given.process)
    except (ValueError, RuntimeError) as error:
      raise SettingError(
        "distributed", True, f"found no cluster ({error})",
        "Give --coordinator=HOST:PORT --processes=N --process=i, or see launch/.",
      ) from error  # fmt: skip
    processes = processes_told()
    if devices is not None and devices % processes:
      raise SettingError("mesh", given.mesh, f"not the same for {processes} processes", "Use a multiple.")
  elif {given.coordinator, given.processes, given.process} != {None}:
    raise SettingError("coordinator", given.coordinator, "needs --distributed", "Add --distributed.")
  prepare_cpu(devices and devices // processes)
  if given.compile_cache:
    jax.config.update("jax_compilation_cache_dir", str(Path(given.compile_cache).expanduser()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def processes_told() -> int:
  """How many processes there are, by the flag or the cluster; `jax.process_count` would start the devices."""
  from jax._src import distributed

  return flags.FLAGS.processes or distributed.global_state.num_processes or 1


def main(argv: list[str], grid: dict[str, list[Any]]) -> int:
  """Runs what the flags say; 0, or 1 after printing what the user can mend."""
  if len(argv) > 1:
    blank = next((flag for flag in ("list", "describe") if flags.FLAGS[flag].value == "true"), None)
    remedy = f"--{blank}={argv[1]}" if blank else "--config.key=value"
    print(f"Unexpected argument {argv[1]!r}: settings are given as {remedy}.", file=sys.stderr)
    return 1
  logging.set_verbosity(min(logging.get_verbosity(), logging.WARNING))
  leave_out_waiting()
  given = flags.FLAGS
  for asked, show in ((given.list, print_listing), (given.describe, print_description)):
    if asked is not None:
      return told(functools.partial(show, "" if asked == "true" else asked))
  from fedjax_het.experiment.dry_run import dry_run
  from fedjax_het.experiment.experiment import run_experiment
  from fedjax_het.experiment.sweep import check_sweep, run_sweep

  def run() -> None:
    prepare_jax()
    where = where_of_flags()
    if given.member_batch is not None and not grid:
      raise SettingError("member_batch", given.member_batch, "this is no sweep", "Add --sweep.FIELD=a,b,...")
    if given.dry_run:
      if grid:
        check_sweep(given.config, grid)
      dry_run(given.config, where)
      if grid:
        print(f"This is a single run; the sweep has {math.prod(map(len, grid.values()))} as members.")
    elif grid:
      run_sweep(
        given.config, grid, given.workdir, where, member_batch=given.member_batch,
        checkpoint_seconds=given.checkpoint_seconds,
      )  # fmt: skip
    else:
      run_experiment(given.config, given.workdir, where, checkpoint_seconds=given.checkpoint_seconds)

  return told(run)


def leave_out_waiting() -> None:
  """Drops Orbax's advice, for every checkpoint that follows on another, to write fewer."""
  waiting = "Waiting for previous save"
  logging.get_absl_logger().addFilter(lambda record: not str(record.msg).startswith(waiting))


def where_of_flags() -> Where:
  """Devices and memory."""
  given = flags.FLAGS
  numbers = given.client_batch, given.device_rows, given.device_states
  return Where(parse_mesh(given.mesh), *numbers, given.states_folder)


def told(run: Callable[[], None]) -> int:
  """Runs it; 0, or another status after printing why it stopped or what the user can mend.

  An interrupt ends the program here: XLA may still compile, and crashes an interpreter that ends in order.
  """
  from fedjax_het.engine.room import in_words
  from fedjax_het.experiment.stopping import Stopped, end_now, heard

  try:
    with heard(), in_words():
      run()
  except Stopped as stopped:
    print(stopped, file=sys.stderr)
    return 128 + stopped.by
  except KeyboardInterrupt:
    end_now()
  except (SettingError, DataError, NonFiniteLoss, NoRoom) as error:
    print(f"{type(error).__name__}: {error}", file=sys.stderr)
    return 1
  return 0


def print_listing(name: str) -> None:
  """Prints everything that can be named, or `name` alone."""
  from fedjax_het.experiment.listing import print_list

  take_no_accelerator()
  print_list(name)


def print_description(name: str) -> None:
  """Prints the configuration's fields, or `name` alone."""
  from fedjax_het.experiment.fields import print_fields

  take_no_accelerator()
  print_fields(flags.FLAGS.config.to_dict(), name)


def take_no_accelerator() -> None:
  """For programs that only ask the parts what they are."""
  jax.config.update("jax_platforms", "cpu")


def launch() -> None:
  """Runs the program of the command line, and exits with its status."""
  with mistakes_in_one_line():
    sys.argv, sweep = take_sweep(with_shipped(sys.argv, "config"))
    define_flags()
    show_in_help(__name__)
  app.run(functools.partial(main, grid=sweep), flags_parser=parse_flags)
