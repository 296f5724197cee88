"""CIFAR-10 from any of the authors' binary batches, compressed or not, or from their Python pickles.

A record of a binary batch is one label byte, then 1024 red, 1024 green and 1024 blue bytes, row by row. A
pickle is a dictionary with `data`, uint8 [10000, 3072] in the same order, and `labels` (Krizhevsky 2009).
"""

import re
from pathlib import Path

import numpy as np

from fedjax_het.data.files import Source, check_digest, find, short
from fedjax_het.data.untrusted import read, read_pickle
from fedjax_het.errors import DataError, reading

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

# md5 of the pickles, which torchvision reads, as published with the data set.
PICKLED = {
  "data_batch_1": "c99cafc152244af753f735de768cd75f",
  "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
  "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
  "data_batch_4": "634d18415352ddfa80567beed471001a",
  "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
  "test_batch": "40351d587109b95175f43aff81a1287e",
}


def parse_batch(path: Path, content: bytes) -> tuple[np.ndarray, np.ndarray]:
  """Decodes the content of the batch `path` into images, uint8 [n, 32, 32, 3], and labels, int32 [n].

  Raises:
    DataError: the content has no record, a fraction of a record, or a label above 9.
  """
  records = records_of(path, content, RECORD)
  if records[:, 0].max() > 9:
    raise DataError(f"{path.resolve()} is not a CIFAR-10 batch: it has the label {records[:, 0].max()}.")
  return images_of(records[:, 1:]), records[:, 0].astype(np.int32)


def records_of(path: Path, content: bytes, size: int) -> np.ndarray:
  """Splits the content of the file `path` into records of `size` bytes, uint8 [n, size], n > 0."""
  if not content or len(content) % size:
    raise DataError(
      f"{path.resolve()} is truncated or damaged: {len(content)} bytes are not whole records of {size}."
    )
  return np.frombuffer(content, np.uint8).reshape(-1, size)


def images_of(pixels: np.ndarray) -> np.ndarray:
  """Converts rows of red, green and blue planes, uint8 [n, 3072], to images, uint8 [n, 32, 32, 3]."""
  return np.ascontiguousarray(pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def load_cifar10(folder: Path) -> Source | None:
  """Loads CIFAR-10 from the batches in `folder`: images, uint8 [N, 32, 32, 3], and labels, int32 [N].

  The batches may also be in the subfolder cifar-10-batches-bin/ or, as pickles, in cifar-10-batches-py/, or
  in siblings of `folder` with these names, where torchvision puts them.

  The training set is whichever of the five batches are there, in order; the test set is test_batch.bin, else
  the longest `test_batch_first<n>.bin` (its first n records, which have no published checksum), else empty.
  `Source.files` names the batches, and `Source.notes` says how many images are missing.

  Returns:
    The data set, or None where no training batch is there.

  Raises:
    DataError: a batch is truncated or differs from what its authors ship.
  """
  names = ("cifar-10-batches-bin", "cifar-10-batches-py")
  places = (folder, *(own / name for own in (folder, folder.parent) for name in names))
  folder = next((place for place in places if _training_batches(place)), folder)
  train = _training_batches(folder)
  if not train:
    return None
  test = find(folder, "test_batch.bin" if ".bin" in train[0].name else "test_batch")
  test = test or max(folder.glob("test_batch_first*.bin*"), key=_first, default=None)
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
  """Returns the training batches that exist, as binary files if there are any, else as pickles."""
  found = ([find(folder, f"data_batch_{i}{ending}") for i in range(1, 6)] for ending in (".bin", ""))
  return next((own for paths in found if (own := [path for path in paths if path])), [])


def _first(path: Path) -> int:
  """Returns n of the file name test_batch_first<n>.bin[.gz], and 0 for any other name."""
  match = re.fullmatch(r"test_batch_first(\d+)\.bin(\.gz)?", path.name)
  return int(match[1]) if match else 0


def _load_batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
  content = read(path, 2 * BATCH)[1]
  if (name := path.name.removesuffix(".gz")) in PICKLED:
    check_digest(path, content, "md5", PICKLED[name])
    found = read_pickle(path.resolve(), content)
    with reading(path.resolve(), "is not a pickle of CIFAR-10"):
      labels, pixels = np.asarray(found[b"labels"]), np.asarray(found[b"data"])
      if (
        pixels.dtype != np.uint8 or pixels.shape != (len(labels), RECORD - 1) or labels.dtype.kind not in "iu"
      ):
        raise ValueError(f"its data are {pixels.dtype} {pixels.shape}, of {len(labels)} labels")
    return parse_batch(path, np.concatenate([labels.astype(np.uint8)[:, None], pixels], axis=1).tobytes())
  x, y = parse_batch(path, content)
  if first := _first(path):
    if len(y) != first:
      raise DataError(f"{path.resolve()} is truncated or damaged: {len(y)} records, not {first}.")
  else:
    check_digest(path, content, "md5", MD5[path.name.removesuffix(".gz")])
  return x, y
