"""Reddit: predict the next word of comments of December 2017. Each user of LEAF's json files is a client.

A user's x is a list of comments, each divided into lines of ten words; y holds the words shifted by one, as a
list of {"target_tokens": ...} or as such lines. <BOS> and <EOS> enclose a comment, and <PAD> fills its last
line. The thesis uses 817 users of the small set that LEAF gives its models (new_small_data). Source: Caldas
et al., LEAF, 2018; data of pushshift.io.
"""

from collections import Counter
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_het.data.files import Source
from fedjax_het.data.leaf import joined, leaf_files, read_leaf
from fedjax_het.errors import DataError, check_whole
from fedjax_het.tasks import next_token

LENGTH = 10
SPECIAL = ("<PAD>", "<UNK>", "<BOS>", "<EOS>")  # ids 0 to 3
PAD, UNK, BOS, EOS = range(4)


def vocabulary(words: Iterable[str], size: int) -> dict[str, int]:
  """Maps words to ids: the special ones first, then the most frequent, ties in alphabetical order.

  Args:
    words: the words of all training lines, with repetitions.
    size: V, the number of ids, including the special ones.
  """
  counts = Counter(words)
  ranked = sorted((word for word in counts if word not in SPECIAL), key=lambda word: (-counts[word], word))
  return {word: i for i, word in enumerate([*SPECIAL, *ranked[: size - len(SPECIAL)]])}


def load_reddit(folder: Path, size: int = 10_000) -> Source | None:
  """Loads lines of ten words, int16 [N, 10], and the word after each, int32 [N, 10], by user.

  The vocabulary holds the most frequent words of all users' training lines, as LEAF's does. Words outside it,
  and padding, <BOS> and <EOS>, are masked out of losses and metrics, as in AAggFF's code. `split` is LEAF's:
  the last fifth of each user's comments is for testing; LEAF's validation files are not read.

  Args:
    folder: the folder with the json files train/*.json and test/*.json, or train_data.json and
      test_data.json.
    size: V, the number of words including <PAD>, <UNK>, <BOS> and <EOS>; at most 32,767.

  Returns:
    The data set, or None where there is no json file.

  Raises:
    SettingError: `size` is out of range.
    DataError: a file is damaged, or a line has not ten words.
  """
  check_whole("size", size, len(SPECIAL) + 1, np.iinfo(np.int16).max)
  files = leaf_files(folder)
  if not files:
    return None
  runs = []
  for rows in read_leaf(files, counted=False):
    own_x = _lines(rows.x)
    own_y = _lines(y.get("target_tokens") if isinstance(y, dict) else y for y in rows.y)
    if own_x is None or own_y is None or len(own_x) != len(own_y):
      raise DataError(f"{rows.where}: its comments are not lines of {LENGTH} words, each with its next ones.")
    runs.append(rows._replace(x=own_x, y=own_y))
  seen = (line for run in runs if not run.test for line in run.x)
  ids = vocabulary(chain.from_iterable(seen), size)

  def coded(lines: Iterable[list[str]]) -> np.ndarray:
    return np.array([[ids.get(word, UNK) for word in line] for line in lines], np.int32)

  x, y = (coded(chain.from_iterable(own)) for own in ([run.x for run in runs], [run.y for run in runs]))
  x = x.astype(np.int16)
  groups, split, note = joined(runs, x)
  counting = np.isin(y, range(len(SPECIAL)), invert=True).sum() / max(np.sum(y != PAD), 1)
  notes = (f"{note}; {len(ids)} ids, {counting:.1%} of the target words count",)
  return Source(
    x, y, x[:0], y[:0], size, "reddit", groups,
    tuple(path.name for path, _ in files), notes, task=next_token(ignore=range(len(SPECIAL))), split=split,
  )  # fmt: skip


def _lines(comments: Iterable[Any]) -> list[list[str]] | None:
  """Returns the lines of all comments, or None where a line has not ten words."""
  comments = list(comments)
  if not all(isinstance(comment, list) for comment in comments):
    return None
  lines = list(chain.from_iterable(comments))
  whole = all(isinstance(line, list) and len(line) == LENGTH for line in lines)
  return lines if whole and all(isinstance(word, str) for line in lines for word in line) else None
