"""ISIC 2019: 23,247 dermatoscopic images of eight kinds of skin lesion. Six hospitals are the clients.

ISIC_2019_Training_GroundTruth.csv has a column of zeros and ones for each kind;
ISIC_2019_Training_Metadata.csv has image, age_approx, anatom_site_general, lesion_id and sex. The prefix of
an image's lesion_id gives its hospital: BCN_ and MSK4 are one hospital each, and HAM_ is divided into the
four sources of HAM10000's table. Images without a lesion_id are left out: 23,247 of 25,331 stay. Sources:
Ogier du Terrail et al., FLamby, NeurIPS 2022; Tschandl et al. 2018; Codella et al. 2018; Combalia et al.
2019.
"""

from collections import Counter
from pathlib import Path

import numpy as np

from fedjax_het.data.files import Source, check_rows, find, named_rows, text_of
from fedjax_het.data.ham10000 import find_jpegs, read_jpegs, read_metadata
from fedjax_het.data.untrusted import read
from fedjax_het.errors import DataError, check_whole

KINDS = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
TRUTH, METADATA = "ISIC_2019_Training_GroundTruth.csv", "ISIC_2019_Training_Metadata.csv"
ROWS = 25_331
HOSPITALS = {"BCN_": "BCN", "MSK4": "MSK", "HAM_": "HAM"}
DAMAGED = "ISIC_0029564"  # the image that AAggFF's code leaves out


def load_isic2019(
  folder: Path, size: int = 200, complete: bool = False, constancy: bool = False
) -> Source | None:
  """Loads images, uint8 [23247, size, size, 3], and the kind of lesion, int32, an index of `KINDS`.

  `groups` are the hospitals.

  The short side is resized to 1.12 times `size` pixels (224 for 200), and the middle is kept, without
  augmentation. Some kinds are rare: `--config.task.class_weights=balanced` weighs all kinds equally.

  Args:
    folder: the folder with the two tables, HAM10000_metadata, and the images ISIC_*.jpg in subfolders or
      archives.
    size: height and width of the images in pixels.
    complete: whether to leave out images whose age, site or sex is missing, and ISIC_0029564, as AAggFF's
      code does: 21,310 stay.
    constancy: whether to apply FLamby's colour constancy, see `evened`.

  Returns:
    The data set, or None where the folder has no ISIC_2019_Training_GroundTruth.csv.

  Raises:
    DataError: a table is missing or differs from what its authors ship, or an image is missing or damaged.
    SettingError: `size` is below 1.
  """
  check_whole("size", size, 1)
  truth = find(folder, TRUTH)
  if truth is None:
    return None
  metadata, ham = find(folder, METADATA), read_metadata(folder)
  if metadata is None or ham is None or "dataset" not in ham[1][0]:
    missing = METADATA if metadata is None else "HAM10000_metadata with the column dataset"
    raise DataError(f"isic2019 wants {missing} too; looked in {folder.resolve()}.")
  source_of = {row["image_id"]: row["dataset"] for row in ham[1]}
  kinds = {_image(row): _kind(truth, row) for row in _table(truth, ("image", *KINDS))}
  images, groups = [], []
  for row in _table(metadata, ("image", "lesion_id", "age_approx", "anatom_site_general")):
    image, hospital = _image(row), HOSPITALS.get(row["lesion_id"][:4])
    if not row["lesion_id"] or (complete and (not all(row.values()) or image == DAMAGED)):
      continue
    if hospital is None or image not in kinds or (hospital == "HAM" and not source_of.get(image, "").strip()):
      raise DataError(
        f"{metadata.resolve()} is not what its authors ship: {image}, lesion {row['lesion_id']!r}."
      )
    images.append(image)
    groups.append(f"HAM_{source_of[image]}" if hospital == "HAM" else hospital)
  place, files = find_jpegs(folder)
  x = read_jpegs(place, files, images, size, round(1.12 * size))
  if constancy:
    for i, picture in enumerate(x):
      x[i] = evened(picture)
  y = np.array([kinds[image] for image in images], np.int32)
  counts = ", ".join(f"{name} {count}" for name, count in sorted(Counter(groups).items()))
  notes = (f"{len(y)} images: {counts}; {ROWS - len(y)} left out",)
  return Source(
    x, y, x[:0], y[:0], len(KINDS), "isic2019", np.array(groups),
    (truth.name, metadata.name, ham[0].name, place.name), notes,
  )  # fmt: skip


def evened(picture: np.ndarray, order: int = 6) -> np.ndarray:
  """Applies shades-of-grey colour constancy: x_c · |m| / (√3 m_c) with m_c = (mean of x_c^p)^(1/p).

  Finlayson and Trezzi, "Shades of gray and colour constancy", 2004.

  Args:
    picture: uint8 [H, W, 3].
    order: the order p of the power mean.

  Returns:
    The image, uint8 [H, W, 3].
  """
  means = (picture.astype(np.float64) ** order).mean((0, 1)) ** (1 / order)
  gains = np.linalg.norm(means) / (np.sqrt(3) * np.maximum(means, 1e-6))
  return np.minimum(picture * gains, 255).astype(np.uint8)


def _table(path: Path, columns: tuple[str, ...]) -> list[dict[str, str]]:
  rows = named_rows(path.resolve(), text_of(path.resolve(), read(path)[1]))
  check_rows(path, len(rows), ROWS)
  if not {*columns} <= {*rows[0]} or any(None in row.values() or None in row for row in rows):
    raise DataError(
      f"{path.resolve()} is not what its authors ship: it wants the columns {', '.join(columns)}."
    )
  return rows


def _image(row: dict[str, str]) -> str:
  return row["image"].removesuffix("_downsampled")


def _kind(path: Path, row: dict[str, str]) -> int:
  marks = [row[kind].strip() for kind in KINDS]
  if [mark in ("1", "1.0") for mark in marks].count(True) != 1:
    raise DataError(f"{path.resolve()} is not what its authors ship: {row['image']} is not of one kind.")
  return next(c for c, mark in enumerate(marks) if mark in ("1", "1.0"))
