"""Raw figures of the board's rows: RAW/TASK/METHOD.json, and what makes them stale."""

import ast
import hashlib
import inspect
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedjax_het.config.plan import plan
from fedjax_het.experiment.experiment import FREE
from fedjax_het.leaderboard.board import Board, Row, section_of
from fedjax_het.leaderboard.budget import SEEDS
from fedjax_het.methods import METHODS
from fedjax_het.workdir.folder import as_json, filled, leaves, read_record, write_atomic

OF_CODE = "the code of the method"  # the reason for which a row may be confirmed
CHANGING = ("seconds", "train_seconds", "compile_seconds", "provenance")
UNSAID = "null"  # a setting that is not given, as JSON


def path_of(folder: Path, row: Row) -> Path:
  """Returns the path of a row's raw figures."""
  return folder / row.task / f"{row.method}.json"


def read_raw(folder: Path, row: Row) -> dict[str, Any] | None:
  """Returns a row's raw figures; None where they are missing or cannot be read."""
  return read_record(path_of(folder, row))


def read_task(folder: Path, task: str, methods: Iterable[str]) -> dict[str, dict[str, Any]]:
  """Returns method -> the raw figures of its row on a task, of those methods whose figures are there."""
  return {name: own for name in methods if (own := read_raw(folder, Row(task, name))) is not None}


def lasting(tree: Any) -> Any:
  """Returns raw figures, or a part of them, without seconds and provenance, which differ from run to run."""
  if not isinstance(tree, Mapping):
    return tree
  return {name: lasting(own) for name, own in tree.items() if name not in CHANGING}


def write_raw(folder: Path, row: Row, found: Mapping[str, Any]) -> None:
  """Writes a row's raw figures, completely or not at all."""
  path = path_of(folder, row)
  path.parent.mkdir(parents=True, exist_ok=True)
  write_atomic(path, json.dumps(found, indent=1, sort_keys=True) + "\n")


def made_by(board: Board, row: Row) -> dict[str, Any]:
  """Returns what a row's figures follow from, beside the machine and the engine's code.

  Returns:
    `config`: all fields of the configuration, defaults too, dotted field -> JSON text, without the seed and
    those that change no number; `given`: those of them that its file gives; `space`: dotted field -> text;
    `trials`; `seeds`; `code`: a digest of the module of the method's factory, without comments and
    docstrings.
  """
  fields = {name: own for name, own in plan(board.config(row)).written.items() if name not in (*FREE, "seed")}
  whole = leaves(filled(fields))
  given = {name.replace("local.", "algorithm.", 1) for name in leaves(json.loads(as_json(fields)))}
  return {
    "config": {name: own for name, own in whole.items() if own != UNSAID},
    "given": sorted(given & {*whole}),
    "space": {field: str(own) for field, own in board.space(row).items()},
    "trials": board.number_of_trials(row),
    "seeds": [*SEEDS],
    "code": code_of(row.method),
  }


def fingerprint(made: Mapping[str, Any]) -> str:
  """Returns a digest, 16 hex digits, of what `made_by` returns."""
  return hashlib.blake2b(as_json(made).encode(), digest_size=8).hexdigest()


def code_of(method: str) -> str:
  """Returns a digest, 16 hex digits, of the module that a method's factory is defined in; "" if unknown.

  Comments, docstrings and layout do not count. What the module imports does not count either. Versions of
  Python write some of the code differently (`ast.unparse`), so that a row may be stale in another version.
  """
  factory = inspect.unwrap(METHODS[section_of(method)][method].factory)
  try:
    tree = ast.parse(inspect.getsource(inspect.getmodule(factory)))  # type: ignore[arg-type]
  except (OSError, TypeError, SyntaxError):  # a factory without a file
    return ""
  for node in ast.walk(tree):
    own = getattr(node, "body", None)
    if isinstance(own, list):
      node.body = [  # type: ignore[attr-defined]
        one for one in own if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))
      ]
  return hashlib.blake2b(ast.unparse(tree).encode(), digest_size=8).hexdigest()


def stale(found: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
  """Returns what has changed since a row's figures were made, a text each; [] for nothing.

  A setting that the library has got since does not count while it has its default, with which nothing
  changes.

  Args:
    found: the row's raw figures.
    now: `made_by` of the row.
  """
  before = found.get("made_by")
  if not isinstance(before, Mapping):
    return ["what it was made by is not known"]
  texts = []
  for part in ("config", "space"):
    old, new = (dict(own.get(part) or {}) for own in (before, now))
    for name in sorted({*old, *new}):
      if name not in old and part == "config" and name not in now["given"]:
        continue
      if old.get(name) != new.get(name):
        texts.append(f"{name} = {new.get(name, 'absent')}, was {old.get(name, 'absent')}")
  for part, words in (("trials", "trials"), ("seeds", "seeds")):
    if before.get(part) != now[part]:
      texts.append(f"{words} = {now[part]}, was {before.get(part)}")
  if before.get("code") != now["code"]:
    texts.append(OF_CODE)
  return texts
