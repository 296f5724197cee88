"""LEAF's json files: {"users": [...], "num_samples": [...], "user_data": {user: {"x": [...], "y": [...]}}}.

LEAF's scripts write undivided data (all_data/*.json), or pairs of files, train/*_train_9.json and
test/*_test_9.json, which divide every user's examples (`-t sample`) or the users (`-t user`). Source: Caldas
et al., LEAF: A benchmark for federated settings, 2018 (github.com/TalwalkarLab/leaf).
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_het.data.files import below
from fedjax_het.data.repeated import check_divided
from fedjax_het.data.untrusted import read, read_json
from fedjax_het.errors import DataError, reading


class Rows(NamedTuple):
  """Rows of one user in one file.

  Attributes:
    where: the file and the user, for errors.
    user: the user's name.
    x, y: examples and labels, equally many: lists as the file has them, or what a loader makes of them.
    test: whether the file belongs to a test set.
  """

  where: str
  user: str
  x: Any
  y: Any
  test: bool


def leaf_files(folder: Path) -> list[tuple[Path, bool]]:
  """Finds the json files (.gz or not) below a folder, training files first: (path, whether of a test set).

  A file's set is recognised by its folder, train or test, or by its name. Where files of these sets exist,
  other files (undivided data, a validation set, a vocabulary) are ignored.

  Raises:
    DataError: there are test files but no training files.
  """
  found = sorted(path for path in below(folder) if path.name.endswith((".json", ".json.gz")))
  sets: dict[str, list[Path]] = {"train": [], "test": [], "all": []}
  for path in found:
    words = path.name.split(".")[0].split("_")
    parts = {path.parent.name} if path.parent.name in sets else {"train", "test"} & {*words}
    if len(parts) == 1:
      sets[parts.pop()].append(path)
    elif words[:2] == ["all", "data"]:
      sets["all"].append(path)
  if sets["test"] and not sets["train"]:
    raise DataError(
      f"{folder.resolve()}: {sets['test'][0].name} is a file of tests, and none of training is there."
      " Add LEAF's train/*.json or train_data.json."
    )
  if sets["train"]:
    return [(path, part == "test") for part in ("train", "test") for path in sets[part]]
  return [(path, False) for path in sets["all"]]


def read_leaf(files: list[tuple[Path, bool]], counted: bool = True, most: int = 2**32) -> Iterator[Rows]:
  """Yields the rows of every user, file after file, with one file in memory at a time.

  Args:
    files: as `leaf_files` finds them.
    counted: whether `num_samples` must equal the number of rows. LEAF does not update it where its scripts
      remove rows (windows of Shakespeare that overlap both sets; the other sets of Reddit); with False it
      must only not be smaller.
    most: the most bytes that a file may have, uncompressed.

  Raises:
    DataError: a file is not LEAF's json, or a copy of another; `users` differs from `user_data`; a user is
      named twice in a file, or is in two files of one set; the numbers of examples, labels and `num_samples`
      differ; or there are no rows.
  """
  found: dict[bytes, Path] = {}
  where_is: dict[tuple[str, bool], Path] = {}
  total = 0
  for path, test in files:
    content = read(path, most)[1]
    users = _users(path, content, test)
    same = found.setdefault(hashlib.sha256(content).digest(), path)
    if users and same != path:
      raise DataError(f"{path.resolve()} is the same file as {same.resolve()}. Delete one of them.")
    for rows, count in users:
      if (other := where_is.setdefault((rows.user, test), path)) != path:
        raise DataError(
          f"{rows.where} has rows in {other.name} too, a file of the same set. Keep one sampling's files."
        )
      if not isinstance(rows.x, list) or not isinstance(rows.y, list):
        raise DataError(f"{rows.where}: its x and y are not lists.")
      if len(rows.x) != len(rows.y):
        raise DataError(f"{rows.where}: {len(rows.x)} examples and {len(rows.y)} labels.")
      if type(count) is not int or count < len(rows.y) or (counted and count > len(rows.y)):
        raise DataError(f"{rows.where}: {len(rows.y)} rows, where num_samples says {count}.")
      total += len(rows.y)
      yield rows
  if not total:
    raise DataError(
      f"{files[0][0].resolve()} is empty, and so are all {len(files)} files: no user has a row."
    )


def _users(path: Path, content: bytes, test: bool) -> list[tuple[Rows, Any]]:
  """Returns the rows of every user of a file, and the numbers of rows that the file declares."""
  where = path.resolve()
  found = read_json(where, content)
  with reading(where, "is not a json file of LEAF's, or a damaged one"):
    users, counts, data = found["users"], found["num_samples"], found["user_data"]
    if not all(isinstance(user, str) and user.strip() for user in users):
      raise DataError(f"{where} is damaged: a user without a name, or whose name is no text.")
    named, having = Counter(users), Counter([*data])
    if odd := [*(named - having), *(having - named)]:
      raise DataError(f"{where} is damaged: user {odd[0]} is not once in users and once in user_data.")
    if len(counts) != len(users):
      raise DataError(f"{where} is damaged: {len(users)} users, and num_samples of {len(counts)}.")
    rows = [Rows(f"{where}, user {user}", user, data[user]["x"], data[user]["y"], test) for user in users]
    return list(zip(rows, counts))


def joined(runs: Sequence[Rows], x: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray | None, str]:
  """Joins runs of rows, laid out one after another: returns each row's user and use, and a note.

  Args:
    runs: the users' rows of each file.
    x: examples of all runs, to be searched for test examples that are training examples too; None skips the
      search.

  Returns:
    `Source.groups`, `Source.split` (None where no user is in both sets), and a sentence for `Source.notes`.

  Raises:
    DataError: the test rows are a copy of training rows, see `check_divided`.
  """
  sizes = [len(run.y) for run in runs]
  groups, held = (np.repeat(own, sizes) for own in ([run.user for run in runs], [run.test for run in runs]))
  both = {*groups[held]} & {*groups[~held]}
  count = f"{len({run.user for run in runs})} users, {len(groups)} rows"
  if not both:
    note = (
      ", of users divided into training and test users, which is not kept (see `unseen`)"
      if held.any()
      else ", not divided"
    )
    return groups, None, count + note
  split = np.where(np.isin(groups, [*both]), held, -1).astype(np.int8)
  alone = (split < 0).sum()
  few = [f"{alone} of users in one set alone"] if alone else []
  again = () if x is None else check_divided("LEAF's files of tests", x, groups, split)
  return groups, split, "; ".join([f"{count}, {held.sum()} to test on", *few, *again])
