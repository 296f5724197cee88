"""The configuration's section `task`: what is predicted, and how classes are weighted."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedjax_het.config.algorithm import as_written
from fedjax_het.data.files import Source
from fedjax_het.errors import SettingError, check_choice, near
from fedjax_het.settings import check_settings, settings_of
from fedjax_het.tasks import TASKS, Task, balanced, balanced_positive, for_classes


def check_task(given: Mapping[str, Any]) -> None:
  """Raises `SettingError` for an invalid field of `task`, as far as that is known without the data."""
  check_choice("task.name", given.get("name", "classification"), TASKS)
  known = [TASKS[given["name"]]] if "name" in given else TASKS.values()
  settings = {"name", *(setting for task in known for setting in settings_of(task))}
  for field, value in given.items():
    if field not in settings:
      raise SettingError(f"task.{field}", value, "unknown to task", near(field, settings))


def build_task(given: Mapping[str, Any], source: Source, y: np.ndarray | None = None) -> Task:
  """Builds the task of a configuration: the data set's, or the one that the section `task` names or modifies.

  Args:
    given: the section: a `name`, by default that of the data set's task, and settings, of which
      `class_weights` and `positive_weight` may be "balanced", so that all classes have equal weight.
    source: the data set.
    y: labels of all clients' training examples, from which balanced weights are computed; None leaves these
      out.
  """
  own = source.task or for_classes(source.num_classes)
  settings = {name: value for name, value in given.items() if name != "name"}
  name = given.get("name", own.name)
  if not settings and name == own.name:
    return own
  balance = {  # weights that balance classes, and neutral weights
    "class_weights": (lambda y: balanced(y, source.num_classes), None),
    "positive_weight": (balanced_positive, 1.0),
  }
  for setting in balance.keys() & settings_of(TASKS[name]).keys() & settings.keys():
    weights, plain = balance[setting]
    if settings[setting] == "balanced":
      settings[setting] = plain if y is None else weights(y)
    elif isinstance(settings[setting], str):
      remedy = (
        f"Did you mean 'balanced'? Write --config.task.{setting}=balanced, or numbers other than nan and inf."
      )
      raise SettingError(f"task.{setting}", settings[setting], "is no known word, and no number", remedy)
  check_settings(f"to {name}", TASKS[name], settings, place="task")
  with as_written({"task": settings}, "task"):
    return TASKS[name](**settings)
