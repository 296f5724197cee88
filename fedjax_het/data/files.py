"""What every file loader shares: the loaded data set, and reading files that may be damaged."""

import gzip
import hashlib
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_het.errors import DataError


class Source(NamedTuple):
  """A data set in memory, before it is partitioned.

  Attributes:
    x: examples, [N, ...], uint8 images (read as [0, 1] later) or float32; may be read-only.
    y: labels in [0, num_classes), int32, [N].
    x_test, y_test: the official test set, [M, ...] and [M]; M = 0 where there is none.
    num_classes: number of classes.
    name: the data set's name.
    groups: who each row came from, [N], where the data say so, for the natural partition.
    files: the files it was read from, or how it was obtained.
  """

  x: np.ndarray
  y: np.ndarray
  x_test: np.ndarray
  y_test: np.ndarray
  num_classes: int
  name: str
  groups: np.ndarray | None = None
  files: tuple[str, ...] = ()


def find(folder: Path, name: str) -> Path | None:
  """`folder/name.gz` or `folder/name`, whichever is there, the compressed one first."""
  for path in (folder / f"{name}.gz", folder / name):
    if path.is_file():
      return path
  return None


def read(path: Path) -> tuple[bytes, bytes]:
  """A file as it is and decompressed (the same thing unless it ends in .gz).

  Raises:
    DataError: a file that cannot be read, or a .gz that is cut short or not gzip.
  """
  try:
    raw = path.read_bytes()
    return raw, gzip.decompress(raw) if path.suffix == ".gz" else raw
  except (EOFError, OSError, zlib.error) as error:
    raise DataError(f"{path.resolve()} cannot be read, it is truncated or damaged: {error}") from error


def check_digest(path: Path, data: bytes, algorithm: str, published: str) -> None:
  """Raises `DataError` unless `data`, from `path`, has the `published` hexadecimal digest."""
  found = hashlib.new(algorithm, data, usedforsecurity=False).hexdigest()
  if found != published:
    raise DataError(
      f"{path.resolve()} is not the file its authors ship: {algorithm} {found}, published {published}."
      " Delete it and fetch it again."
    )
