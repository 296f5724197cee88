"""The launcher: `python -m fedjax_het.run --config=configs/NAME.py --workdir=DIR [--config.key=value ...]`.

The same command continues a stopped run, or shows the result of a complete one.
`--sweep.FIELD=value,value,...` runs every combination of the fields' values as one program. `--list` prints
what a configuration can name, `--describe` the fields of this one.
"""

import ast
import contextlib
import functools
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

import jax
from absl import app, flags, logging
from ml_collections import ConfigDict, config_flags

from fedjax_het.config import quickstart
from fedjax_het.config.file import read_config
from fedjax_het.config.override import change, is_beyond_flags, leave_out_empty, with_empty_sections
from fedjax_het.config.shipped import shipped
from fedjax_het.errors import SettingError, check_here
from fedjax_het.output.terminal import protect_streams, say
from fedjax_het.program import machine
from fedjax_het.program.command_line import (
  leave_out_waiting,
  mistakes_in_one_line,
  parse_flags,
  show_in_help,
  take_changes,
  take_dotted,
  told,
)
from fedjax_het.program.machine import define_machine_flags, prepare_jax, where_of_flags
from fedjax_het.program.packages import load_packages
from fedjax_het.program.stopping import outlive_save
from fedjax_het.program.where import Where

Work = Callable[[ConfigDict, dict[str, Any], Where], None]


def define_flags(config: ConfigDict) -> None:
  """Defines the launcher's flags; ml_collections reads the overrides of the command line at this point."""
  config_flags.DEFINE_config_dict(
    "config",
    config,
    "What to run: a Python file with get_config(), as in configs/, or a run's config.json. By default the "
    "quickstart.",
    lock_config=False,
    accept_new_attributes=True,  # settings at their defaults; `check_config` refuses unknown ones
  )
  flags.DEFINE_string("workdir", "runs/quickstart", "Where the run keeps its files.")
  flags.DEFINE_integer("member_batch", None, "Runs of a sweep that a device trains at once; as client_batch.")
  text = "Print what a configuration can name, or with --list=NAME what the settings of that are, and end."
  plain: flags.ArgumentParser[str] = flags.ArgumentParser()
  flags.DEFINE_flag(flags.Flag(plain, None, "list", None, text, boolean=True))  # the value may be left out
  text = "Print all fields of the configuration, or with --describe=FIELD one or a section, and end."
  flags.DEFINE_flag(flags.Flag(plain, None, "describe", None, text, boolean=True))
  flags.DEFINE_bool(
    "profile", False, "Show where the time goes, and write a trace for Perfetto to WORKDIR/profile/."
  )
  flags.DEFINE_bool("dry_run", False, "Print what the run would take (memory, bytes, steps), and end.")
  define_machine_flags()


def with_shipped(argv: list[str], flag: str) -> list[str]:
  """Returns the command line with the project's own file after `flag` if "configs/NAME.py" does not exist."""

  def one(before: str, argument: str) -> str:
    name, equals, path = argument.partition("=")
    if name.lstrip("-") == flag and equals:
      return f"{name}={shipped(path)}"
    return shipped(argument) if before in (f"-{flag}", f"--{flag}") else argument

  return [one(*pair) for pair in zip(["", *argv], argv)]


def take_sweep(argv: list[str]) -> tuple[list[str], dict[str, list[Any]]]:
  """Splits --sweep.FIELD=values arguments from a command line: (the rest, grid).

  Raises:
    SettingError: a sweep flag has no values or repeats a field.
  """
  rest, given = take_dotted(argv, "sweep")
  grid: dict[str, list[Any]] = {}
  for path, values in given:
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


def take_config(argv: list[str]) -> tuple[list[str], ConfigDict]:
  """Splits --config=FILE from a command line: (the rest, its configuration or the quickstart's).

  Raises:
    SettingError: see `read_config`; or a --config.FIELD=VALUE precedes the file.
  """
  rest: list[str] = []
  chosen, early, arguments = None, "", iter(argv)
  for argument in arguments:
    name, equals, value = argument.partition("=")
    if name not in ("-config", "--config"):
      early = early or (name if name.lstrip("-").startswith("config.") else "")
      rest.append(argument)
      continue
    if chosen is not None:
      raise SettingError("config", value, f"is a second file beside {chosen}", "Give --config=FILE once.")
    chosen = value if equals else next(arguments, "")
    if early:
      problem = f"stands behind {early}, which it would replace"
      raise SettingError("config", chosen, problem, "Put --config=FILE before --config.FIELD=VALUE.")
  return rest, quickstart.get_config() if chosen is None else read_config(chosen)


def main(
  argv: list[str], varied: dict[str, Any], elements: Mapping[str, Any], put_in: list[str], work: Work
) -> int:
  """Runs what the flags ask for; returns 0, or 1 after printing an error that the user can mend.

  Args:
    argv: what is left of the command line: the program's name.
    varied: what `launch` took from the command line.
    elements: what the command line sets that absl's flags do not reach, see `is_beyond_flags`.
    put_in: sections that were put into the configuration for the command line to set.
    work: see `launch`.
  """
  if len(argv) > 1:
    blank = next((flag for flag in ("list", "describe") if flags.FLAGS[flag].value == "true"), None)
    remedy = f"--{blank}={argv[1]}" if blank else "--config.key=value"
    say(f"Unexpected argument {argv[1]!r}: settings are given as {remedy}.", error=True)
    return 1
  logging.set_verbosity(min(logging.get_verbosity(), logging.WARNING))
  leave_out_waiting()
  given = flags.FLAGS

  def overridden() -> ConfigDict:
    change(given.config, elements)
    leave_out_empty(given.config, put_in)
    return given.config

  if given.list is not None or given.describe is not None:
    return told(functools.partial(explain, overridden))

  def run() -> None:
    prepare_jax()
    work(overridden(), varied, where_of_flags())

  return told(run)


def run_or_sweep(config: ConfigDict, grid: dict[str, Any], where: Where) -> None:
  """Runs a configuration, or the members of a grid, as the flags say."""
  from fedjax_het.experiment.dry_run import dry_run
  from fedjax_het.experiment.experiment import run_experiment
  from fedjax_het.experiment.profile import Profile
  from fedjax_het.experiment.sweep import run_sweep
  from fedjax_het.program.display import TERMINAL

  given = flags.FLAGS
  if given.member_batch is not None and not grid:
    raise SettingError("member_batch", given.member_batch, "this is no sweep", "Add --sweep.FIELD=a,b,...")
  if given.profile and given.dry_run:
    raise SettingError("profile", True, "a dry run trains nothing", "Leave out --dry_run.")
  shown = Profile(given.workdir) if given.profile else contextlib.nullcontext(TERMINAL)
  if given.dry_run:
    dry_run(config, where, grid)
    if grid:
      say(f"This is a single run; the sweep has {math.prod(map(len, grid.values()))} as members.")
    return
  with shown as display:
    if grid:
      run_sweep(
        config, grid, given.workdir, where, member_batch=given.member_batch,
        checkpoint_seconds=given.checkpoint_seconds, display=display,
      )  # fmt: skip
    else:
      run_experiment(
        config, given.workdir, where, checkpoint_seconds=given.checkpoint_seconds, display=display
      )


def explain(config: Callable[[], ConfigDict]) -> None:
  """Prints what --list or --describe asks for: everything, or a single name."""
  from fedjax_het.config.fields import print_fields
  from fedjax_het.config.listing import print_list

  jax.config.update("jax_platforms", "cpu")  # no accelerator is needed
  listed, described = ("" if own == "true" else own for own in (flags.FLAGS.list, flags.FLAGS.describe))
  if listed is not None:
    print_list(listed)
  else:
    print_fields(config().to_dict(), described)


def launch(
  take: Callable[[list[str]], tuple[list[str], dict[str, Any]]] = take_sweep, work: Work = run_or_sweep,
  define: Callable[[], None] = lambda: None,
) -> None:  # fmt: skip
  """Runs the program of the command line and exits with its status.

  Args:
    take: splits what is varied from a command line: (the rest, dotted field -> values).
    work: (configuration, what is varied, devices) does the program's work.
    define: defines further flags.
  """
  protect_streams()
  outlive_save()
  with mistakes_in_one_line():
    check_here()
    load_packages()
    argv = flags.FLAGS.read_flags_from_files(sys.argv, force_gnu=False)
    argv, varied = take(with_shipped(argv, "config"))
    argv, config = take_config(argv)
    put_in = with_empty_sections(config)
    sys.argv, elements = take_changes(argv, functools.partial(is_beyond_flags, config))
    define_flags(config)
    define()
    show_in_help(__name__, machine.__name__, define.__module__)
  run = functools.partial(main, varied=varied, elements=elements, put_in=put_in, work=work)
  app.run(run, flags_parser=parse_flags)
