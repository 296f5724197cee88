"""DermaMNIST, OrganCMNIST and BloodMNIST from MedMNIST's .npz files (Yang et al., Scientific Data 2023).

Each file has the arrays `train_images`, `val_images`, `test_images`, uint8 [N, size, size] or [N, size, size,
3], and `..._labels`, [N, 1]. Clients get the training rows; the validation rows are left out.
"""

from pathlib import Path

import numpy as np

from fedjax_het.data.files import Source, short
from fedjax_het.data.untrusted import read_arrays
from fedjax_het.errors import DataError, SettingError

CLASSES = {"dermamnist": 7, "organcmnist": 11, "bloodmnist": 8}
ROWS = {"dermamnist": (7007, 2005), "organcmnist": (12_975, 8216), "bloodmnist": (11_959, 3421)}
SIZES = (28, 64, 128, 224)


def file_name(name: str, size: int) -> str:
  """Returns MedMNIST's file name of a data set at an image size."""
  return f"{name}.npz" if size == 28 else f"{name}_{size}.npz"


def load_medmnist(name: str, folder: Path, size: int = 64) -> Source | None:
  """Loads `folder`/NAME_SIZE.npz: images, uint8 [N, size, size, 1 or 3], and labels, int32 [N].

  Returns None where there is no such file.

  Args:
    name: a key of `CLASSES`.
    folder: where the files are.
    size: height and width in pixels, one of `SIZES`; the thesis uses 64.

  Raises:
    SettingError: MedMNIST does not ship this size.
    DataError: the file is damaged, lacks an array, or has an array of another shape or type or a label out of
      range.
  """
  if size not in SIZES:
    raise SettingError("size", size, "not a size that MedMNIST ships", f"Use one of {SIZES}.")
  path = folder / file_name(name, size)
  if not path.is_file():
    return None
  names = {f"{part}_{what}" for part in ("train", "test") for what in ("images", "labels")} | {"val_labels"}
  arrays = read_arrays(path, 2 * sum(ROWS[name]) * (3 * size * size + 8), names)
  train, test = (_part(path, arrays, part, size, CLASSES[name]) for part in ("train", "test"))
  if train[0].shape[1:] != test[0].shape[1:]:
    raise DataError(f"{path}: training images are {train[0].shape[1:]}, test images {test[0].shape[1:]}.")
  left = np.size(arrays.get("val_labels", ()))
  rows = zip(("training", "test"), (train, test), ROWS[name])
  notes = [note for what, (_, y), shipped in rows for note in short(f"{what} images", len(y), shipped)]
  return Source(
    *train, *test, CLASSES[name], name, files=(str(path),),
    notes=(*notes, *([f"{left} validation rows are left out."] if left else [])),
  )  # fmt: skip


def _part(
  path: Path, arrays: dict[str, np.ndarray], part: str, size: int, num_classes: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns one part's images, [N, size, size, 1 or 3], and labels, int32 [N]; raises `DataError`."""
  missing = [key for key in (f"{part}_images", f"{part}_labels") if key not in arrays]
  if missing:
    raise DataError(f"{path} is not a MedMNIST file: it has no {missing[0]}, only {', '.join(arrays)}.")
  x, y = arrays[f"{part}_images"], arrays[f"{part}_labels"].reshape(-1)
  if y.dtype.kind not in "iu":
    raise DataError(f"{path}: {part}_labels are {y.dtype}, not whole numbers.")
  x = x[..., None] if x.ndim == 3 else x
  if x.dtype != np.uint8 or x.shape[1:3] != (size, size) or x.shape[3:] not in ((1,), (3,)):
    raise DataError(f"{path}: {part}_images are {x.dtype} {x.shape}, not uint8 [N, {size}, {size}(, 3)].")
  if len(x) != len(y) or not len(y) or not (y.min() >= 0 and y.max() < num_classes):
    raise DataError(
      f"{path}: {len(x)} {part} images, {len(y)} labels from {y.min(initial=0)} to {y.max(initial=0)}, but"
      f" there are {num_classes} classes from 0."
    )
  return x, y.astype(np.int32)
