"""Reading of image files: decoded by Pillow, resized to one size, and stacked into an array."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

from fedjax_het.data.packed import contents
from fedjax_het.data.untrusted import MOST_PIXELS, check_pixels, open_image
from fedjax_het.errors import DataError, SettingError, check_memory, reading

_BLOCK = 256  # files that are read ahead, at most; and at most _BYTES in total
_BYTES = 2**28


def read_images(
  place: Path, rows: Mapping[str, int], size: int, prepare: Callable[[Image.Image], Image.Image]
) -> np.ndarray:
  """Reads images (JPEG) of a folder or an archive as RGB, uint8 [N, size, size, 3].

  Args:
    place: the folder or archive.
    rows: map from the names of the N files to read to their rows, 0 to N - 1, in the result.
    size: height and width of the images that `prepare` returns, in pixels.
    prepare: function that resizes or crops an RGB image to that size.

  Raises:
    SettingError: the images would not fit in memory at this size.
    DataError: a file is missing, is no image, or has another size after `prepare`; the first such file is
      named.
  """
  what = f"{len(rows)} images of {size} x {size} pixels"
  check_memory("size", size, len(rows) * size * size * 3, what)
  if size * size > MOST_PIXELS:
    raise SettingError("size", size, f"{what} have more than {MOST_PIXELS:,} each", "Choose a smaller one.")
  x = np.empty((len(rows), size, size, 3), np.uint8)
  done = np.zeros(len(rows), bool)

  def decode(file: tuple[str, bytes]) -> None:
    name, content = file
    with reading(f"{place.resolve()}: {name}", "is no picture (JPEG), or a damaged one"):
      picture = np.asarray(prepare(open_image(content).convert("RGB")))
    if picture.shape != x.shape[1:]:
      height, width, _ = picture.shape
      raise DataError(f"{place.resolve()}: {name} has {width} x {height} pixels, not {size} x {size}.")
    x[rows[name]] = picture
    done[rows[name]] = True

  files = contents(place, rows)
  with ThreadPoolExecutor() as pool:
    block: list[tuple[str, bytes]] = []
    for file in files:
      block.append(file)
      if len(block) == _BLOCK or sum(len(content) for _, content in block) > _BYTES:
        list(pool.map(decode, block))
        block.clear()
    list(pool.map(decode, block))
  if not done.all():
    missing = next(name for name, row in rows.items() if not done[row])
    raise DataError(f"{place.resolve()}: {missing} is missing, one of {(~done).sum()} missing images.")
  return x


def as_is(picture: Image.Image) -> Image.Image:
  """Returns the image unchanged."""
  return picture


def squeezed(picture: Image.Image, size: int) -> Image.Image:
  """Resizes the whole image to size x size pixels, bilinearly, without keeping its proportions."""
  return picture.resize((size, size), Image.Resampling.BILINEAR)


def middle(picture: Image.Image, size: int, short: int | None = None) -> Image.Image:
  """Resizes the image's short side to `short` pixels, bilinearly, and returns the middle size x size pixels.

  Args:
    picture: an image of any size.
    size: height and width of the result in pixels.
    short: length of the short side in pixels, at least `size`; by default `size`.
  """
  ratio = (short or size) / min(picture.size)
  width, height = (max(size, int(side * ratio + 1e-6)) for side in picture.size)
  left, top = round((width - size) / 2), round((height - size) / 2)
  check_pixels(width, height)
  scaled = picture.resize((width, height), Image.Resampling.BILINEAR)
  return scaled.crop((left, top, left + size, top + size))
