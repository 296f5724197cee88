"""Reading files that nobody vouches for: sizes are bounded, nothing is executed, all damage is one error.

Every loader of data and of weights reads bytes, arrays, JSON, pickles and images through this file. A small
packed file may unpack to any size, so each reader says how much its data set really has, and no more is read.
"""

import gzip
import importlib
import io
import json
import math
import pickle
import zipfile
from collections.abc import Container
from pathlib import Path
from typing import IO, Any

import numpy as np
from PIL import Image

from fedjax_het.errors import DAMAGE, DataError, in_bytes, reading

MOST = 2**28  # bytes of a file of which nothing else is known: a table, a list, a vocabulary
MOST_PIXELS = 50_000_000  # of an image; the largest of ISIC's archive has 30 million
_FLOOR, _RATIO = 2**26, 100  # what a packed file may unpack to: real ones reach a ratio of 25


def allowance(packed: int) -> int:
  """The most bytes that a packed file of so many may unpack to, whatever it holds."""
  return _FLOOR + _RATIO * packed


def check_size(where: object, found: int, most: int) -> None:
  """Raises `DataError` for more bytes than there can be."""
  if found > most:
    raise DataError(
      f"{where} holds or unpacks to more than {in_bytes(most)}, which is more than such a file has. It is"
      " damaged, or made to fill the memory. Fetch it again."
    )


def read(path: Path, most: int = MOST) -> tuple[bytes, bytes]:
  """A file as it is and unpacked (the same thing unless it ends in .gz).

  Args:
    path: the file.
    most: how many bytes it can have, unpacked.

  Raises:
    DataError: a file that cannot be read, that has more bytes, or a .gz that is cut short or not gzip.
  """
  where = path.resolve()
  with reading(where):
    check_size(where, path.stat().st_size, most + 2**20)
    raw = path.read_bytes()
    content = raw
    if path.suffix == ".gz":
      most = min(most, allowance(len(raw)))
      with gzip.GzipFile(fileobj=io.BytesIO(raw)) as file:
        content = file.read(most + 1)
    check_size(where, len(content), most)
    return raw, content


def read_arrays(path: Path, most: int | None = None, wanted: Container[str] | None = None) -> dict[str, Any]:
  """The arrays of an .npz by name, read-only.

  Args:
    path: the file.
    most: how many bytes the arrays that are read can have; None: what such a file may unpack to.
    wanted: the names of those that are read; None: all.

  Raises:
    DataError: a file that is damaged, has larger arrays or two of a name, or one with Python's objects.
  """
  where, arrays, total = path.resolve(), {}, 0
  damaged = "cannot be read as .npz, it is truncated or damaged"
  with reading(where, damaged), path.open("rb") as raw, zipfile.ZipFile(raw) as archive:
    most = min(most or np.inf, allowance(path.stat().st_size))  # type: ignore[assignment]
    for member in archive.infolist():
      name = member.filename.removesuffix(".npy")
      if wanted is not None and name not in wanted:
        continue
      if name in arrays:
        raise DataError(f"{where} holds two arrays {name!r}.")
      total += member.file_size
      check_size(where, total, most)  # type: ignore[arg-type]
      try:
        with archive.open(member) as file:
          arrays[name] = _array(file, member.file_size)
      except DAMAGE as error:
        raise ValueError(f"{name}: {str(error) or type(error).__name__}") from error
  return arrays


def _array(file: IO[bytes], size: int) -> np.ndarray:
  """The array of an .npy file of so many bytes, whose header is believed only where it says just as many."""
  version = np.lib.format.read_magic(file)
  header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
  shape, by_columns, dtype = header[version](file)
  if dtype.hasobject:
    raise ValueError("it holds Python's objects, which are not read")
  wanted, there = math.prod(shape) * dtype.itemsize, size - file.tell()
  if min(shape, default=0) < 0 or wanted != there:
    raise ValueError(f"its header says {dtype} {list(shape)}, and {there} bytes follow")
  return np.frombuffer(file.read(wanted), dtype).reshape(shape, order="F" if by_columns else "C")


def read_json(where: object, content: bytes) -> Any:
  """What JSON says; a name that stands twice in an object, NaN or infinity is damage.

  Raises:
    DataError: see above, and whatever is no JSON.
  """

  def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
      names = [name for name, _ in pairs]
      twice = next(name for name in names if names.count(name) > 1)
      raise ValueError(f"{twice[:80]!r} stands twice in one object, and one of the two would be lost")
    return found

  def refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON's")

  with reading(where, "is no JSON, or it is truncated or damaged"):
    return json.loads(content, object_pairs_hook=once, parse_constant=refuse)


def read_pickle(where: object, content: bytes) -> Any:
  """The arrays and plain values of a pickle; nothing in it is called but what makes an array.

  Raises:
    DataError: a pickle of anything else, or a damaged one.
  """
  with reading(where, "is no pickle of arrays, or a damaged one"):
    return _Unpickler(io.BytesIO(content), encoding="bytes").load()


class _Unpickler(pickle.Unpickler):
  """Arrays and plain values alone: a pickle may otherwise run anything."""

  def find_class(self, module: str, name: str) -> Any:
    """What the names of an array's pickle stand for."""
    if name in ("_reconstruct", "scalar") and module in ("numpy.core.multiarray", "numpy._core.multiarray"):
      return getattr(importlib.import_module("numpy._core.multiarray"), name)
    if module == "numpy" and name in ("ndarray", "dtype"):
      return getattr(np, name)
    raise pickle.UnpicklingError(f"{module}.{name} is no array")


def open_image(content: bytes, formats: tuple[str, ...] = ("JPEG",)) -> Image.Image:
  """An image of one of these formats, not yet decoded; Pillow tries no other, some of which start programs.

  Raises:
    ValueError: more pixels than any data set's images have; and what Pillow raises for no such image.
  """
  picture = Image.open(io.BytesIO(content), formats=formats)
  check_pixels(*picture.size)
  return picture


def check_pixels(width: int, height: int) -> None:
  """Raises `ValueError` for more pixels than any data set's images have."""
  if width * height > MOST_PIXELS:
    raise ValueError(f"{width} x {height} pixels, and at most {MOST_PIXELS:,} are read")
