"""Pictures in files: decoded by Pillow, brought to one size, and stacked."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

from fedjax_het.data.packed import contents
from fedjax_het.data.untrusted import MOST_PIXELS, check_pixels, open_image
from fedjax_het.errors import DataError, SettingError, check_memory, reading

_BLOCK = 256  # files that are read ahead, of _BYTES in all
_BYTES = 2**28


def read_images(
  place: Path, rows: Mapping[str, int], size: int, prepare: Callable[[Image.Image], Image.Image]
) -> np.ndarray:
  """The pictures (JPEG) of a folder or an archive as RGB, uint8 [N, size, size, 3].

  Args:
    place: the folder or archive.
    rows: the files that are wanted, N of them -> their places 0 to N - 1.
    size: height and width of what `prepare` makes.
    prepare: brings an RGB picture to that size.

  Raises:
    SettingError: a size by which the pictures would not fit in memory.
    DataError: a file that is missing, no picture, or of another size after `prepare`; the first is named.
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
    raise DataError(f"{place.resolve()}: {missing} is missing; it is one of {(~done).sum()}.")
  return x


def as_is(picture: Image.Image) -> Image.Image:
  """The picture."""
  return picture


def squeezed(picture: Image.Image, size: int) -> Image.Image:
  """The whole picture at size x size pixels, bilinear, whatever its proportions were."""
  return picture.resize((size, size), Image.Resampling.BILINEAR)


def middle(picture: Image.Image, size: int, short: int | None = None) -> Image.Image:
  """The middle size x size pixels of the picture, after its short side was brought to `short`, bilinear.

  Args:
    picture: any.
    size: height and width of the result.
    short: at least `size`, which it is by default.
  """
  ratio = (short or size) / min(picture.size)
  width, height = (max(size, int(side * ratio + 1e-6)) for side in picture.size)
  left, top = round((width - size) / 2), round((height - size) / 2)
  check_pixels(width, height)
  scaled = picture.resize((width, height), Image.Resampling.BILINEAR)
  return scaled.crop((left, top, left + size, top + size))
