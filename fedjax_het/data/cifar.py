"""CIFAR-10 from the authors' binary batches, all of them or some, compressed or not.

A record is one label byte, then 1024 red, 1024 green and 1024 blue bytes, row by row (Krizhevsky 2009).
"""

import re
from pathlib import Path

import numpy as np

from fedjax_het.data.files import Source, check_digest, find, short
from fedjax_het.data.untrusted import read
from fedjax_het.errors import DataError

RECORD = 1 + 3 * 32 * 32
BATCH = 10_000 * RECORD  # bytes
SHIPPED = 50_000, 10_000

# md5 of the uncompressed batches, as published with the data set.
MD5 = {
  "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
  "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
  "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
  "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
  "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
  "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
}


def parse_batch(path: Path, content: bytes) -> tuple[np.ndarray, np.ndarray]:
  """Images [n, 32, 32, 3] uint8 and labels [n] int32 in the decompressed `content` of the batch `path`.

  Raises:
    DataError: not a whole number of records, none at all, or a label above 9.
  """
  if not content or len(content) % RECORD:
    raise DataError(
      f"{path.resolve()} is truncated or damaged: {len(content)} bytes are not whole records of {RECORD}."
    )
  records = np.frombuffer(content, np.uint8).reshape(-1, RECORD)
  if records[:, 0].max() > 9:
    raise DataError(f"{path.resolve()} is not a CIFAR-10 batch: it has the label {records[:, 0].max()}.")
  images = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
  return np.ascontiguousarray(images), records[:, 0].astype(np.int32)


def load_cifar10(folder: Path) -> Source | None:
  """CIFAR-10 from the batches in `folder` (or its cifar-10-batches-bin/): images [N, 32, 32, 3], uint8.

  The training set is whichever of the five batches are there, in order; the test set is test_batch.bin,
  else the longest `test_batch_first<n>.bin` (its first n records, which have no published checksum), else
  empty. `Source.files` says which, `Source.notes` how many images of how many where some are not there.

  Returns:
    The data set, or None where no training batch is there.

  Raises:
    DataError: a batch that is truncated or not the one its authors ship.
  """
  folder = next((f for f in (folder, folder / "cifar-10-batches-bin") if _training_batches(f)), folder)
  train = _training_batches(folder)
  if not train:
    return None
  test = find(folder, "test_batch.bin") or max(
    folder.glob("test_batch_first*.bin*"), key=_first, default=None
  )
  batches = [_load_batch(path) for path in train]
  tests = [_load_batch(path) for path in [test] if path]
  x, y = (np.concatenate(arrays) for arrays in zip(*batches))
  x_test, y_test = tests[0] if tests else (x[:0], y[:0])
  files = tuple(path.name for path in [*train, test] if path)
  notes = (
    *short(f"training images ({len(train)} of five batches)", len(y), SHIPPED[0]),
    *short("test images", len(y_test), SHIPPED[1]),
  )
  return Source(x, y, x_test, y_test, 10, "cifar10", None, files, notes)


def _training_batches(folder: Path) -> list[Path]:
  return [path for i in range(1, 6) if (path := find(folder, f"data_batch_{i}.bin"))]


def _first(path: Path) -> int:
  """n of test_batch_first<n>.bin[.gz], 0 for any other name."""
  match = re.fullmatch(r"test_batch_first(\d+)\.bin(\.gz)?", path.name)
  return int(match[1]) if match else 0


def _load_batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
  content = read(path, 2 * BATCH)[1]
  x, y = parse_batch(path, content)
  if first := _first(path):
    if len(y) != first:
      raise DataError(f"{path.resolve()} is truncated or damaged: {len(y)} records, not {first}.")
  else:
    check_digest(path, content, "md5", MD5[path.name.removesuffix(".gz")])
  return x, y
