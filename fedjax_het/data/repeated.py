"""Detection of test examples that are also training examples, value for value."""

from typing import Any

import jax
import numpy as np

from fedjax_het.errors import DataError

COPY = 20  # if all of so many different test examples are training examples, the test set is a copy
_BLOCK = 2**26  # bytes that are hashed at once


def check_apart(where: object, x: Any, x_test: Any) -> tuple[str, ...]:
  """Returns a note for `Source.notes` if some test examples are training examples too, else nothing.

  Labels are not compared. Repetitions may be intended, such as photographs that were taken in a row, so they
  are noted but not removed.

  Args:
    where: the files, which the error names.
    x, x_test: training and test examples, [N, ...] and [M, ...], or trees of such arrays.

  Raises:
    DataError: at least `COPY` different test examples exist, and all of them are training examples too.
  """
  return _compared(where, _digests(x), _digests(x_test), "")


def check_divided(where: object, x: Any, users: np.ndarray, split: np.ndarray) -> tuple[str, ...]:
  """As `check_apart`, but compares each user's test rows (split 1) with its own training rows (split 0) only.

  Rows that two different users share, such as short texts or white images, are no sign of a copy.

  Args:
    where: see `check_apart`.
    x: examples, [N, ...].
    users: the user of each row, [N].
    split: see `Source.split`.
  """
  who = np.unique(users, return_inverse=True)[1].astype(np.uint64)
  own = _mixed(_digests(x) + _mixed(who + np.uint64(1)))
  return _compared(where, own[split == 0], own[split == 1], " of the same user")


def _compared(where: object, train: np.ndarray, test: np.ndarray, of_whom: str) -> tuple[str, ...]:
  again = np.isin(test, train)
  if len(test) and again.all() and len(np.unique(test)) >= COPY:
    problem = f"all {len(test)} test examples are training examples{of_whom} too"
    raise DataError(f"{where}: {problem}. The test set is a copy. Fetch both anew.")
  count = int(again.sum())
  said = f"{count:,} of {len(test):,} test examples equal a training example{of_whom}, value for value"
  return (said,) if count else ()


def _digests(x: Any) -> np.ndarray:
  """Hashes each example to 64 bits, uint64 [N]; different examples collide with probability 2^-64."""
  rng = np.random.default_rng(8)
  total: Any = np.uint64(0)
  for leaf in jax.tree.leaves(x):
    flat = np.ascontiguousarray(leaf).reshape(len(leaf), -1)
    width = -(-max(flat.shape[1] * flat.itemsize, 1) // 8)
    factors = rng.integers(0, 2**63, width, np.uint64) * np.uint64(2) + np.uint64(1)
    step = max(_BLOCK // (8 * width), 1)
    found = np.zeros(len(flat), np.uint64)
    for first in range(0, len(flat), step):
      block = flat[first : first + step].view(np.uint8).reshape(len(flat[first : first + step]), -1)
      padded = np.zeros((len(block), 8 * width), np.uint8)
      padded[:, : block.shape[1]] = block
      found[first : first + step] = (_mixed(padded.view(np.uint64)) * factors).sum(axis=1, dtype=np.uint64)
    total = _mixed(total + found)
  return np.asarray(total)


def _mixed(words: Any) -> Any:
  """Scrambles 64-bit words by a bijection, each bit depending on all (SplitMix64, Steele et al. 2014)."""
  with np.errstate(over="ignore"):
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
