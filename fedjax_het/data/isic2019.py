"""ISIC 2019: eight kinds of skin lesion from six hospitals, by FLamby's rule.

ISIC_2019_Training_GroundTruth.csv has a column of 0 and 1 a kind; ISIC_2019_Training_Metadata.csv has image,
age_approx, anatom_site_general, lesion_id and sex. Where an image comes from says its lesion: BCN_ and MSK4
are a hospital each, HAM_ is cut into the four sources of HAM10000's table. Images without a lesion are left
out: 23,247 of 25,331 stay. Sources: Ogier du Terrail et al., FLamby, NeurIPS 2022; Tschandl et al. 2018;
Codella et al. 2018; Combalia et al. 2019.
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
DAMAGED = "ISIC_0029564"  # whose file AAggFF's code leaves out


def load_isic2019(
  folder: Path, size: int = 200, complete: bool = False, constancy: bool = False
) -> Source | None:
  """Images uint8 [23247, size, size, 3] and their kind, a number of `KINDS`; `groups` are the hospitals.

  The short side is brought to 1.12 times `size` pixels (224 for 200) and the middle kept. Nothing is
  augmented. Kinds are unequal: `--config.task.class_weights=balanced` lets all count alike.

  Args:
    folder: where the two tables, HAM10000_metadata and the images ISIC_*.jpg are, in folders or archives.
    size: height and width.
    complete: leave out images whose age, site or sex is missing, and ISIC_0029564, as AAggFF's code does:
      21,310 stay.
    constancy: even out the light as FLamby does: each colour is divided by its own power mean of order six.

  Returns:
    The data set, or None where the table of the kinds is not there.

  Raises:
    DataError: a table missing beside another, or not what its authors ship; an image missing or damaged.
    SettingError: a size below 1.
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
    if hospital is None or image not in kinds or (hospital == "HAM" and image not in source_of):
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
  """Shades of grey (Finlayson and Trezzi 2004): x_c · |m| / (√3 m_c); m_c = (mean of x_c^6)^(1/6).

  Args:
    picture: uint8 [H, W, 3].
    order: of the power mean.
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
