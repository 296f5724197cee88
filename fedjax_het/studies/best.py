"""Best value over rounds of the headline metric, its course, and the first round that reaches a level.

SosicFL, section 4.1: ACC is the best value over all rounds, TTA (time to accuracy) the first round that
reaches a baseline's ACC. Both select on the test parts repeatedly, and are optimistic for that reason.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from fedjax_het.engine.run import judged
from fedjax_het.errors import SettingError, check_choice, check_number, check_range, in_bytes
from fedjax_het.metrics.catalogue import METRICS, shown
from fedjax_het.parts import ClientUpdate
from fedjax_het.studies.client_metrics import headline_of
from fedjax_het.studies.plots import spelled
from fedjax_het.studies.study import Moment, Options, Study, Watched
from fedjax_het.studies.text import named, number

MODELS = ("personalized", "global")
SPENT = ("seconds", "bytes", "simulated_seconds")  # what a course has beside its rounds and models


def levels_of(*, to_accuracy: float | dict | None = None) -> dict[str, float]:  # type: ignore[type-arg]
  """Expands a number for both models, or one for each that is named, to model -> level; {} for none.

  Args:
    to_accuracy: a level of the headline, or one a model as {'global': 0.69}: `to_accuracy` of summary.json
      says when it was reached.
  """
  if to_accuracy is None or to_accuracy == {}:
    return {}
  if not isinstance(to_accuracy, Mapping):
    check_number("to_accuracy", to_accuracy)
    return dict.fromkeys(MODELS, float(to_accuracy))
  for model in to_accuracy:
    check_choice("to_accuracy's model", model, MODELS)
  return dict(to_accuracy)


class Best(Study):
  """Study that adds `best` to the summary, and `to_accuracy` if the configuration gives a level.

  `best` holds the `metric`, its `course` over the evaluations (`rounds`, `seconds` of training, `bytes` up
  and down, `simulated_seconds` where there are any, and each model's mean over the clients), and for each
  model {value, round, seconds, bytes, simulated_seconds} of its first best evaluation.
  Where clients have validation parts, `valid` in it has the same of the evaluation that is best on them.
  """

  name = "best"
  options = Options("to_accuracy", levels_of, single=True)

  @classmethod
  def check(cls, given: Any, client: ClientUpdate, validates: bool = True) -> None:
    """Raises `SettingError` unless the level is a finite number, or one for each model that `client` has."""
    for level in levels_of(to_accuracy=given).values():
      check_range("to_accuracy", level, above=-np.inf, below=np.inf, on_host=True)
    if isinstance(given, Mapping) and "global" in given and client.global_model is None:
      raise SettingError(
        "to_accuracy", dict(given), f"{client.name} has no global model", "Give {'personalized': ...}."
      )

  @classmethod
  def check_run(cls, given: Any, run: Watched) -> None:
    """Raises `SettingError` for a level above 1 where the task's headline is a fraction."""
    headline = run.algorithm.client.task.headline
    for model, level in levels_of(to_accuracy=given).items():
      if level > 1 and all(name in METRICS and METRICS[name].unit == "%" for name in headline[-1:]):
        setting = f"to_accuracy.{model}" if isinstance(given, Mapping) else "to_accuracy"
        problem = f"above 1, which {headline[-1]}, a fraction, never reaches"
        raise SettingError(setting, level, problem, f"Write {level / 100} for {level} %.")

  def checkpoint_state(self) -> dict[str, Any]:
    """Returns the metric's name and its course so far, for the checkpoint."""
    return {"metric": self._metric, "course": self._course, "valid": self._valid}

  def resume(self, rounds_done: int, checkpoint_state: Mapping[str, Any] | None) -> None:
    """Restores the metric's name and its course from a checkpoint."""
    self._metric: str | None = checkpoint_state["metric"] if checkpoint_state else None
    known = checkpoint_state or {}
    self._course = {name: list(own) for name, own in known.get("course", {}).items()}
    self._valid = {name: list(own) for name, own in known.get("valid", {}).items()}

  def watch(self, infos, now: Moment) -> dict[str, Any]:
    """Appends an evaluation of `eval_every` to the course; late evaluations do not belong to it."""
    if now.evaluations is not None:
      found, valid = (judged(now.evaluations).get(name, {}) for name in ("metrics", "valid"))
      self._metric = headline_of(found)
      means = {model: own[self._metric]["mean"] for model, own in found.items()}
      before = len(self._course.get("rounds", ()))
      for model, own in valid.items():  # a checkpoint of an earlier version has no values of its evaluations
        values = self._valid.setdefault(model, [])
        values += [None] * (before - len(values)) + [own[self._metric]["mean"]]
      spent = {"rounds": now.round, "seconds": now.seconds.get("train", 0.0)}
      if now.bytes:
        spent["bytes"] = sum(now.bytes.values())
      if now.simulated_seconds is not None:
        spent["simulated_seconds"] = now.simulated_seconds
      for name, value in {**spent, **means}.items():  # checkpoints of earlier versions have no bytes
        values = self._course.setdefault(name, [])
        values += [None] * (before - len(values)) + [value]
    return {}

  def section(self, now: Moment) -> dict[str, Any]:
    """Returns the summary's `best` and, if levels are configured, `to_accuracy`; see the class."""
    if self._metric is None:
      return {}
    course, metric = self._course, self._metric
    found: dict[str, Any] = {"metric": metric, "course": course}
    for model in (own for own in MODELS if own in course):
      found[model] = best(course, model, metric)
      if model in self._valid:
        found[model]["valid"] = best(course, model, metric, self._valid[model])
    sections: dict[str, Any] = {"best": found}
    levels = levels_of(to_accuracy=self.settings)
    if levels:
      sections["to_accuracy"] = {
        model: {"level": level, **reached(course, model, level, metric)}
        for model, level in levels.items()
        if model in course
      }
    return sections

  @classmethod
  def rows(cls, summary: Mapping[str, Any]) -> RenderableType | None:
    """Returns terminal lines with each model's best value and the round in which it reached its level."""
    found = summary.get("best")
    if not found:
      return None
    metric, lines = found["metric"], []
    bests = [
      f"{spelled(model)} {number(found[model]['value'], metric)} (round {found[model]['round']})"
      for model in MODELS
      if (found.get(model) or {}).get("round") is not None
    ]
    if bests:
      lines.append(f"best {named(metric)} of {len(found['course']['rounds'])} evaluations:")
      lines += [f"  {one}" for one in bests]
    for model, own in (summary.get("to_accuracy") or {}).items():
      when = "never" if own["round"] is None else f"in round {own['round']}, after {_after(own)}"
      lines.append(f"{spelled(model)} {named(metric)} of {number(own['level'], metric)} reached: {when}")
    return Group(*map(Text, lines)) if lines else None


def _after(own: Mapping[str, Any]) -> str:
  """Formats what was spent, such as "12 s, 3.2 MB, 450 simulated s"."""
  words = [f"{own['seconds']:.0f} s"]
  if own.get("bytes") is not None:
    words.append(in_bytes(own["bytes"]))
  if own.get("simulated_seconds") is not None:
    words.append(f"{own['simulated_seconds']:,.0f} simulated s")
  return ", ".join(words)


def best(
  course: Mapping[str, list[Any]], model: str, metric: str, by: list[Any] | None = None
) -> dict[str, Any]:
  """Returns {value, round, seconds, ...} of a course's best evaluation; all None if every value is NaN.

  `by` has the values that decide which evaluation is best; by default those of the course.
  """
  values = _rising(course[model] if by is None else by, metric)
  if not np.isfinite(values).any():
    return {"value": None, **_at(course, None)}
  return {"value": course[model][(place := int(np.nanargmax(values)))], **_at(course, place)}


def reached(course: Mapping[str, list[Any]], model: str, level: float, metric: str) -> dict[str, Any]:
  """Returns {round, seconds, ...} of the first evaluation as good as `level`; None each if there is none."""
  values = _rising(course[model], metric)
  good = np.flatnonzero(values >= (level if shown(metric).higher_is_better else -level))
  return _at(course, int(good[0]) if len(good) else None)


def sooner(own: Mapping[str, Any], other: Mapping[str, Any], model: str, of: str = "round") -> float | None:
  """Returns the speed-up in time to accuracy (TTA), the other run's TTA over this run's; None if not reached.

  Both TTAs are to the other run's best value.

  Args:
    own: section `best` of this run's summary.
    other: section `best` of the other run's summary, the baseline.
    model: "personalized" or "global".
    of: "round", "bytes", "simulated_seconds", or "seconds" of training, which are comparable as far as the
      machines are.
  """
  target = other[model]
  there, theirs = reached(own["course"], model, target["value"], own["metric"]).get(of), target.get(of)
  return theirs / there if there and theirs is not None else None


def _rising(values: list[Any], metric: str) -> np.ndarray:
  """Returns values as float64 with larger being better: negated for losses, NaN for missing values."""
  found = np.array([np.nan if value is None else value for value in values], np.float64)
  return found if shown(metric).higher_is_better else -found


def _at(course: Mapping[str, list[Any]], place: int | None) -> dict[str, Any]:
  """Returns what was spent up to an evaluation of a course, by name; None each for no evaluation."""
  names = {"round": "rounds", **{name: name for name in SPENT if name in course}}
  return {name: None if place is None else course[own][place] for name, own in names.items()}
