"""CIFAR-100 from the authors' two binary files or two Python pickles: 100 classes in 20 groups of five.

A record of train.bin and test.bin is a coarse and a fine label byte, then 1024 red, 1024 green and 1024 blue
bytes, row by row. A pickle is a dictionary with `data`, uint8 [N, 3072] in the same order, `fine_labels` and
`coarse_labels` (Krizhevsky 2009).
"""

from pathlib import Path
from typing import Any

import numpy as np

from fedjax_het.data.cifar import images_of, records_of
from fedjax_het.data.files import Source, check_digest, check_rows, find
from fedjax_het.data.untrusted import read, read_pickle
from fedjax_het.errors import DataError, check_choice, reading

RECORD = 2 + 3 * 32 * 32
ROWS = {"train": 50_000, "test": 10_000}
MD5 = {  # published checksums of the pickles; there are none of the binary files' contents
  "train": "16019d7e3df5f24257cddd939b257f8d",
  "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
}
CLASSES = {"fine": 100, "coarse": 20}
FOLDERS = ("", "cifar-100-binary", "cifar-100-python")


def load_cifar100(folder: Path, labels: str = "fine") -> Source | None:
  """Loads CIFAR-100: 50,000 training and 10,000 test images, uint8 [N, 32, 32, 3], and their classes, int32.

  Args:
    folder: the folder with train.bin and test.bin (.gz or not) or with the pickles train and test. They may
      also be in the authors' folder inside it or next to it, where torchvision puts them.
    labels: "fine", 100 classes, or "coarse", the 20 groups of five.

  Returns:
    The data set, or None where neither pair is there.

  Raises:
    SettingError: `labels` is neither "fine" nor "coarse".
    DataError: a file is truncated, differs from what its authors ship, or is missing while the other one is
      present.
  """
  check_choice("labels", labels, CLASSES)
  for own in (*(folder / name for name in FOLDERS), *(folder.parent / name for name in FOLDERS[1:])):
    for ending, parse in ((".bin", _binary), ("", _pickled)):
      paths = {part: path for part in ROWS if (path := find(own, part + ending)) and path.is_file()}
      if not paths:
        continue
      if len(paths) == 1:
        (missing,) = {*ROWS} - {*paths}
        raise DataError(f"cifar100 wants {missing}{ending} too; looked in {own.resolve()}.")
      train, test = (_part(paths[part], part, parse, labels) for part in ROWS)
      files = tuple(path.name for path in paths.values())
      return Source(*train, *test, CLASSES[labels], "cifar100", None, files)
  return None


def _part(path: Path, part: str, parse: Any, labels: str) -> tuple[np.ndarray, np.ndarray]:
  """Returns the images and classes of the training or the test set; raises `DataError`."""
  pixels, classes = parse(path, part)
  check_rows(path, len(pixels), ROWS[part])
  for name, count in CLASSES.items():
    if classes[name].shape != (len(pixels),) or classes[name].max() >= count or classes[name].min() < 0:
      raise DataError(
        f"{path.resolve()} is not CIFAR-100: its {name} labels are not {len(pixels)} below {count}."
      )
  return images_of(pixels), classes[labels].astype(np.int32)


def _binary(path: Path, part: str) -> tuple[np.ndarray, dict[str, np.ndarray]]:
  content = read(path, 2 * RECORD * ROWS[part])[1]
  records = records_of(path, content, RECORD)
  return records[:, 2:], {"coarse": records[:, 0], "fine": records[:, 1]}


def _pickled(path: Path, part: str) -> tuple[np.ndarray, dict[str, np.ndarray]]:
  content = read(path, 2 * RECORD * ROWS[part])[1]
  check_digest(path, content, "md5", MD5[part])
  found = read_pickle(path.resolve(), content)
  with reading(path.resolve(), "is not a pickle of CIFAR-100"):
    pixels = np.asarray(found[b"data"])
    classes = {name: np.asarray(found[f"{name}_labels".encode()]) for name in CLASSES}
  if pixels.dtype != np.uint8 or pixels.shape[1:] != (RECORD - 2,):
    raise DataError(f"{path.resolve()} is not CIFAR-100: its data are {pixels.dtype} {pixels.shape}.")
  return pixels, classes
