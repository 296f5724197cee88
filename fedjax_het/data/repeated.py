"""Whether what a data set tests on is also what it trains on, value for value."""

from typing import Any

import jax
import numpy as np

from fedjax_het.errors import DataError

COPY = 20  # so many different test examples that all train too are no chance
_BLOCK = 2**26  # bytes that are looked at together


def check_apart(where: object, x: Any, x_test: Any) -> tuple[str, ...]:
  """A note for `Source.notes` where some test examples train as well; none where no example does.

  Labels are not compared. Some repetitions are meant to be, such as photographs that were taken in a row, so
  they are noted and stay.

  Args:
    where: the files, for the error.
    x, x_test: examples to train and to test on, [N, ...] and [M, ...], or trees of such.

  Raises:
    DataError: at least twenty different test examples, all of which train too: they were copied.
  """
  return _compared(where, _digests(x), _digests(x_test), "")


def check_divided(where: object, x: Any, users: np.ndarray, split: np.ndarray) -> tuple[str, ...]:
  """The same of data that come divided: a user's rows with split = 1 against its own with split = 0.

  Two users may well have the same rows: words, or white images.

  Args:
    where: see `check_apart`.
    x: examples, [N, ...].
    users: whose each row is, [N].
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
  """A number of 64 bits for each example: those of examples that differ differ, but for chance of 2^-64."""
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
  """A one-to-one scrambling of 64 bits, in which each depends on all (SplitMix64's, Steele et al. 2014)."""
  with np.errstate(over="ignore"):
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
