"""Label noise: a label i becomes j with probability T[i, j], whatever becomes of the others.

Hahn, doctoral dissertation, chapter II, equations 2.7 (after Han et al., Co-teaching, NeurIPS 2018) and 2.8
(after van Rooyen et al., Learning with Symmetric Label Noise, NeurIPS 2015).
"""

from collections.abc import Callable
from typing import Annotated

import jax
import numpy as np
from numpy.typing import ArrayLike

from fedjax_het.data.rows import as_array
from fedjax_het.errors import SettingError, check_key
from fedjax_het.settings import HostShare, Whole, checked
from fedjax_het.tasks.missing import check_present

Classes = Annotated[int, Whole(2)]


@checked
def pair_flip(num_classes: Classes, ratio: HostShare) -> np.ndarray:
  """T[i, i] = 1 - ε and T[i, (i + 1) mod C] = ε, eq. 2.7: a class is mistaken for the next; float64 [C, C].

  Args:
    num_classes: C >= 2.
    ratio: ε in [0, 1], the expected share of labels that become others.

  Raises:
    SettingError: one of them is out of range.
  """
  own = np.eye(num_classes)
  return (1.0 - ratio) * own + ratio * np.roll(own, 1, axis=1)


@checked
def symmetric_flip(num_classes: Classes, ratio: HostShare) -> np.ndarray:
  """T[i, i] = 1 - ε and T[i, j] = ε / (C - 1) for j ≠ i, eq. 2.8: all mistakes are alike; float64 [C, C].

  Args:
    num_classes: C >= 2.
    ratio: ε in [0, 1], the expected share of labels that become others.

  Raises:
    SettingError: one of them is out of range.
  """
  own = np.eye(num_classes)
  return (1.0 - ratio) * own + ratio / (num_classes - 1) * (1.0 - own)


LABEL_NOISES: dict[str, Callable[..., np.ndarray]] = {"pair": pair_flip, "symmetric": symmetric_flip}


def label_noise(key: jax.Array, labels: ArrayLike, transition: ArrayLike) -> np.ndarray:
  """Draws every label anew from its row of T; of the shape and dtype of `labels`.

  What becomes of a label depends on the key, the label and its place among the rows alone, not on the clients
  or who has which row. With T = I, as for ε = 0, labels stay what they are. Clients train and
  validate on noisy labels, and are tested on clean ones, by `federate(x, y, ..., train_y=label_noise(...))`.

  Args:
    key: typed key.
    labels: classes, whole numbers, [N]; one that is not in [0, C) stays what it is.
    transition: T, [C, C], rows >= 0 with sum 1, such as `pair_flip(10, 0.1)`.

  Raises:
    SettingError: what is no key, no such matrix, or no classes.
  """
  key = check_key(key)
  rows = np.asarray(as_array("transition", transition))
  if rows.ndim != 2 or rows.shape[0] != rows.shape[1]:
    raise SettingError("transition", rows.shape, "not a square matrix", "Give a row for each class, [C, C].")
  if (
    rows.dtype.kind not in "biuf" or not rows.size or not rows.min() >= 0 or not np.allclose(rows.sum(1), 1.0)
  ):
    raise SettingError(
      "transition", rows.tolist(), "its rows are no probabilities", "Let each be >= 0 and sum to 1."
    )
  given = as_array("labels", labels)
  labels = np.asarray(given)
  if given.ndim == 1:
    check_present(given)
  if labels.ndim != 1 or labels.dtype.kind not in "biuf" or not np.array_equal(labels, np.floor(labels)):
    problem = "not one whole number an example"
    raise SettingError("labels", f"{labels.dtype} {list(labels.shape)}", problem, "Give classes, [N].")
  draws = np.random.default_rng(np.asarray(jax.random.key_data(key))).random(len(labels))
  noisy = labels.copy()
  for i, upto in enumerate(np.cumsum(rows, axis=1)[:, :-1]):
    own = np.flatnonzero(labels == i)
    noisy[own] = np.searchsorted(upto, draws[own], side="right")
  return noisy
