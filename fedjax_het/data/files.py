"""The `Source` that every loader returns, and helpers that read and check files which may be damaged."""

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

from fedjax_het.data.columns import Columns
from fedjax_het.data.encoder import Name
from fedjax_het.data.untrusted import read
from fedjax_het.errors import DataError, reading
from fedjax_het.tasks import Task


class Source(NamedTuple):
  """A data set in memory, before it is partitioned.

  Attributes:
    x: examples, [N, ...], uint8 (images are read as [0, 1] later, see `scale`), float32 (NaN where a value is
      missing, filled by `federate`) or integer ids of any other type, or a tree of such arrays. They may be
      read-only.
    y: labels, [N, ...]; for classes int32 [N] in [0, num_classes).
    x_test, y_test: the official test set, [M, ...] and [M]; M = 0 where there is none.
    num_classes: number of classes; 2 is a binary task, for which `models.make` gives one logit. For other
      tasks see `federate`.
    name: the data set's name.
    groups: the writer, hospital, ... of each row, [N], by which the natural partition makes clients; None
      where the data do not say.
    files: the files it was read from, or how it was obtained.
    notes: sentences about what the loader found or chose, which a reader of the results should know.
    standardize: columns of x to standardise by each client's own training rows (`federate(standardize=...)`).
    scale: factor that examples are multiplied by when a batch is read (`federate(scale=...)`).
    task: what is predicted, see `tasks`; None is classification.
    split: the authors' use of each row, int8 [N]: 0 to train, 1 to test, -1 neither (`federate(split=...)`).
      None where they define no split, or where x_test is their test set.
    pooled: whether columns are standardised by all clients' training rows (`federate(pooled=...)`).
    labels: the names of the classes, C; () where they have none.
    columns: the table's columns that x was made of; () for other data.
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
  pooled: bool = False
  labels: tuple[Name, ...] = ()
  columns: Columns = ()

  def __repr__(self) -> str:
    """The data set in a line: its rows, examples and classes; no value is read."""
    leaves = [f"{leaf.dtype} {[*leaf.shape[1:]]}" for leaf in jax.tree.leaves(self.x)]
    rows = f"{len(self.y):,} rows" + (f" and {len(self.y_test):,} to test on" if len(self.y_test) else "")
    groups = "" if self.groups is None else ", with a group for each row"
    return f"Source({self.name}: {rows}{groups}, examples {', '.join(leaves)}, {self.num_classes} classes)"


def digest(*arrays: Any) -> str:
  """Returns a hash, 16 hex digits, of arrays or trees of arrays: their values, dtypes, shapes and paths."""
  found = hashlib.blake2b(digest_size=8)
  for path, leaf in jax.tree_util.tree_leaves_with_path(arrays):
    array = np.asarray(leaf)
    array = np.ascontiguousarray(array.astype(str) if array.dtype == object else array)
    found.update(f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape};".encode())
    found.update(array.reshape(-1).view(np.uint8).data)
  return found.hexdigest()


def below(folder: Path) -> Iterator[Path]:
  """Yields all files below a folder, following links to folders but visiting each folder once.

  Raises:
    PermissionError: a folder, other than the file system's lost+found, may not be read.
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
  """Returns the path of `folder/name.gz` if it exists, else that of `folder/name`, else None."""
  for path in (folder / f"{name}.gz", folder / name):
    if path.is_file():
      return path
  return None


def text_of(where: object, content: bytes) -> str:
  """Decodes UTF-8; raises `DataError` naming `where` for bytes that are not UTF-8."""
  try:
    return content.decode()
  except UnicodeDecodeError as error:
    raise DataError(f"{where} is truncated or damaged: {error}") from error


def read_table(path: Path, width: int, delimiter: str = ",") -> Iterator[tuple[str, list[str]]]:
  """Yields the rows of a delimited UTF-8 text file, compressed or not, each with its place in the file.

  Yields:
    ("PATH, line n", fields), with n counted from 1; empty lines are skipped.

  Raises:
    DataError: a row has not exactly `width` fields, a quote is never closed, or the file is not UTF-8.
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
  """Parses a delimited text into dictionaries keyed by its header; raises `DataError` naming `where`."""
  with reading(where, "is truncated or damaged"):
    return list(csv.DictReader(io.StringIO(text), delimiter=delimiter))


def number(where: str, text: str) -> float:
  """Parses `text` as a float, with NaN for "?"; raises `DataError` naming `where` for anything else."""
  try:
    value = math.nan if text.strip() == "?" else float(text)
  except ValueError:
    value = math.inf
  if math.isinf(value) or (math.isnan(value) and text.strip() != "?"):
    raise DataError(f"{where} is not what its authors ship: {text[:40]!r} should be a number or '?'.")
  return value


def lacking(x: np.ndarray, groups: np.ndarray, columns: Sequence[str], becomes: str = "0") -> tuple[str, ...]:
  """Returns a note for `Source.notes` for each group without any value in some columns of x, [N, D].

  Args:
    x: the examples, NaN where a value is missing.
    groups: whose each row is, [N].
    columns: the columns' names, [D].
    becomes: what such a value becomes, for the note.
  """
  notes = []
  for group in dict.fromkeys(groups.tolist()):
    absent = np.isnan(x[groups == group]).all(axis=0)
    if absent.any():
      named = ", ".join(name for name, none in zip(columns, absent) if none)
      notes.append(f"{group} has no value of {named} in any row: it becomes {becomes}")
  return tuple(notes)


def check_rows(path: Path, found: int, shipped: int) -> None:
  """Raises `DataError` unless the file `path` has as many rows as its authors ship."""
  if found != shipped:
    raise DataError(
      f"{path.resolve()} is not the file its authors ship: {found} rows, not {shipped}; it is truncated, or"
      " somebody has edited it. Fetch it again."
    )


def short(what: str, found: int, shipped: int) -> tuple[str, ...]:
  """Returns a note for `Source.notes` where there are fewer rows than the authors ship, else nothing."""
  return (f"{found:,} of {shipped:,} {what}",) if found < shipped else ()


def check_digest(path: Path, data: bytes, algorithm: str, published: str) -> None:
  """Raises `DataError` unless `data`, from `path`, has the `published` hexadecimal digest."""
  found = hashlib.new(algorithm, data, usedforsecurity=False).hexdigest()
  if found != published:
    raise DataError(
      f"{path.resolve()} is not the file its authors ship: {algorithm} {found}, published {published}."
      " Delete it and fetch it again."
    )
