"""Checks of a run's files: which can be shown, because they hold values of the types that a run writes.

Files are damaged by crashes and by hand. A run with a damaged file is shown with its other files, and its
state names the damaged file and the place.
"""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedjax_het.engine.divergence import Divergence
from fedjax_het.studies import STUDIES

LARGEST = 1e100  # the square of a larger number may overflow
DEEPEST = 50  # levels of nested lists and fields

Check = Callable[[Any], None]


class Wrong(ValueError):
  """A value that no run writes; its text names the place."""


def read_record(path: Path, check: Check) -> tuple[dict[str, Any], str]:
  """Reads a JSON file of fields and checks it: returns (fields, "").

  Returns:
    (fields, ""); ({}, "") where there is no such file; ({}, reason) where it cannot be read or `check`
      raises.
  """
  try:
    return _record(path.read_text(encoding="utf-8"), check), ""
  except FileNotFoundError:
    return {}, ""
  except OSError as error:
    return {}, f"{path.name} cannot be read ({error.strerror or error})"
  except ValueError as error:
    return {}, f"{path.name} is damaged ({error})"


def read_records(path: Path, check: Check) -> tuple[list[dict[str, Any]], str]:
  """Reads a file with one JSON record a line: the records that pass `check`, and a note on damaged lines.

  The last line may be incomplete, because it may be being written.
  """
  try:
    *whole, last = path.read_text(encoding="utf-8", errors="replace").split("\n")
  except FileNotFoundError:
    return [], ""
  except OSError as error:
    return [], f"{path.name} cannot be read ({error.strerror or error})"
  found, damaged = [], 0
  for line in (*filter(str.strip, whole), last):
    try:
      found.append(_record(line, check))
    except ValueError:
      damaged += line is not last
  lines = f"{damaged} line{'s' * (damaged > 1)} of {path.name} {'are' if damaged > 1 else 'is'} damaged"
  return found, lines if damaged else ""


def config(found: Mapping[str, Any]) -> None:
  """Raises `Wrong` unless `found` is a run's config.json."""
  algorithm = found.get("algorithm")
  if not isinstance(algorithm, Mapping) or not isinstance(algorithm.get("name"), str):
    raise Wrong("algorithm.name is no name")
  for name in ("rounds", "seed"):
    if type(found.get(name)) is not int:
      raise Wrong(f"{name} is no whole number")
  _number("eval_every", found.get("eval_every"))


def summary(found: Mapping[str, Any]) -> None:
  """Raises `Wrong` if a field of a summary.json that is shown differs from what a run writes."""
  _metrics("metrics", found.get("metrics"))
  _metrics("late", found.get("late"))
  if gone := found.get("diverged"):
    place = _mapping("diverged", gone)
    if not {"round"} <= {*place} <= {*Divergence._fields}:
      raise Wrong("diverged has other fields")
    for name in ("round", "client"):
      _number(f"diverged.{name}", place.get(name))
  if along := found.get("lambda"):
    grid = _numbers("lambda.grid", _mapping("lambda", along).get("grid"))
    _numbers("lambda.mean", along.get("mean"), grid)
    _name("lambda.metric", along.get("metric", ""))
  if simplex := found.get("simplex"):
    _simplex(_mapping("simplex", simplex))
  for study in STUDIES:
    try:
      judged = study.judged(found)
    except (AttributeError, LookupError, TypeError) as error:
      raise Wrong(f"the section of the study {study.name} has other fields") from error
    for model, metrics in judged.items():
      for metric, figures in metrics.items():
        _figures(f"{model}.{metric}", figures)


def line(found: Mapping[str, Any]) -> None:
  """Raises `Wrong` if a line of metrics.jsonl differs from what a run writes."""
  if type(found.get("round")) is not int or found["round"] < 0:
    raise Wrong("round is no round")
  _metrics("metrics", found.get("metrics"))
  if mixing := found.get("mixing"):
    if coefficients := _mapping("mixing", mixing).get("coefficients"):
      _numbers("mixing.coefficients", coefficients)
    if (cohort := mixing.get("cohort")) is not None:
      _numbers("mixing.cohort", cohort, coefficients or None)


def failed(found: Mapping[str, Any]) -> None:
  """Raises `Wrong` unless a failed.json gives a reason as text."""
  if not isinstance(found.get("failed"), str) or not found["failed"].strip():
    raise Wrong("failed is no text")


def _record(text: str, check: Check) -> dict[str, Any]:
  try:
    found = json.loads(text)
  except ValueError as error:
    raise Wrong(f"no JSON: {error}") from error
  except RecursionError as error:
    raise Wrong("nested too deeply") from error
  _mapping("it", found)
  _bounded(found)
  check(found)
  return found


def _bounded(value: Any, depth: int = 0) -> None:
  if depth > DEEPEST:
    raise Wrong("nested too deeply")
  if isinstance(value, int | float) and LARGEST < abs(value) < math.inf:
    raise Wrong("a number is too large")
  for own in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
    _bounded(own, depth + 1)


def _metrics(place: str, found: Any) -> None:
  for model, metrics in _mapping(place, found or {}).items():
    for metric, figures in _mapping(f"{place}.{model}", metrics or {}).items():
      _figures(f"{place}.{model}.{metric}", figures or {})
  if found and not found.get("personalized"):
    raise Wrong(f"{place} has no personalized")


def _figures(place: str, found: Any) -> None:
  for name, value in _mapping(place, found).items():
    _number(f"{place}.{name}", value)


def _simplex(found: Mapping[str, Any]) -> None:
  alphas = found.get("alphas")
  if not isinstance(alphas, list) or not alphas:
    raise Wrong("simplex.alphas is no list")
  first = _numbers("simplex.alphas", alphas[0])
  for alpha in alphas:
    _numbers("simplex.alphas", alpha, first)
  _numbers("simplex.all", found.get("all"), alphas)
  for name, values in _mapping("simplex.clusters", found.get("clusters")).items():
    _numbers(f"simplex.clusters.{name}", values, alphas)
  _name("simplex.metric", found.get("metric"))


def _mapping(place: str, found: Any) -> Mapping[str, Any]:
  if not isinstance(found, Mapping):
    raise Wrong(f"{place} is {_kind(found)}, not fields with values")
  return found


def _numbers(place: str, found: Any, like: Any = None) -> list[Any]:
  if not isinstance(found, list) or not found:
    raise Wrong(f"{place} is {_kind(found)}, not a list of numbers")
  if like is not None and len(found) != len(like):
    raise Wrong(f"{place} has {len(found)} numbers, not {len(like)}")
  for value in found:
    _number(place, value)
  return found


def _number(place: str, value: Any) -> None:
  if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
    raise Wrong(f"{place} is {_kind(value)}, not a number")


def _name(place: str, value: Any) -> None:
  if not isinstance(value, str):
    raise Wrong(f"{place} is {_kind(value)}, not a name")


def _kind(value: Any) -> str:
  kinds = {bool: "true or false", str: "text", list: "a list", dict: "fields", type(None): "nothing"}
  return kinds.get(type(value), "a number")
