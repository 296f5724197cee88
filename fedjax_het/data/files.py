"""What every file loader shares: the loaded data set, and reading files that may be damaged."""

import csv
import hashlib
import io
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_het.data.untrusted import read
from fedjax_het.errors import DataError, reading
from fedjax_het.tasks import Task


class Source(NamedTuple):
  """A data set in memory, before it is partitioned.

  Attributes:
    x: examples, [N, ...], uint8 (images are read as [0, 1] later, see `scale`), float32 (NaN where a value
      is missing, filled by `federate`) or integer ids of any other type; may be read-only. Or a tree of such.
    y: labels, [N, ...], of classes int32 [N] in [0, num_classes).
    x_test, y_test: the official test set, [M, ...] and [M]; M = 0 where there is none.
    num_classes: number of classes; 2 is a binary task, for which `models.make` gives one logit. Of other
      tasks what `federate` says.
    name: the data set's name.
    groups: who each row came from, [N], where the data say so, for the natural partition.
    files: the files it was read from, or how it was obtained.
    notes: what the loader found and chose that a reader of the results should know, a sentence each.
    standardize: columns of x to standardise by each client's own training rows (`federate(standardize=...)`).
    scale: what examples are multiplied by when they are read (`federate(scale=...)`).
    task: what is learnt from it, see `tasks`; None for classes.
    split: what its authors do with each row, int8 [N]: 0 trains, 1 tests, -1 neither (`federate(split=...)`);
      None where they do not say, or where x_test is what they test on.
  """

  x: Any
  y: np.ndarray
  x_test: Any
  y_test: np.ndarray
  num_classes: int
  name: str
  groups: np.ndarray | None = None
  files: tuple[str, ...] = ()
  notes: tuple[str, ...] = ()
  standardize: tuple[int, ...] = ()
  scale: float | None = None
  task: Task | None = None
  split: np.ndarray | None = None


def digest(*arrays: Any) -> str:
  """Sixteen hex digits of arrays, or trees of them: other values, types, shapes or places have others."""
  found = hashlib.blake2b(digest_size=8)
  for path, leaf in jax.tree_util.tree_leaves_with_path(arrays):
    array = np.asarray(leaf)
    array = np.ascontiguousarray(array.astype(str) if array.dtype == object else array)
    found.update(f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape};".encode())
    found.update(array.reshape(-1).view(np.uint8).data)
  return found.hexdigest()


def below(folder: Path) -> Iterator[Path]:
  """All files below a folder, also by links to folders, each folder once.

  Raises:
    PermissionError: a folder that may not be read, but for one of the system's own.
  """
  seen: set[str] = set()

  def fail(error: OSError) -> None:
    if isinstance(error, PermissionError) and Path(error.filename).name != "lost+found":
      raise error

  for place, folders, files in os.walk(folder, onerror=fail, followlinks=True):
    if (real := os.path.realpath(place)) in seen:
      folders.clear()
      continue
    seen.add(real)
    folders.sort(key=lambda name: (os.path.islink(os.path.join(place, name)), name))  # a link comes last
    yield from (path for name in files if (path := Path(place, name)).is_file())


def find(folder: Path, name: str) -> Path | None:
  """`folder/name.gz` or `folder/name`, whichever is there, the compressed one first."""
  for path in (folder / f"{name}.gz", folder / name):
    if path.is_file():
      return path
  return None


def text_of(where: object, content: bytes) -> str:
  """UTF-8 as text; raises `DataError` naming `where` for bytes that are none."""
  try:
    return content.decode()
  except UnicodeDecodeError as error:
    raise DataError(f"{where} is truncated or damaged: {error}") from error


def read_table(path: Path, width: int, delimiter: str = ",") -> Iterator[tuple[str, list[str]]]:
  """Row by row of a delimited text file, UTF-8, compressed or not: where it is, and its fields.

  Yields:
    ("PATH, line n", fields), n counted from 1; empty lines are passed over.

  Raises:
    DataError: a row without exactly `width` fields, a quote that is never closed, or bytes that are no text.
  """
  whole = path.resolve()
  with reading(whole, "is truncated or damaged"):
    text = text_of(whole, read(path)[1])
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    for row in rows:
      where = f"{whole}, line {rows.line_num}"
      if row and len(row) != width:
        raise DataError(f"{where} is truncated or damaged: {len(row)} fields, not {width}.")
      if row:
        yield where, row


def named_rows(where: object, text: str, delimiter: str = ",") -> list[dict[str, str]]:
  """A delimited text's rows, each by the names of its first one; raises `DataError` naming `where`."""
  with reading(where, "is truncated or damaged"):
    return list(csv.DictReader(io.StringIO(text), delimiter=delimiter))


def number(where: str, text: str) -> float:
  """`text` as a float, NaN for "?"; raises `DataError` naming `where` for anything else."""
  try:
    value = math.nan if text.strip() == "?" else float(text)
  except ValueError:
    value = math.inf
  if math.isinf(value) or (math.isnan(value) and text.strip() != "?"):
    raise DataError(f"{where} is not what its authors ship: {text[:40]!r} should be a number or '?'.")
  return value


def lacking(x: np.ndarray, groups: np.ndarray, columns: Sequence[str]) -> tuple[str, ...]:
  """A note for `Source.notes` of each group whose rows of x, [N, D], have no value in some columns."""
  notes = []
  for group in dict.fromkeys(groups.tolist()):
    absent = np.isnan(x[groups == group]).all(axis=0)
    if absent.any():
      named = ", ".join(name for name, none in zip(columns, absent) if none)
      notes.append(f"{group} has no value of {named} in any row: 0 stands there")
  return tuple(notes)


def check_rows(path: Path, found: int, shipped: int) -> None:
  """Raises `DataError` unless the file `path` has as many rows as its authors ship."""
  if found != shipped:
    raise DataError(
      f"{path.resolve()} is not the file its authors ship: {found} rows, not {shipped}; it is truncated, or"
      " somebody has edited it. Fetch it again."
    )


def short(what: str, found: int, shipped: int) -> tuple[str, ...]:
  """A note for `Source.notes` where there are fewer rows than the authors ship, else none."""
  return (f"{found:,} of {shipped:,} {what}",) if found < shipped else ()


def check_digest(path: Path, data: bytes, algorithm: str, published: str) -> None:
  """Raises `DataError` unless `data`, from `path`, has the `published` hexadecimal digest."""
  found = hashlib.new(algorithm, data, usedforsecurity=False).hexdigest()
  if found != published:
    raise DataError(
      f"{path.resolve()} is not the file its authors ship: {algorithm} {found}, published {published}."
      " Delete it and fetch it again."
    )
