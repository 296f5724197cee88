"""The configuration's section `label_noise`: clients train on noisy labels in place of the true ones."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from fedjax_het.data.container import FederatedData
from fedjax_het.data.files import Source
from fedjax_het.data.label_noise import LABEL_NOISES, label_noise
from fedjax_het.errors import SettingError
from fedjax_het.tasks import Task


def check_label_noise(given: Mapping[str, Any]) -> None:
  """Raises `SettingError` for a `label_noise` of known fields whose values cannot be; {} is none."""
  if not given:
    return
  settings = {field: value for field, value in given.items() if field != "name"}
  if "ratio" not in settings:
    raise SettingError("label_noise.ratio", None, "is missing", "Give the share of labels to be changed.")
  LABEL_NOISES[given["name"]](2, **settings)


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
