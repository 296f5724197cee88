"""Reads a configuration from a Python file with `get_config()` or from a former run's config.json."""

import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from ml_collections import ConfigDict

from fedjax_het.config.cell import optional
from fedjax_het.config.own_epochs import of_earlier
from fedjax_het.config.sections import FIELDS
from fedjax_het.errors import SettingError

REMEDY = (
  "A configuration is a Python file with get_config(), as configs/quickstart.py, or a run's config.json."
)
OTHER_FORMATS = {".yaml": "YAML", ".yml": "YAML", ".toml": "TOML", ".ini": "INI", ".ipynb": "a notebook"}
MAY_BE_NONE = ("num_clients", "test_fraction")  # fields that the command line may set to None


def read_config(text: str) -> ConfigDict:
  """Reads the configuration of a file.

  Args:
    text: the file's path, optionally with a colon and the argument of `get_config`, such as the cell of a
      table.

  Raises:
    SettingError: the file does not exist, may not be read, has another format or fails; the error names the
      line and the exception.
  """
  if not text:
    raise SettingError("config", text, "is empty", REMEDY)
  name, _, cell = (text, "", "") if Path(text).is_file() else text.partition(":")
  path = Path(name)
  if path.is_dir():
    inside = path / "config.json"
    remedy = f"Write --config={inside}." if inside.is_file() else REMEDY
    raise SettingError("config", name, "is a folder", remedy)
  if path.suffix == ".json":
    if cell:
      problem = "a config.json takes nothing behind a colon"
      raise SettingError("config", text, problem, "Change its fields by --config.FIELD=VALUE.")
    return _of_json(path)
  return _of_python(path, cell)


def load_module(setting: str, path: Path) -> ModuleType:
  """Runs a user's Python file and returns it as a module.

  Args:
    setting: the flag that names the file, for errors.
    path: the file.

  Raises:
    SettingError: the file cannot be read or fails; the error names the line and the exception.
  """
  _read(setting, path)
  spec = importlib.util.spec_from_loader(
    f"{path.stem}_config", importlib.machinery.SourceFileLoader(f"{path.stem}_config", str(path))
  )
  assert spec and spec.loader
  module = importlib.util.module_from_spec(spec)
  sys.modules[spec.name] = module
  called(setting, str(path), path, spec.loader.exec_module, module)
  return module


def called(
  setting: str, value: str, path: Path, function: Callable[..., Any], *args: Any, what: str = "cannot be read"
) -> Any:
  """Calls a function of the user's file and returns its result.

  Args:
    setting: the flag that errors name.
    value: the flag's value.
    path: the file.
    function: the function.
    args: its arguments.
    what: the problem that an exception is reported as.

  Raises:
    SettingError: the function raises one, or any other exception, which is reported with file and line.
  """
  try:
    return function(*args)
  except SettingError:
    raise
  except (Exception, SystemExit) as error:  # a user's file may raise anything
    lines = [
      frame.lineno for frame in traceback.extract_tb(error.__traceback__) if _same(frame.filename, path)
    ]
    if isinstance(error, SyntaxError) and error.filename and _same(error.filename, path):
      lines, about = [error.lineno], error.msg
    else:
      about = " ".join(str(error).split())
    problem = f"{what} ({type(error).__name__}{f': {about}' if about else ''})"
    problem += f" in line {lines[-1]} of {path}" if lines else ""
    remedy = "Mend it." if path.suffix == ".py" else f"Mend it. {REMEDY}"
    raise SettingError(setting, value, problem, remedy) from error


def _of_python(path: Path, cell: str) -> ConfigDict:
  if path.suffix in OTHER_FORMATS:
    _read("config", path)
    raise SettingError("config", str(path), f"is {OTHER_FORMATS[path.suffix]}, which is not read", REMEDY)
  module = load_module("config", path)
  if not callable(get_config := getattr(module, "get_config", None)):
    raise SettingError("config", str(path), "has no function get_config", REMEDY)
  found = called("config", str(path), path, get_config, *([cell] if cell else []))
  if not isinstance(found, ConfigDict | Mapping):
    problem = f"its get_config returns {found!r:.60}, which is no configuration"
    raise SettingError("config", str(path), problem, "Return a ConfigDict, as configs/quickstart.py does.")
  return ConfigDict(found)  # a changeable copy of a FrozenConfigDict


def _of_json(path: Path) -> ConfigDict:
  content = _read("config", path)
  try:
    found = json.loads(content.decode("utf-8-sig"))
  except (ValueError, RecursionError) as error:
    raise SettingError("config", str(path), f"is no JSON ({error})", REMEDY) from error
  if isinstance(found, dict) and "sweep" in found and isinstance(found.get("config"), dict):
    remedy = "Name that of one of its members, " + os.path.join(path.parent, "members", "*", path.name)
    raise SettingError("config", str(path), "is that of a sweep, of several configurations", f"{remedy}.")
  if not isinstance(found, dict) or (missing := [name for name in FIELDS if name not in found]):
    lacks = f"it lacks {', '.join(missing)}" if isinstance(found, dict) else "it holds no fields"
    raise SettingError("config", str(path), f"is no configuration of a run: {lacks}", REMEDY)
  config = _changeable(of_earlier(found))
  return ConfigDict(config | {name: optional(config[name]) for name in MAY_BE_NONE})


def _changeable(value: Any) -> Any:
  """Converts JSON values to a configuration's: lists to tuples, and None to a field of any type.

  Inside a list None stays, as a ConfigDict does not look for fields there.
  """
  if isinstance(value, dict):
    return {name: optional(None) if own is None else _changeable(own) for name, own in value.items()}
  return _fixed(value)


def _fixed(value: Any) -> Any:
  """Converts the lists in a JSON value to tuples."""
  if isinstance(value, dict):
    return {name: _fixed(own) for name, own in value.items()}
  return tuple(map(_fixed, value)) if isinstance(value, list) else value


def _read(setting: str, path: Path) -> bytes:
  try:
    return path.read_bytes()
  except (OSError, ValueError) as error:  # ValueError: a null character in the name
    remedy = "Name a configuration file that you may read."
    if isinstance(error, FileNotFoundError):
      remedy = f"It was looked for from {Path.cwd()}. Name a configuration file that is there."
    raise SettingError(setting, str(path), f"cannot be read ({error})", remedy) from error


def _same(name: str, path: Path) -> bool:
  return os.path.abspath(name) == os.path.abspath(path)
