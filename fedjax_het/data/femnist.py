"""FEMNIST: 805,263 images of handwritten letters and digits, 62 classes. Each of 3,550 writers is a client.

In LEAF's json files, x are 784 numbers in [0, 1] on a white background (1), and y is 0 to 9 for digits, 10 to
35 for capital and 36 to 61 for small letters. `femnist_by_writer.npz` holds the same data as bytes:
train_images [N, 28, 28] uint8, train_labels, train_user (rows of `users`), and test_... likewise. Sources:
Caldas et al., LEAF, 2018; Cohen et al., EMNIST, 2017.
"""

from pathlib import Path

import numpy as np

from fedjax_het.data.files import Source
from fedjax_het.data.leaf import Rows, joined, leaf_files, read_leaf
from fedjax_het.data.untrusted import read_arrays
from fedjax_het.errors import DataError, reading

CLASSES, SIDE, ROWS = 62, 28, 805_263  # examples of all writers
BYTES = "femnist_by_writer.npz"
_ARRAYS = ("images", "labels", "user")


def load_femnist(folder: Path) -> Source | None:
  """Loads images, uint8 [N, 28, 28, 1] with a white background (255), and their classes, int32 [N].

  `groups` are the writers, and `split` is LEAF's.

  Args:
    folder: the folder with `femnist_by_writer.npz`, which is preferred, or with LEAF's json files at any
      depth.

  Returns:
    The data set, or None where the folder holds neither.

  Raises:
    DataError: a file is damaged, or holds invalid images or labels.
  """
  path = folder / BYTES
  bytes_there, files = path.is_file(), leaf_files(folder)
  if not bytes_there and not files:
    return None
  runs = _of_bytes(path) if bytes_there else _of_json(files)
  names = (BYTES,) if bytes_there else tuple(path.name for path, _ in files)
  x, y = np.concatenate([run.x for run in runs])[..., None], np.concatenate([run.y for run in runs])
  groups, split, note = joined(runs, x)
  y = y.astype(np.int32)
  return Source(x, y, x[:0], y[:0], CLASSES, "femnist", groups, names, (note,), split=split)


def _of_json(files: list[tuple[Path, bool]]) -> list[Rows]:
  """Returns the rows in LEAF's json files, with images [n, 28, 28] and labels [n]."""
  runs = []
  for rows in read_leaf(files, most=8 * ROWS * SIDE * SIDE):
    problem = f"has examples that are not {SIDE * SIDE} numbers each"
    with reading(rows.where, problem), np.errstate(over="ignore", invalid="ignore"):
      x = 255 * np.asarray(rows.x, np.float64).reshape(len(rows.y), SIDE, SIDE)
    if (
      not (x.min(initial=0) >= -0.01 and x.max(initial=0) <= 255.01) or (np.abs(x - x.round()) >= 0.01).any()
    ):
      raise DataError(f"{rows.where}: its examples are not bytes divided by 255.")
    with reading(rows.where, "has labels that are not whole numbers"):
      own = _labels(rows.where, np.asarray(rows.y, None if len(rows.y) else int))
    runs.append(rows._replace(x=x.round().astype(np.uint8), y=own))
  return runs


def _of_bytes(path: Path) -> list[Rows]:
  """Returns the rows of every user in the .npz file, with images [n, 28, 28] and labels [n]."""
  arrays = read_arrays(path, 2 * ROWS * SIDE * SIDE)
  runs = []
  for part in ("train", "test"):
    missing = {"users", *(f"{part}_{own}" for own in _ARRAYS)} - {*arrays}
    if missing:
      raise DataError(f"{path.resolve()} is not FEMNIST by writer: it has no {min(missing)}.")
    users, x, y, user = (arrays[name] for name in ("users", *(f"{part}_{own}" for own in _ARRAYS)))
    if users.ndim != 1 or len(np.unique(users)) < len(users):
      raise DataError(f"{path.resolve()}: its users are {users.shape}, {np.unique(users).size} names.")
    y = _labels(f"{path.resolve()}, {part}_labels", y)
    if x.dtype != np.uint8 or x.shape != (len(y), SIDE, SIDE) or user.shape != y.shape:
      raise DataError(f"{path.resolve()}: {part}_images are {x.dtype} {x.shape}, of {len(y)} labels.")
    if user.dtype.kind not in "iu" or not ((user >= 0) & (user < len(users))).all():
      raise DataError(f"{path.resolve()}: {part}_user does not number its {len(users)} users.")
    rows = ((str(users[i]), user == i) for i in np.unique(user).tolist())
    runs += [Rows(BYTES, name, x[own], y[own], part == "test") for name, own in rows]
  if not runs:
    raise DataError(f"{path.resolve()} is empty: no user has a row.")
  return runs


def _labels(where: str, y: np.ndarray) -> np.ndarray:
  if y.ndim != 1 or y.dtype.kind not in "iu" or (len(y) and not 0 <= y.min() <= y.max() < CLASSES):
    raise DataError(f"{where}: its labels are not whole numbers from 0 to {CLASSES - 1}.")
  return y
