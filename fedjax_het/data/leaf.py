"""LEAF's json files: {"users": [...], "num_samples": [...], "user_data": {user: {"x": [...], "y": [...]}}}.

LEAF's scripts write whole data (all_data/*.json), or pairs of files, train/*_train_9.json and
test/*_test_9.json, in which every user is divided (`-t sample`), or users are (`-t user`). Source: Caldas et
al., LEAF: A benchmark for federated settings, 2018 (github.com/TalwalkarLab/leaf).
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_het.data.files import read
from fedjax_het.errors import DataError


class Rows(NamedTuple):
  """Some rows of one user.

  Attributes:
    where: the file and the user, for errors.
    user: the user's name.
    x, y: examples and labels as the file has them, equally many.
    test: whether the file is one of a test set.
  """

  where: str
  user: str
  x: list[Any]
  y: list[Any]
  test: bool


def leaf_files(folder: Path) -> list[tuple[Path, bool]]:
  """The json files (.gz or not) below a folder, training files first: (path, whether of a test set).

  A file's set is told by its folder, train or test, or by its name. Where there are such, other files (whole
  data, a validation set, a vocabulary) are left alone.
  """
  found = sorted(path for path in folder.rglob("*") if path.name.endswith((".json", ".json.gz")))
  sets: dict[str, list[Path]] = {"train": [], "test": [], "all": []}
  for path in found:
    words = path.name.split(".")[0].split("_")
    parts = {path.parent.name} if path.parent.name in sets else {"train", "test"} & {*words}
    if len(parts) == 1:
      sets[parts.pop()].append(path)
    elif words[:2] == ["all", "data"]:
      sets["all"].append(path)
  if sets["train"] or sets["test"]:
    return [(path, part == "test") for part in ("train", "test") for path in sets[part]]
  return [(path, False) for path in sets["all"]]


def read_leaf(files: list[tuple[Path, bool]]) -> Iterator[Rows]:
  """The rows of every user, file after file, one file in memory at a time.

  Raises:
    DataError: a file that is no such json, or a user with unequally many examples and labels.
  """
  for path, test in files:
    try:
      content = json.loads(read(path)[1])
      users, data = content["users"], content["user_data"]
      rows = [
        Rows(f"{path.resolve()}, user {user}", user, data[user]["x"], data[user]["y"], test) for user in users
      ]
    except (ValueError, KeyError, TypeError) as error:
      what = f"{type(error).__name__}: {str(error)[:200]}"
      raise DataError(f"{path.resolve()} is not a json file of LEAF's, or a damaged one: {what}") from error
    for own in rows:
      if len(own.x) != len(own.y):
        raise DataError(f"{own.where}: {len(own.x)} examples and {len(own.y)} labels.")
    yield from rows


def joined(users: list[str], sizes: list[int], test: list[bool]) -> tuple[np.ndarray, np.ndarray | None, str]:
  """Whose each row is, and what it is for, of runs of rows, one after another.

  Args:
    users: of each run, [R].
    sizes: rows of each run, [R].
    test: whether each run is of a test set, [R].

  Returns:
    `Source.groups`, `Source.split` (None where no user is in both sets), and a note of it.
  """
  groups, held = np.repeat(users, sizes), np.repeat(np.asarray(test, bool), sizes)
  both = {*groups[held]} & {*groups[~held]}
  count = f"{len(set(users))} users, {len(groups)} rows"
  if not both:
    note = ", of users divided into sets, which is not kept: see `unseen`" if held.any() else ", not divided"
    return groups, None, count + note
  split = np.where(np.isin(groups, [*both]), held, -1).astype(np.int8)
  alone = (split < 0).sum()
  return (
    groups,
    split,
    f"{count}, {held.sum()} to test on" + (f"; {alone} of users in one set alone" if alone else ""),
  )
