"""Reading of untrusted files: sizes are bounded, code in them is not run, and all damage is a `DataError`.

Every loader of data and of weights reads bytes, arrays, JSON, pickles and images through this file. A small
compressed file may expand to any size, so each reader states how much its data set can have, and no more is
read.
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

MOST = 2**28  # default limit of a file's bytes, for tables, lists and vocabularies
MOST_PIXELS = 50_000_000  # limit of an image's pixels; the largest image of ISIC's archive has 30 million
_FLOOR, _RATIO = 2**26, 100  # limit of a decompressed file: real data compress by a factor of at most 25


def allowance(packed: int) -> int:
  """Returns the most bytes to which a compressed file of `packed` bytes may expand."""
  return _FLOOR + _RATIO * packed


def check_size(where: object, found: int, most: int) -> None:
  """Raises `DataError` if `found` bytes are more than `most`."""
  if found > most:
    raise DataError(
      f"{where} holds or unpacks to more than {in_bytes(most)}, which is more than such a file has. It is"
      " damaged, or made to fill the memory. Fetch it again."
    )


def read(path: Path, most: int = MOST) -> tuple[bytes, bytes]:
  """Returns a file's bytes as stored and decompressed; the two are the same unless its name ends in .gz.

  Args:
    path: the file.
    most: the most bytes that it may have, decompressed.

  Raises:
    DataError: the file cannot be read, is larger than `most`, or is a truncated or damaged .gz.
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
  """Returns the arrays of an .npz file by name, read-only.

  Args:
    path: the file.
    most: the most bytes that the arrays may have in total; None is `allowance` of the file's size.
    wanted: the names of the arrays to read; None: all.

  Raises:
    DataError: the file is damaged, larger than `most`, or has two arrays of one name or an array of Python
      objects.
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
  """Reads an .npy file of `size` bytes; the array must have exactly as many bytes as the file has."""
  version = np.lib.format.read_magic(file)
  header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
  shape, by_columns, dtype = header[version](file)
  if dtype.hasobject:
    raise ValueError("the array holds Python objects, which are not read")
  wanted, there = math.prod(shape) * dtype.itemsize, size - file.tell()
  if min(shape, default=0) < 0 or wanted != there:
    raise ValueError(f"its header says {dtype} {list(shape)}, and {there} bytes follow")
  return np.frombuffer(file.read(wanted), dtype).reshape(shape, order="F" if by_columns else "C")


def read_json(where: object, content: bytes) -> Any:
  """Parses JSON strictly: a repeated name in an object, NaN and infinity count as damage.

  Raises:
    DataError: the content is not strict JSON.
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
  """Reads the arrays and plain values of a pickle without calling anything that could run code.

  Raises:
    DataError: the pickle is damaged or holds other objects.
  """
  with reading(where, "is no pickle of arrays, or a damaged one"):
    return _Unpickler(io.BytesIO(content), encoding="bytes").load()


class _Unpickler(pickle.Unpickler):
  """Unpickler of arrays and plain values only, because an unrestricted one may run any code."""

  def find_class(self, module: str, name: str) -> Any:
    """Returns the NumPy function that a pickled array refers to; raises for any other name."""
    if name in ("_reconstruct", "scalar") and module in ("numpy.core.multiarray", "numpy._core.multiarray"):
      return getattr(importlib.import_module("numpy._core.multiarray"), name)
    if module == "numpy" and name in ("ndarray", "dtype"):
      return getattr(np, name)
    raise pickle.UnpicklingError(f"{module}.{name} is no array")


def open_image(content: bytes, formats: tuple[str, ...] = ("JPEG",)) -> Image.Image:
  """Opens an image of one of the given formats without decoding it.

  Pillow is not allowed other formats, some of which start external programs.

  Raises:
    ValueError: the image has more than `MOST_PIXELS` pixels. Pillow raises its own errors for what is no such
      image.
  """
  picture = Image.open(io.BytesIO(content), formats=formats)
  check_pixels(*picture.size)
  return picture


def check_pixels(width: int, height: int) -> None:
  """Raises `ValueError` if an image has more than `MOST_PIXELS` pixels."""
  if width * height > MOST_PIXELS:
    raise ValueError(f"{width} x {height} pixels, and at most {MOST_PIXELS:,} are read")
