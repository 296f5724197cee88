"""Shared steps of all command-line programs: parse flags, report mistakes in a line, exit with a status."""

import ast
import contextlib
import re
import sys
from collections.abc import Callable, Iterator
from logging import LogRecord
from typing import Any

from absl import flags, logging

from fedjax_het.config.sections import sections
from fedjax_het.engine.capacity import in_words
from fedjax_het.errors import DataError, NonFiniteLoss, NoRoom, SettingError, near
from fedjax_het.output.escape import terminal
from fedjax_het.output.terminal import say
from fedjax_het.program.stopping import Stopped, end_now, heard

DIVERGED = 3  # exit status of a run whose training loss became NaN or infinite


def take_dotted(
  argv: list[str], prefix: str, taken: Callable[[str], bool] = lambda path: True
) -> tuple[list[str], list[tuple[str, str]]]:
  """Splits --PREFIX.FIELD=TEXT arguments from a command line: (the rest, (FIELD, TEXT) in their order).

  Args:
    argv: the command line.
    prefix: such as "config" or "sweep".
    taken: (FIELD) -> whether it is taken; by default all are.
  """
  rest: list[str] = []
  found: list[tuple[str, str]] = []
  for argument in argv:
    name, _, text = argument.partition("=")
    start, _, path = name.lstrip("-").partition(".")
    if start == prefix and "." in name and taken(path):
      found.append((path, text))
    else:
      rest.append(argument)
  return rest, found


def take_changes(
  argv: list[str], taken: Callable[[str], bool] = lambda path: True
) -> tuple[list[str], dict[str, Any]]:
  """Splits --config.FIELD=value arguments from a command line: (the rest, field -> value).

  A value that is not a Python literal is taken as text.

  Args:
    argv: the command line.
    taken: (FIELD) -> whether it is taken; by default all are.
  """
  rest, given = take_dotted(argv, "config", taken)
  changes: dict[str, Any] = {}
  for path, value in given:
    try:
      changes[path] = ast.literal_eval(value)
    except (ValueError, SyntaxError):
      changes[path] = value
  return rest, changes


@contextlib.contextmanager
def mistakes_in_one_line() -> Iterator[None]:
  """Context manager that ends the program with one line instead of a traceback for a user's mistake."""
  try:
    yield
  except (flags.Error, AttributeError, KeyError, OSError, TypeError, ValueError) as error:
    say(in_one_line(error), error=True)
    sys.exit(1)


def in_one_line(error: Exception) -> str:
  """Describes a mistake in a flag, and the remedy, from errors of absl and ml_collections."""
  unknown = isinstance(error, KeyError) and bool(error.args)  # the text of a KeyError is quoted
  text = " ".join(str(error.args[0] if unknown else error).split())
  if unknown:
    if inside := re.search(r"^Attribute .*Attempting to lookup: (.*)\.\w+$", text):
      return f"config.{inside[1]} is a value, which has no fields. Write --config.{inside[1]}=VALUE."
    text = f"Unknown setting: {text}"
    if "Did you mean" not in text:
      text += f". {near(text.removeprefix('Unknown setting: ').strip(chr(39)), sections())}"
  if section := re.match(r"flag --config\.([\w.]+)=(.*): Failed to parse .* as a ConfigDict", text):
    name, value = section[1], section[2]
    if value.startswith("{"):
      return (
        f"config.{name} = {value}: cannot be read as a dictionary of Python literals. Put names and texts in "
        "quotes, close all brackets, and write no nan or inf."
      )
    named = name in sections() and sections()[name].kind == "choice" and value.replace("_", "").isalnum()
    remedy = f"--config.{name}.name={value}" if named else f"--config.{name}=\"{{'FIELD': VALUE}}\""
    return (
      f"config.{name} = {value}: is a section of settings. Write {remedy}; --describe={name} has its fields."
    )
  if path := re.match(r"Could not parse '(.*)': SyntaxError", text):
    return f"--config.{path[1]}: names no field. Write --config.FIELD=VALUE; --describe has all fields."
  if text.startswith("Unknown command line flag"):
    how = "Settings are given as --config.NAME=VALUE"
    if varied := re.match(r"Unknown command line flag '(sweep|space)'", text):
      how = f"A field is named behind the dot: --{varied[1]}.local.lr=0.01,0.1"
      text = f"Unknown command line flag {varied[1]!r}"  # no flag is near it
    text = text.rstrip(".")
    return f"{text}{'' if text.endswith('?') else '.'} {how}; --help lists the flags."
  for message, problem, remedy in (
    (r"invalid literal for int\(\) with base 10: .*", "is no whole number", "Give one, such as 5."),
    (r"could not convert string to float: .*", "is no number", "Give one, such as 0.5."),
    (r"\('Non-boolean argument to boolean flag'.*", "is neither true nor false", "Give one of them."),
  ):
    if wrong := re.match(rf"flag --([^=]+)=(.*): {message}", text):
      return f"{wrong[1]} = {wrong[2]}: {problem}. {remedy}"
  if text.startswith("Missing value for flag --"):
    return f"{text}. Write {text.rpartition(' ')[2]}=VALUE."
  return text


def show_in_help(*modules: str) -> None:
  """Makes --help of the started program list the flags of some modules."""
  for module in modules:
    for flag in flags.FLAGS.flags_by_module_dict().get(module, ()):
      flags.FLAGS.register_key_flag_for_module(sys.argv[0], flag)


def parse_flags(argv: list[str]) -> list[str]:
  """Parses flags as absl does, except that --help exits with 0 instead of 1."""
  with mistakes_in_one_line():
    try:
      return flags.FLAGS(argv)
    except SystemExit:  # raised by flags that show help; mistakes are other exceptions
      sys.exit(0)


def leave_out_waiting() -> None:
  """Drops Orbax's advice to write fewer checkpoints, which it logs for every pair of close ones.

  In other messages control characters are escaped, because file names may contain some.
  """
  waiting = "Waiting for previous save"
  logging.get_absl_logger().addFilter(lambda record: not str(record.msg).startswith(waiting))
  logging.get_absl_handler().addFilter(as_text)


def as_text(record: LogRecord) -> bool:
  """Escapes a log message for the terminal; returns True so that it is shown."""
  record.msg, record.args = terminal(record.getMessage()), ()
  return True


def told(run: Callable[[], None]) -> int:
  """Runs a function; returns 0, or another status after printing why it stopped or the user's error.

  The status is `DIVERGED` where the training has diverged, 1 for any other error, and 128 plus the signal's
  number after a stop.

  An interrupt ends the process at once, because XLA may still be compiling and would crash during an orderly
  exit.
  """
  try:
    with heard(), in_words():
      run()
  except Stopped as stopped:
    say(stopped, error=True)
    return 128 + stopped.by
  except KeyboardInterrupt:
    end_now()
  except (SettingError, DataError, NonFiniteLoss, NoRoom) as error:
    say(f"{type(error).__name__}: {error}", error=True)
    return DIVERGED if isinstance(error, NonFiniteLoss) else 1
  return 0
