"""HAM10000: 10,015 dermatoscopic images of 7,470 skin lesions of seven kinds, from four sources.

HAM10000_metadata.csv has a row for each image with the columns lesion_id, image_id, dx, dx_type, age, sex and
localization; the version on Harvard's Dataverse also has `dataset`, the image's source. Source: Tschandl,
Rosendahl and Kittler, The HAM10000 dataset, Scientific Data 2018. DermaMNIST is made from these images, and
ISIC 2019 contains them.
"""

import functools
from pathlib import Path

import numpy as np

from fedjax_het.data.files import Source, check_rows, named_rows, text_of
from fedjax_het.data.images import middle, read_images
from fedjax_het.data.packed import locate, read_one
from fedjax_het.errors import DataError, check_whole

KINDS = ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")
COLUMNS = ("lesion_id", "image_id", "dx")
ROWS = 10_015


def load_ham10000(folder: Path, size: int = 64, one_per_lesion: bool = False) -> Source | None:
  """Loads images, uint8 [10015, size, size, 3], and the kind of lesion, int32 [10015], an index of `KINDS`.

  `groups` are the sources (rosendahl, vidir_modern, vidir_molemax, vienna_dias) where the table has the
  column `dataset`. Several images show the same lesion, so a random split of the images puts some lesions
  both into training and test data.

  Args:
    folder: the folder with HAM10000_metadata (.csv, .tab or without an ending) and the images ISIC_*.jpg,
      which may lie in subfolders or archives.
    size: height and width in pixels; the short side is resized to it, and the middle is kept.
    one_per_lesion: whether to load only the first image of each lesion.

  Returns:
    The data set, or None where there is no table.

  Raises:
    DataError: the table differs from what its authors ship, or an image is missing or damaged.
    SettingError: `size` is below 1.
  """
  check_whole("size", size, 1)
  table = read_metadata(folder)
  if table is None:
    return None
  path, rows = table
  check_rows(path, len(rows), ROWS)
  if one_per_lesion:
    rows = list({row["lesion_id"]: row for row in reversed(rows)}.values())[::-1]
  for row in rows:
    if row["dx"] not in KINDS:
      raise DataError(
        f"{path.resolve()} is not what its authors ship: dx {row['dx']!r} of {row['image_id']}."
      )
    if not row.get("dataset", "some").strip():
      raise DataError(f"{path.resolve()} does not say who took {row['image_id']}: its dataset is empty.")
  place, files = find_jpegs(folder)
  x = read_jpegs(place, files, [row["image_id"] for row in rows], size)
  y = np.array([KINDS.index(row["dx"]) for row in rows], np.int32)
  groups = np.array([row["dataset"] for row in rows]) if "dataset" in rows[0] else None
  lesions = len({row["lesion_id"] for row in rows})
  notes = (
    f"{len(y)} images of {lesions} lesions"
    + ("" if len(y) == lesions else ", which a random split of the images separates"),
  )
  return Source(x, y, x[:0], y[:0], len(KINDS), "ham10000", groups, (path.name, place.name), notes)


def read_metadata(folder: Path) -> tuple[Path, list[dict[str, str]]] | None:
  """Finds HAM10000's table in a folder or an archive in it; returns its place and its rows by column name.

  Raises:
    DataError: the table lacks one of `COLUMNS`, or a row has another number of fields.
  """
  endings = "/ham10000_metadata", "/ham10000_metadata.csv", "/ham10000_metadata.tab"
  found = next((found for ending in endings if (found := locate(folder, ending))), None)
  if found is None:
    return None
  place, (name, *_) = found
  where = f"{place.resolve()}: {name}"
  text = text_of(where, read_one(place, name))
  rows = named_rows(where, text, "\t" if "\t" in text[:200] else ",")
  if not rows or not {*COLUMNS} <= {*rows[0]} or any(None in row.values() or None in row for row in rows):
    raise DataError(f"{where} is not what its authors ship: it wants the columns {', '.join(COLUMNS)}.")
  return place / name if place.is_dir() else place, rows


def find_jpegs(folder: Path) -> tuple[Path, dict[str, str]]:
  """Finds the images ISIC_*.jpg: returns the folder or archive, and a map from image names to files in it.

  Raises:
    DataError: there are no such images.
  """
  found = locate(folder, ".jpg")
  if found is None:
    raise DataError(f"No images ISIC_*.jpg, in folders or archives: looked in {folder.resolve()}.")
  place, files = found
  return place, {Path(name).stem.removesuffix("_downsampled"): name for name in files}


def read_jpegs(
  place: Path, files: dict[str, str], images: list[str], size: int, short: int | None = None
) -> np.ndarray:
  """Reads the named images, cropped to their middle by `middle`, uint8 [N, size, size, 3].

  Raises:
    DataError: an image is missing or damaged.
  """
  absent = [image for image in images if image not in files]
  if absent:
    raise DataError(
      f"{place.resolve()}: {absent[0]}.jpg is missing, one of {len(absent)} missing images."
      " Of several archives unpack all into one folder."
    )
  prepare = functools.partial(middle, size=size, short=short)
  return read_images(place, {files[image]: i for i, image in enumerate(images)}, size, prepare)
