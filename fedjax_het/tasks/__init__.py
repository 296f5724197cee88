"""What is learnt, one file a task: the loss of an example, metrics, headline, valid labels."""

from collections.abc import Callable

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


def for_model(num_outputs: int) -> Task:
  """The task of a model that does not say its own: of one logit binary, else classification."""
  return binary() if num_outputs == 1 else classification()


def for_classes(num_classes: int) -> Task:
  """The task of C classes where nothing else is said: of two (or one) binary, by one logit."""
  return for_model(1 if num_classes <= 2 else num_classes)


__all__ = [
  "TASKS",
  "Task",
  "balanced",
  "balanced_positive",
  "binary",
  "classification",
  "for_classes",
  "for_model",
  "mean_loss",
  "multilabel",
  "next_token",
  "regression",
]
