"""Label noise: each label i becomes j with probability T[i, j], independently of the other labels.

Hahn, doctoral dissertation, chapter II, equations 2.7 (after Han et al., Co-teaching, NeurIPS 2018) and 2.8
(after van Rooyen et al., Learning with Symmetric Label Noise, NeurIPS 2015).
"""

from collections.abc import Callable
from typing import Annotated

import jax
import numpy as np
from numpy.typing import ArrayLike

from fedjax_het.data.natural import generator
from fedjax_het.data.rows import as_array
from fedjax_het.errors import SettingError, check_key
from fedjax_het.settings import HostShare, Whole, checked
from fedjax_het.tasks.missing import check_present

Classes = Annotated[int, Whole(2)]


@checked
def pair_flip(num_classes: Classes, ratio: HostShare) -> np.ndarray:
  """Returns T with T[i, i] = 1 - ε and T[i, (i + 1) mod C] = ε (eq. 2.7), float64 [C, C].

  A class is mistaken for the next one only.

  Args:
    num_classes: C >= 2.
    ratio: ε in [0, 1], the expected fraction of labels that change.

  Raises:
    SettingError: an argument is out of range.
  """
  own = np.eye(num_classes)
  return (1.0 - ratio) * own + ratio * np.roll(own, 1, axis=1)


@checked
def symmetric_flip(num_classes: Classes, ratio: HostShare) -> np.ndarray:
  """Returns T with T[i, i] = 1 - ε and T[i, j] = ε / (C - 1) for j ≠ i (eq. 2.8), float64 [C, C].

  A class is mistaken for every other one equally often.

  Args:
    num_classes: C >= 2.
    ratio: ε in [0, 1], the expected fraction of labels that change.

  Raises:
    SettingError: an argument is out of range.
  """
  own = np.eye(num_classes)
  return (1.0 - ratio) * own + ratio / (num_classes - 1) * (1.0 - own)


LABEL_NOISES: dict[str, Callable[..., np.ndarray]] = {"pair": pair_flip, "symmetric": symmetric_flip}


def label_noise(key: jax.Array, labels: ArrayLike, transition: ArrayLike) -> np.ndarray:
  """Replaces every label i by a draw from row i of T; keeps the shape and dtype of `labels`.

  A label's draw depends only on the key, on the label and on its row, not on the partition into clients. With
  T = I, as for ε = 0, labels do not change. With `federate(x, y, ..., train_y=label_noise(...))` clients
  train and validate on noisy labels, and are tested on clean ones.

  Args:
    key: typed key.
    labels: classes, whole numbers, [N]; a label outside [0, C) does not change.
    transition: T, [C, C], rows >= 0 with sum 1, such as `pair_flip(10, 0.1)`.

  Raises:
    SettingError: `key` is no key, `transition` is no such matrix, or `labels` are no classes.
  """
  key = check_key(key)
  rows = np.asarray(as_array("transition", transition))
  if rows.ndim != 2 or rows.shape[0] != rows.shape[1]:
    raise SettingError("transition", rows.shape, "not a square matrix", "Give a row for each class, [C, C].")
  if (
    rows.dtype.kind not in "biuf" or not rows.size or not rows.min() >= 0 or not np.allclose(rows.sum(1), 1.0)
  ):
    raise SettingError(
      "transition", rows.tolist(), "a row is no probability distribution", "Let each be >= 0 and sum to 1."
    )
  given = as_array("labels", labels)
  labels = np.asarray(given)
  if given.ndim == 1:
    check_present(given)
  if labels.ndim != 1 or labels.dtype.kind not in "biuf" or not np.array_equal(labels, np.floor(labels)):
    problem = "not one whole number an example"
    raise SettingError("labels", f"{labels.dtype} {list(labels.shape)}", problem, "Give classes, [N].")
  draws = generator(key).random(len(labels))
  noisy = labels.copy()
  for i, upto in enumerate(np.cumsum(rows, axis=1)[:, :-1]):
    own = np.flatnonzero(labels == i)
    noisy[own] = np.searchsorted(upto, draws[own], side="right")
  return noisy
