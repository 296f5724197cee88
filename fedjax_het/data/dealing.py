"""What partitioners share: checked labels, Dirichlet draws, and rows that are dealt by counts."""

import numpy as np
from numpy.typing import ArrayLike

from fedjax_het.data.natural import whole
from fedjax_het.data.rows import as_array
from fedjax_het.errors import SettingError
from fedjax_het.tasks.missing import check_present

Parts = list[np.ndarray]


def class_labels(labels: ArrayLike, num_clients: int) -> np.ndarray:
  """Returns `labels` as an array [N]; raises `SettingError` unless they are integers and 1 <= K <= N."""
  given = as_array("labels", labels)
  labels = np.asarray(given)
  if given.ndim == 1:
    check_present(given)
  if labels.ndim != 1 or labels.dtype.kind not in "iub":
    raise SettingError(
      "labels",
      (labels.shape, str(labels.dtype)),
      "not a vector of integers",
      "Give one class per row, or partition by iid or natural.",
    )
  whole("num_clients", num_clients, len(labels), why=f"there are {len(labels)} rows")
  return labels


def log_dirichlet(rng: np.random.Generator, alpha: float, size: tuple[int, int]) -> np.ndarray:
  """Draws log Gamma(α), a softmax of which is Dir(α 1), as log Gamma(α + 1) + log(U) / α: no underflow."""
  return np.log(rng.standard_gamma(alpha + 1.0, size)) - rng.standard_exponential(size) / alpha


def dealt(rng: np.random.Generator, labels: np.ndarray, classes: np.ndarray, counts: np.ndarray) -> Parts:
  """Deals the rows of each class at random to the clients, by `counts`, [C, K]."""
  pieces = [
    np.split(rng.permutation(np.flatnonzero(labels == c)), np.cumsum(row)[:-1])
    for c, row in zip(classes, counts)
  ]
  return [np.concatenate(of_client) for of_client in zip(*pieces)]


def cut(logits: np.ndarray, count: int, offset: float) -> np.ndarray:
  """Divides `count` rows in proportion to exp(logits), [K], into integers, [K], that sum to `count`.

  Rounding with a uniform offset in [0, 1) makes each count unbiased.
  """
  weights = np.cumsum(np.exp(logits - logits.max()))
  edges = np.floor(weights / weights[-1] * count + offset).astype(np.int64)
  return np.diff(np.minimum(edges, count), prepend=0)
