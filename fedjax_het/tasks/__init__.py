"""Learning tasks, one module per task: per-example loss, metrics, headline metric, valid labels."""

from collections.abc import Callable
from typing import Any

from fedjax_het.errors import SettingError, check_whole
from fedjax_het.tasks.binary import balanced_positive, binary
from fedjax_het.tasks.classification import balanced, classification
from fedjax_het.tasks.multilabel import multilabel
from fedjax_het.tasks.next_token import next_token
from fedjax_het.tasks.regression import regression
from fedjax_het.tasks.task import Task, mean_loss

TASKS: dict[str, Callable[..., Task]] = {
  "classification": classification,
  "binary": binary,
  "multilabel": multilabel,
  "next_token": next_token,
  "regression": regression,
}


def check_task(task: Any) -> None:
  """Raises `SettingError` unless `task` is a `Task`, as opposed to its name or factory."""
  if not isinstance(task, Task):
    name = getattr(task, "__name__", task)
    known = name if isinstance(name, str) and name in TASKS else "classification"
    raise SettingError("task", name, "not a task", f"Give one, such as task=fh.tasks.{known}().")


def for_model(num_outputs: int) -> Task:
  """Returns the default task of a model: binary for one logit, else classification."""
  check_whole("num_outputs", num_outputs, 1)
  return binary() if num_outputs == 1 else classification()


def for_classes(num_classes: int) -> Task:
  """Returns the default task for C classes: binary (one logit) for C <= 2, else classification."""
  check_whole("num_classes", num_classes, 1)
  return for_model(1 if num_classes <= 2 else num_classes)


__all__ = [
  "TASKS",
  "Task",
  "balanced",
  "balanced_positive",
  "binary",
  "check_task",
  "classification",
  "for_classes",
  "for_model",
  "mean_loss",
  "multilabel",
  "next_token",
  "regression",
]
