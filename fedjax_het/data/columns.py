"""The columns of a table as features: numbers, dates, one-hot categories and counts of hashed words."""

import re
import zlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedjax_het.data.rows import as_array
from fedjax_het.errors import DataError, near
from fedjax_het.tasks.missing import missing

WORDS = 64  # features of a text column, into which its words are hashed
FEW = 20  # most different values of a text column that is one-hot by default
NUMBER = re.compile(r"[-+]?(\d[\d ,.'’]*|\.\d+)([eE][-+]?\d+)?")  # thousands may be separated
OTHER_DATE = re.compile(
  r"(\d{1,2}[./-]\d{1,2}[./-]\d{2,4}|\d{4}[./]\d{1,2}[./]\d{1,2})( .*)?"
)  # day and month cannot be told apart
DATE = re.compile(r"\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}.*)?")
READ_AS = (
  "Signs for thousands or decimals are named by thousands=',' or decimal=',', a word for missing values by"
  " missing=('?',), and a column of words by categorical=(...) or drop=(...)."
)
FILLED_IN = "Write a number, or leave the value empty, which counts as missing."


class Column(NamedTuple):
  """A column of a table, and how it becomes features.

  Attributes:
    name: its name.
    kind: "number"; "date", in days since 1970; "category", one-hot; or "text", counts of hashed words.
    values: a category's values as texts, sorted, one feature each.
    gaps: whether a further feature says where a value is missing; the others are then NaN (number, date: the
      mean of the training rows takes its place) or 0.
    absent: words that mean a missing value, such as "?".
  """

  name: str
  kind: Literal["number", "date", "category", "text"]
  values: tuple[str, ...] = ()
  gaps: bool = False
  absent: tuple[str, ...] = ()

  @property
  def features(self) -> list[str]:
    """The names of its features."""
    own = {
      "category": [f"{self.name}={value}" for value in self.values],
      "text": [f"{self.name}#{i}" for i in range(WORDS)],
    }.get(self.kind, [self.name])
    return own + [f"{self.name} is missing"] * self.gaps


Columns = tuple[Column, ...]


def numbers_of(columns: Columns) -> tuple[int, ...]:
  """Returns the positions of numbers and dates among the features, which are standardised."""
  kinds = [(column, i) for column in columns for i in range(len(column.features))]
  return tuple(n for n, (column, i) in enumerate(kinds) if column.kind in ("number", "date") and not i)


def encode(columns: Columns, table: Mapping[str, Any], where: object = "rows") -> np.ndarray:
  """Turns the rows of a table into features, float64 [N, D], NaN where a number is missing.

  Args:
    columns: the columns; others of the table are ignored.
    table: column -> values, such as a pandas frame or a dict of lists.
    where: the table's name in errors.

  Raises:
    DataError: a column is missing, or has a value that is no number, no date or no known category; names the
      column, the row (counted from 1), the value and the remedy.
  """
  names = [*table.keys()]
  found: list[np.ndarray] = []
  for column in columns:
    if column.name not in names:
      raise DataError(f"{where} lacks the column {column.name!r}. {near(column.name, map(str, names))}")
    values = without(as_array("rows", table[column.name], "Give a list of numbers or texts."), column.absent)
    if values.ndim != 1 or (found and len(values) != len(found[0])):
      raise DataError(
        f"{where}, column {column.name!r} has values of shape {[*values.shape]}, not one for each row. Give"
        " each column a list, such as {'age': [81, 44]}."
      )
    found.append(_features(column, values, f"{where}, column {column.name!r}"))
  return np.concatenate(found, axis=1)


def _features(column: Column, values: np.ndarray, where: str) -> np.ndarray:
  absent = missing(values)
  gaps = [absent[:, None].astype(np.float64)] * column.gaps
  if column.kind == "text":
    counts = np.array([_words(text) for text in _texts(values, absent)]).reshape(-1, WORDS)
    return np.concatenate([counts, *gaps], axis=1)
  if column.kind == "category":
    texts = np.array(_texts(values, absent), object)
    one_hot = texts[:, None] == np.array(column.values, object)
    wrong = np.flatnonzero(~one_hot.any(1) & ~absent)
    if len(wrong):
      known = ", ".join(column.values[:FEW])
      raise DataError(
        f"{where}, row {wrong[0] + 1}: {texts[wrong[0]]!r} is none of the values in training: {known}. Write"
        " one of them, or leave the value empty, which counts as missing."
      )
    return np.concatenate([one_hot.astype(np.float64), *gaps], axis=1)
  numbers = as_days(values, where) if column.kind == "date" else as_numbers(values, where, FILLED_IN)
  return np.concatenate([numbers[:, None], *gaps], axis=1)


def without(values: ArrayLike, absent: Collection[str]) -> np.ndarray:
  """Returns values with None in the place of each of the words that mean a missing value."""
  values = np.asarray(values)
  if not absent or values.ndim != 1 or values.dtype.kind not in "OSU":
    return values
  gone = [isinstance(one, str) and one.strip() in absent for one in values.tolist()]
  if not any(gone):
    return values
  found = values.astype(object)
  found[gone] = None
  return found


def as_numbers(values: np.ndarray, where: str, remedy: str = READ_AS) -> np.ndarray:
  """Converts values to float64, NaN where missing; raises `DataError` naming the first that is no number."""
  if values.dtype.kind in "biuf":
    return values.astype(np.float64)
  found = np.full(len(values), np.nan)
  for row in np.flatnonzero(~missing(values)):
    try:
      found[row] = float(values[row])
    except (TypeError, ValueError):
      raise DataError(f"{where}, row {row + 1}: {str(values[row])[:40]!r} is no number. {remedy}") from None
  return found


def as_days(values: np.ndarray, where: str) -> np.ndarray:
  """Converts dates to days since 1970, float64, NaN where missing; raises `DataError` for what is no date."""
  if values.dtype.kind == "M":
    days = values.astype("datetime64[s]").astype(np.float64) / 86400
    return np.where(np.isnat(values), np.nan, days)
  found = np.full(len(values), np.nan)
  for row in np.flatnonzero(~missing(values)):
    try:
      found[row] = np.datetime64(str(values[row]), "s").astype(np.int64) / 86400
    except ValueError:
      raise DataError(
        f"{where}, row {row + 1}: {str(values[row])[:40]!r} is no date. Write it as 2024-12-31."
      ) from None
  return found


def described(
  table: Mapping[str, Any],
  where: object,
  leave: Sequence[str],
  numeric: Sequence[str] = (),
  categorical: Sequence[str] = (),
  text: Sequence[str] = (),
) -> tuple[Columns, list[str]]:
  """Finds what the columns of a table are.

  Columns that are not named are numbers if their values are, dates if they read 2024-12-31, else categories
  if they have at most 20 different values, or left out, with a note.

  Args:
    table: column -> values.
    where: the table's name in errors.
    leave: columns that are no features: the label, the client, ...
    numeric, categorical, text: names of columns of this kind.

  Returns:
    (columns, notes).

  Raises:
    DataError: most, but not all, values of a column are numbers; they are dates of another form; no column is
      left.
  """
  columns, notes = [], []
  for name in table:
    if name in leave:
      continue
    values = np.asarray(table[name])
    absent = missing(values)
    gaps, texts = bool(absent.any()), [one for one in _texts(values, absent) if one is not None]
    if not texts and name not in (*categorical, *text):
      notes.append(f"column {name!r} has no value in any row and is left out")
    elif name in text:
      columns.append(Column(name, "text", (), gaps))
    elif name in categorical:
      columns.append(Column(name, "category", tuple(sorted({*texts})), gaps))
    elif name in numeric or values.dtype.kind in "biuf" or _all_numbers(values, absent):
      as_numbers(values, f"{where}, column {name!r}")
      columns.append(Column(name, "number", (), gaps))
    elif values.dtype.kind == "M" or all(map(DATE.fullmatch, texts)):
      columns.append(Column(name, "date", (), gaps))
    elif sum(bool(OTHER_DATE.fullmatch(one)) for one in texts) * 2 >= len(texts):
      row = next(i for i, one in enumerate(_texts(values, absent)) if one and OTHER_DATE.fullmatch(one))
      raise DataError(
        f"{where}, column {name!r}, row {row + 1}: {str(values[row])[:40]!r} may be a date, of which day and"
        f" month are not certain. Write dates as 2024-12-31, or leave the column out by drop=({name!r},) or"
        f" name it by categorical=({name!r},)."
      )
    elif sum(bool(NUMBER.fullmatch(one)) for one in texts) * 2 >= len(texts):
      as_numbers(
        values, f"{where}, column {name!r}"
      )  # raises unless all are numbers that are written as texts
      columns.append(Column(name, "number", (), gaps))
    elif (count := len({*texts})) <= FEW:
      columns.append(Column(name, "category", tuple(sorted({*texts})), gaps))
    else:
      notes.append(
        f"column {name!r} has {count} different texts and is left out; categorical=({name!r},) makes a"
        f" feature of each, text=({name!r},) counts their words"
      )
  if not columns:
    raise DataError(f"{where} has no column to learn from. {' '.join(notes)}")
  return tuple(columns), notes


def _all_numbers(values: np.ndarray, absent: np.ndarray) -> bool:
  present = values[~absent]
  return all(isinstance(one, int | float | np.number) for one in present.tolist())


def _texts(values: np.ndarray, absent: np.ndarray) -> list[Any]:
  """Returns values as texts, None where one is missing: 2.0 is "2", so that gaps do not rename a category."""
  return [None if gone else as_text(one) for one, gone in zip(values.tolist(), absent)]


def as_text(value: Any) -> str:
  """Returns a value as a text without blanks around it; a whole float is written as an integer."""
  return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value).strip()


def _words(text: str | None) -> np.ndarray:
  """Counts the words of a text by their CRC-32 modulo `WORDS`, log(1 + count), float64."""
  counts = np.zeros(WORDS)
  for word in re.findall(r"\w+", (text or "").casefold()):
    counts[zlib.crc32(word.encode()) % WORDS] += 1
  return np.log1p(counts)
