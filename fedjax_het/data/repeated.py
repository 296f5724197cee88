"""Detection of test examples that are also training examples, value for value."""

import hashlib
import itertools
from typing import Any

import jax
import numpy as np

from fedjax_het.errors import DataError

COPY = 20  # if all of so many different test examples are training examples, the test set is a copy


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
  """Compares each user's test rows (split 1) with that user's training rows (split 0), see `check_apart`.

  Rows that two different users share, such as short texts or white images, are no sign of a copy.

  Args:
    where: see `check_apart`.
    x: examples, [N, ...].
    users: the user of each row, [N].
    split: see `Source.split`.
  """
  own = _digests(x, users)
  return _compared(where, own[split == 0], own[split == 1], " of the same user")


def _compared(where: object, train: np.ndarray, test: np.ndarray, of_whom: str) -> tuple[str, ...]:
  again = np.isin(test, train)
  if len(test) and again.all() and len(np.unique(test)) >= COPY:
    problem = f"all {len(test)} test examples are training examples{of_whom} too"
    raise DataError(f"{where}: {problem}. The test set is a copy. Fetch both anew.")
  count = int(again.sum())
  said = f"{count:,} of {len(test):,} test examples equal a training example{of_whom}, value for value"
  return (said,) if count else ()


def _digests(x: Any, users: np.ndarray | None = None) -> np.ndarray:
  """Hashes each example, and its user if given, to 64 bits, [N]; different ones collide with chance 2^-64."""
  flat = [np.ascontiguousarray(leaf).reshape(len(leaf), -1).view(np.uint8) for leaf in jax.tree.leaves(x)]
  keys = (
    itertools.repeat(b"")
    if users is None
    else (b"%d" % who for who in np.unique(users, return_inverse=True)[1])
  )
  found = []
  for key, *row in zip(keys, *flat):
    hashed = hashlib.blake2b(digest_size=8, key=key)
    for leaf in row:
      hashed.update(leaf)
    found.append(hashed.digest())
  return np.frombuffer(b"".join(found), np.uint64)
