"""Makes what the sections `task`, `label_noise`, `feature_shift` and `unseen` say of the clients' data."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from fedjax_het.config.algorithm import as_written
from fedjax_het.data.clients import select, split_clients
from fedjax_het.data.container import FederatedData
from fedjax_het.data.feature_shift import SHIFTS, feature_shift
from fedjax_het.data.files import Source
from fedjax_het.data.label_noise import LABEL_NOISES, label_noise
from fedjax_het.errors import SettingError
from fedjax_het.settings import check_settings, settings_of
from fedjax_het.tasks import TASKS, Task, balanced, balanced_positive, for_classes


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


def noisy_labels(key: jax.Array, given: Mapping[str, Any], source: Source, task: Task) -> np.ndarray | None:
  """Draws the labels, [N], on which clients train and validate, by a checked section; None without noise.

  Raises:
    SettingError: the labels are no classes.
  """
  if not given:
    return None
  if not task.classes:
    raise SettingError(
      "label_noise", dict(given), f"the labels of {task.name} are no classes", "Leave it out."
    )
  settings = {field: value for field, value in given.items() if field != "name"}
  return label_noise(key, source.y, LABEL_NOISES[given["name"]](source.num_classes, **settings))


def noise_report(given: Mapping[str, Any], data: FederatedData, clean: np.ndarray) -> dict[str, Any]:
  """Returns the section with `changed`, the fraction of training and validation labels that changed.

  Args:
    given: the section.
    data: all clients' data, with its labels.
    clean: the true labels at the same places, [N].
  """
  seen = np.concatenate([data.train.rows(), data.valid.rows()])
  return {**given, "changed": float(np.mean(data.y[seen] != clean[seen]))}


def shifted(
  key: jax.Array, given: Mapping[str, Any], data: FederatedData
) -> tuple[FederatedData, np.ndarray | None]:
  """Transforms all clients' examples by a checked section `feature_shift`; {} leaves them.

  Returns:
    (the data, the clients' hidden clusters, int [K], or None where the section makes none).
  """
  if not given:
    return data, None
  settings = {field: value for field, value in given.items() if field != "name"}
  shift = SHIFTS[given["name"]](**settings)
  hidden = None if shift.clusters is None else shift.clusters(data.num_clients)
  return feature_shift(key, data, shift), hidden


def set_apart(
  key: jax.Array, fraction: float | None, data: FederatedData
) -> tuple[FederatedData, np.ndarray, FederatedData | None]:
  """Parts the clients into those that train and those that never do.

  Args:
    key: typed key of the draw.
    fraction: share of the clients that never train; None for none.
    data: all clients' data.

  Returns:
    (data and numbers of the clients that train, data of the others; None where there are none).
  """
  if fraction is None:
    return data, np.arange(data.num_clients), None
  seen, apart = split_clients(key, data.num_clients, fraction)
  return select(data, seen), seen, select(data, apart)
