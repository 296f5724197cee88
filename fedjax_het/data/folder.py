"""A folder of one's own images: a folder for each class, or for each client with folders for its classes."""

import os
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
from PIL import Image

from fedjax_het.data.container import FederatedData
from fedjax_het.data.files import Source, below
from fedjax_het.data.own import of_source
from fedjax_het.data.untrusted import open_image, read
from fedjax_het.errors import DataError, check_memory, folder_of, reading
from fedjax_het.settings import Choice, Count, checked

FORMATS = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG"}


def from_folder(
  folder: str | os.PathLike[str], *, key: jax.Array | None = None, size: int | None = None,
  colour: str = "rgb", **settings: Any,
) -> FederatedData:  # fmt: skip
  """Makes clients of a folder's images, CLASS/*.jpg, dealt out by a partition, or CLIENT/CLASS/*.jpg.

  Args:
    folder: the folder.
    key: typed key of the partition and the splits; by default `jax.random.key(0)`.
    size, colour: see `read_folder`.
    **settings: those of `from_arrays` (`num_clients`, ...), or `from_groups` where clients have folders.

  Raises:
    SettingError: a setting is unknown or does not fit.
    DataError: the folder has no images, or not one folder for each class, or an image is damaged.
  """
  return of_source(key, read_folder(folder_of("folder", folder), size=size, colour=colour), **settings)


@checked
def read_folder(
  folder: Path, size: Count | None = None, colour: Annotated[str, Choice(("rgb", "grey"))] = "rgb"
) -> Source:
  """Reads a folder of JPEG or PNG images, CLASS/*.jpg or CLIENT/CLASS/*.jpg, uint8 [N, H, W, 3] or [.., 1].

  Args:
    folder: the folder.
    size: height and width to which images are resized; None keeps theirs, which must then all be equal.
    colour: "rgb" or "grey".
  """
  where = folder.resolve()
  if not folder.is_dir():
    raise DataError(f"{where}: no such folder.")
  with reading(where):
    paths = sorted(path for path in below(folder) if path.suffix.lower() in FORMATS)
  parts = [path.relative_to(folder).parts for path in paths]
  wanted = "Images belong in CLASS/NAME.jpg or CLIENT/CLASS/NAME.jpg"
  if not paths:
    raise DataError(f"{where} has no .jpg or .png. {wanted}.")
  for path, own in zip(paths, parts):
    if not 2 <= len(own) <= 3 or len(own) != len(parts[0]):
      raise DataError(f"{path.resolve()} does not lie as {Path(*parts[0])} does, or in no class. {wanted}.")
  labels, y = np.unique([own[-2] for own in parts], return_inverse=True)
  if len(labels) == 1:
    raise DataError(f"{where} has one class, {str(labels[0])!r}. {wanted}.")
  first = _image(paths[0], size, colour)
  check_memory(
    "size", size or max(first.shape), len(paths) * first.nbytes, f"{len(paths)} images of {first.shape}"
  )
  x = np.empty((len(paths), *first.shape), np.uint8)
  for i, path in enumerate(paths):
    image = _image(path, size, colour)
    if image.shape != first.shape:
      height, width, _ = image.shape
      raise DataError(
        f"{path.resolve()} has {width} x {height} pixels, and {paths[0].name} {first.shape[1]} x"
        f" {first.shape[0]}. Resize all by size=N."
      )
    x[i] = image
  groups = np.array([own[0] for own in parts]) if len(parts[0]) == 3 else None
  y = y.reshape(-1).astype(np.int32)
  return Source(
    x, y, x[:0], y[:0], len(labels), where.name, groups, (str(where),), labels=tuple(labels.tolist())
  )


def _image(path: Path, size: int | None, colour: str) -> np.ndarray:
  with reading(path.resolve(), "is no image, or a damaged one"):
    return pixels_of(open_image(read(path)[0], (FORMATS[path.suffix.lower()],)), size, colour)


def pixels_of(picture: Image.Image, size: int | None, colour: str) -> np.ndarray:
  """Returns an image as bytes, uint8 [H, W, 3] or for "grey" [H, W, 1], resized if a size is given."""
  picture = picture.convert("RGB" if colour == "rgb" else "L")
  if size is not None:
    picture = picture.resize((size, size))
  pixels = np.asarray(picture)
  return pixels if pixels.ndim == 3 else pixels[..., None]
