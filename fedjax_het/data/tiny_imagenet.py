"""TinyImageNet: 200 classes of ImageNet at 64 x 64 pixels, in the official layout.

wnids.txt names a class on each line; train/WNID/images/*.JPEG are the training images;
val/val_annotations.txt has a line "file, class, box" for each of val/images/*.JPEG. The test set has no
labels and is not read. Source: Stanford's CS231n (2015), after Deng et al., ImageNet, CVPR 2009.
"""

from collections import Counter
from pathlib import Path

import numpy as np

from fedjax_het.data.files import Source, text_of
from fedjax_het.data.images import as_is, read_images
from fedjax_het.data.packed import locate, names, read_one
from fedjax_het.errors import DataError

CLASSES, SIZE = 200, 64
EACH = {"train": 500, "val": 50}


def load_tiny_imagenet(folder: Path) -> Source | None:
  """Loads up to 100,000 images, uint8 [N, 64, 64, 3], and their classes, int32 [N].

  Grey images become RGB, and the 10,000 validation images are the test set.

  Classes are numbered in the order of wnids.txt. Some of the images may be missing, as long as each class has
  a training image: `Source.notes` says how many there are of each class.

  Args:
    folder: the folder with the official layout, at any depth, or with an archive of it (.zip, .tar.gz, ...).

  Returns:
    The data set, or None where there is no wnids.txt.

  Raises:
    DataError: a class has no training image, a listed image is missing, an image is damaged or has another
      size, or a list differs from what its authors ship.
  """
  found = locate(folder, "/wnids.txt")
  if found is None:
    return None
  place, (listed, *_) = found
  root = listed.removesuffix("wnids.txt")
  classes = text_of(f"{place.resolve()}: {listed}", read_one(place, listed)).split()
  if len(classes) != CLASSES or len(set(classes)) != CLASSES:
    raise DataError(f"{place.resolve()}: {listed} names {len(set(classes))} classes, not {CLASSES}.")
  number = {name: c for c, name in enumerate(classes)}
  files = names(place)
  train = {
    name: number[path[1]]
    for name in files
    if (path := name.removeprefix(root).split("/"))[0] == "train" and path[-1].endswith(".JPEG")
    and path[1] in number
  }  # fmt: skip
  empty = sorted({*classes} - {classes[c] for c in train.values()})
  if empty:
    raise DataError(f"{place.resolve()}: no training image of {empty[0]}, which {listed} names.")
  test = _validation(place, files, root, number)
  x, x_test = (
    read_images(place, {name: i for i, name in enumerate(part)}, SIZE, as_is) for part in (train, test)
  )
  y, y_test = (np.array(list(part.values()), np.int32) for part in (train, test))
  notes = tuple(
    f"{len(own)} {part} images, {_span(own)} of each class of {EACH[part]}"
    for part, own in (("train", y), ("val", y_test))
    if len(own) != CLASSES * EACH[part]
  )
  return Source(x, y, x_test, y_test, CLASSES, "tiny_imagenet", None, (place.name,), notes)


def _validation(place: Path, files: list[str], root: str, number: dict[str, int]) -> dict[str, int]:
  """Maps the validation images to their classes; {} if val_annotations.txt is missing."""
  listed = f"{root}val/val_annotations.txt"
  if listed not in files:
    return {}
  test = {}
  for line in text_of(f"{place.resolve()}: {listed}", read_one(place, listed)).splitlines():
    fields = line.split("\t")
    if len(fields) != 6 or fields[1] not in number:
      raise DataError(f"{place.resolve()}: {listed} is not what its authors ship: {line[:60]!r}.")
    test[f"{root}val/images/{fields[0]}"] = number[fields[1]]
  return test


def _span(y: np.ndarray) -> str:
  counts = Counter(y.tolist()).values()
  low, high = min(counts, default=0), max(counts, default=0)
  return f"{low}" if low == high else f"{low} to {high}"
