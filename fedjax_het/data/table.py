"""A table of one's own, a pandas frame, a CSV or a Parquet file, with columns for label and client."""

import csv
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np

from fedjax_het.data.columns import FEW, as_numbers, as_text, described, encode, numbers_of, without
from fedjax_het.data.container import FederatedData
from fedjax_het.data.files import Source, lacking
from fedjax_het.data.own import of_source
from fedjax_het.data.untrusted import read
from fedjax_het.errors import DataError, SettingError, check_choice, reading
from fedjax_het.settings import Choice, checked, settings_of
from fedjax_het.tasks import TASKS, Task, check_task
from fedjax_het.tasks.missing import missing

TABLES = (".csv", ".tsv", ".parquet")
SHEETS = (".xlsx", ".xls", ".ods")
MOST = 2**33  # most bytes of a table
USES = {
  "train": 0,
  "test": 1,
  "0": 0,
  "1": 1,
  "-1": -1,
}  # values of a column `split` -> what `federate` takes
READ = ("encoding", "delimiter", "decimal", "thousands", "missing")  # how a CSV file is read


def from_table(
  table: Any,
  *,
  label: str,
  client: str | None = None,
  key: jax.Array | None = None,
  task: Task | None = None,
  **settings: Any,
) -> FederatedData:
  """Makes clients of a table: one of each value of the column `client`, or by a partition.

  Args:
    table: a pandas frame, or the path of a .csv or .parquet file.
    label: the column that is predicted.
    client: the column that says whose each row is; None deals the rows out, see `from_arrays`.
    key: typed key of the splits; by default `jax.random.key(0)`.
    task: what is predicted, see `fh.tasks`; classification by default.
    **settings: further settings of `read_source`, and those of `from_groups` or `from_arrays`.

  Raises:
    SettingError: a setting is unknown or does not fit the table.
    DataError: the table cannot be read or has a value that cannot be; names file, column, row and remedy.
  """
  if task is not None:
    check_task(task)
  own = {name: settings.pop(name) for name in [*settings] if name in _OWN}
  source = read_source(
    table, label=label, client=client, task=task.name if task is not None else "classification", **own
  )
  return of_source(key, source, **({} if task is None else {"task": task}), **settings)


@checked
def read_source(
  table: Any,
  *,
  label: str,
  client: str | None = None,
  numeric: Sequence[str] = (),
  categorical: Sequence[str] = (),
  text: Sequence[str] = (),
  drop: Sequence[str] = (),
  standardize: Annotated[str, Choice(("all", "client", "none"))] = "all",
  split: str | None = None,
  unlabelled: Annotated[str, Choice(("error", "drop"))] = "error",
  task: Annotated[str, Choice(("classification", "binary", "regression"))] = "classification",
  encoding: str = "utf-8",
  delimiter: str | None = None,
  decimal: str = ".",
  thousands: str | None = None,
  missing: Sequence[str] = (),
) -> Source:
  """Reads a table: numbers and dates become standardised features, texts of few values one-hot ones.

  A missing value of a number or date becomes the mean, which is 0 after standardisation, and a feature of its
  own says where values are missing. What is not named is found: see `columns.described`.

  Args:
    table: a pandas frame, or the path of a .csv, .tsv or .parquet file.
    label: the column that is predicted.
    client: the column that says whose each row is.
    numeric: columns of numbers.
    categorical: columns whose different values are one-hot features.
    text: columns of words, which are counted by their hash.
    drop: columns to leave out.
    standardize: "all", by mean and deviation of all clients' training rows; "client", by each client's own;
      "none".
    split: the column that says which rows train (train or 0), test (test or 1) or neither (-1).
    unlabelled: "drop" leaves out rows without a label, in place of an error.
    task: "regression" predicts numbers.
    encoding: how the file's characters are written.
    delimiter: what separates the file's columns; by default a tab in a .tsv, and a comma in others.
    decimal: the sign before decimals.
    thousands: the sign between thousands.
    missing: words that mean a missing value, besides nothing, NA, NaN, null and None.
  """
  how = {"encoding": encoding, "delimiter": delimiter, "decimal": decimal, "thousands": thousands}
  missing = _several("missing", missing)
  where, frame = read_frame(table, {**how, "missing": missing})
  numeric, categorical = _several("numeric", numeric), _several("categorical", categorical)
  text, drop = _several("text", text), _several("drop", drop)
  use_of: dict[str, str] = {}  # column -> the setting that names it
  for setting, names in {
    "label": (label,), "client": (client,), "split": (split,), "numeric": numeric, "categorical": categorical,
    "text": text, "drop": drop,
  }.items():  # fmt: skip
    for name in names:
      if name is None:
        continue
      check_choice(setting, name, frame.columns)
      first = use_of.setdefault(name, setting)
      if first != setting and not (setting == "drop" and first in ("label", "client", "split")):
        raise SettingError(setting, name, f"names the column that {first} names", "Name it in one of them.")
  frame, unnamed = _labelled(frame, label, where, unlabelled)
  leave = [name for name in (label, client, split, *drop) if name is not None]
  columns, notes = described(frame, where, leave, numeric, categorical, text)
  columns = tuple(column._replace(absent=missing) for column in columns)  # later rows may have such words too
  x = encode(columns, frame, where)
  features = [feature for column in columns for feature in column.features]
  _check_finite(x, features, where)
  y, labels = _labels(np.asarray(frame[label]), f"{where}, column {label!r}", task)
  groups = None if client is None else groups_of(np.asarray(frame[client]), f"{where}, column {client!r}")
  if len(labels) > FEW and not isinstance(labels[0], str):
    notes.append(
      f"column {label!r} has {len(labels)} different numbers, each a class of its own; to predict them as"
      " amounts, name the task regression"
    )
  if unnamed:
    notes.append(f"{unnamed} rows have no {label!r} and are left out")
  if groups is not None:
    becomes = "the mean of all clients' training rows" if standardize == "none" else "0"
    notes += lacking(x, groups, features, becomes)
  return Source(
    x, y, x[:0], y[:0], max(len(labels), 2) if task != "regression" else 1,
    Path(where).stem, groups, (where,), tuple(notes),
    () if standardize == "none" else numbers_of(columns),
    task=None if task == "classification" else TASKS[task](),
    split=None if split is None else _split(np.asarray(frame[split]), f"{where}, column {split!r}"),
    pooled=standardize != "client", labels=labels, columns=columns,
  )  # fmt: skip


_OWN = ("numeric", "categorical", "text", "drop", "standardize", "split", "unlabelled", *READ)


def read_frame(table: Any, how: Mapping[str, Any]) -> tuple[str, Any]:
  """Returns (where it is from, a pandas frame) of a frame or a file; `how` has the settings `READ`.

  Raises:
    SettingError: `table` is neither, or pandas, of the extra `tables`, is not installed.
    DataError: the file is missing, damaged or of another encoding, or has a column's name twice.
  """
  try:
    import pandas
  except ImportError as error:
    raise SettingError(
      "table", _short(table), "needs pandas, which is not installed", "pip install 'fedjax_het[tables]'."
    ) from error
  if isinstance(table, pandas.DataFrame):
    _check_unused(how, "is for files that are read as CSV, and the table is a frame")
    where, frame = "table", table.reset_index(drop=True)
  elif isinstance(table, str | os.PathLike) and "\0" not in os.fspath(table):
    path = Path(table).expanduser()
    where = str(path.resolve())
    if path.suffix.lower() in SHEETS:
      raise DataError(f"{where} is a spreadsheet. Save it as CSV, or give the frame of pandas.read_excel.")
    if not path.is_file():
      raise DataError(f"{where}: no such file. Give the path of a .csv or .parquet file.")
    if path.suffix.lower() == ".parquet":
      _check_unused(how, f"is for files that are read as CSV, and {path.name} is Parquet")
      frame = _parquet(path, where)
    else:
      frame = _csv(path, where, how)
  else:
    raise SettingError(
      "table", type(table).__name__, "no table", "Give a frame, or the path of a .csv or .parquet file."
    )
  names = [*map(str, frame.columns)]
  twice = sorted({name for name in names if names.count(name) > 1})
  if twice:
    raise DataError(f"{where} has two columns called {twice[0]!r}. Give one of them another name.")
  if not len(frame):
    raise DataError(f"{where} has no rows.")
  frame.columns = names
  for name in names:
    values = np.asarray(frame[name])
    if (found := without(values, how["missing"])) is not values:
      frame[name] = found
  return where, frame


def _check_unused(how: Mapping[str, Any], problem: str) -> None:
  """Raises `SettingError` for a setting of reading CSV that differs from its default."""
  for name in ("encoding", "delimiter", "decimal", "thousands"):
    if how[name] != settings_of(read_source)[name].default:
      raise SettingError(name, how[name], problem, "Leave it out.")


def _parquet(path: Path, where: str) -> Any:
  import pandas

  with reading(where):
    try:
      return pandas.read_parquet(path, engine="pyarrow")
    except ImportError as error:
      raise SettingError(
        "table", where, "needs pyarrow, which is not installed", "pip install 'fedjax_het[tables]'."
      ) from error


def _csv(path: Path, where: str, how: Mapping[str, Any]) -> Any:
  import pandas

  content = read(path, MOST)[1]
  try:
    text = content.decode("utf-8-sig" if how["encoding"] == "utf-8" else how["encoding"])
  except (LookupError, ValueError) as error:
    if isinstance(error, UnicodeDecodeError):
      raise _other_encoding(where, content, error) from error
    raise SettingError("encoding", how["encoding"], "unknown", "Give one such as 'latin-1'.") from error
  delimiter = how["delimiter"] or ("\t" if path.suffix.lower() == ".tsv" else ",")
  with reading(where):
    header = next(csv.reader(io.StringIO(text), delimiter=delimiter), [])
  twice = sorted({name for name in header if header.count(name) > 1})
  if twice:
    raise DataError(f"{where} has two columns called {twice[0]!r}. Give one of them another name.")
  if len(header) == 1 and (other := next((sign for sign in ";\t|" if sign in header[0]), None)):
    raise DataError(
      f"{where} has one column, {header[0][:60]!r}. Separated by {other!r}: delimiter={other!r}."
    )
  with reading(where):
    return pandas.read_csv(
      io.StringIO(text), sep=delimiter, decimal=how["decimal"], thousands=how["thousands"],
      na_values=[*how["missing"]], low_memory=False, index_col=False,
    )  # fmt: skip


def _other_encoding(where: str, content: bytes, error: UnicodeDecodeError) -> DataError:
  line = content[: error.start].count(b"\n") + 1
  return DataError(
    f"{where}, line {line}: byte 0x{content[error.start]:02x} is not {error.encoding}. Name the file's"
    " encoding, such as encoding='latin-1' or 'utf-16', or save it as UTF-8."
  )


def _labelled(frame: Any, label: str, where: str, unlabelled: str) -> tuple[Any, int]:
  """Returns the rows that have a label, and how many have none; an error unless these are to be dropped."""
  absent = missing(np.asarray(frame[label]))
  count = int(absent.sum())
  if count and unlabelled == "error":
    raise DataError(
      f"{where}, column {label!r}, row {np.flatnonzero(absent)[0] + 1}: no label; {count} of {len(frame)}"
      " rows have none. Give them one, or leave them out by unlabelled='drop'."
    )
  if count == len(frame):
    raise DataError(f"{where}, column {label!r}: no row has a label. Name another column.")
  return (frame[~absent].reset_index(drop=True) if count else frame), count


def _labels(values: np.ndarray, where: str, task: str) -> tuple[np.ndarray, tuple[Any, ...]]:
  """Returns (labels as the task wants them, the classes' names in their order)."""
  if task == "regression":
    return as_numbers(values, where).astype(np.float32), ()
  if values.dtype.kind == "f":
    broken = np.flatnonzero(np.isinf(values) | (values != np.round(values)))
    if len(broken):
      raise DataError(
        f"{where}, row {broken[0] + 1}: {values[broken[0]]} is no class. Numbers are predicted by"
        " task=fh.tasks.regression()."
      )
    values = values.astype(np.int64)
  if values.dtype.kind not in "iub":
    values = np.array([as_text(one) for one in values.tolist()])
  labels, y = np.unique(values, return_inverse=True)
  if len(labels) > max(len(y) // 2, 2):
    raise DataError(
      f"{where} has {len(labels)} different values in {len(y)} rows, too many for classes. Name the column"
      " that is predicted, or task=fh.tasks.regression() for numbers."
    )
  if len(labels) == 1:
    raise DataError(f"{where} has one value, {str(labels[0])!r}, in all rows. There is nothing to learn.")
  return y.reshape(-1).astype(np.int32), tuple(labels.tolist())


def _check_finite(x: np.ndarray, features: Sequence[str], where: str) -> None:
  """Raises `DataError` for the first value that is infinite or beyond float32's range."""
  wrong = np.argwhere(np.abs(x) > np.finfo(np.float32).max)
  if len(wrong):
    row, column = wrong[0]
    raise DataError(
      f"{where}, column {features[column]!r}, row {row + 1}: {x[row, column]} is infinite or too large for"
      " float32. Leave the value empty, which counts as missing, or write it in another unit."
    )


def groups_of(values: np.ndarray, where: str) -> np.ndarray:
  """Returns whose each row is, whole numbers or texts; raises `DataError` for a row that is nobody's."""
  absent = np.flatnonzero(missing(values))
  if len(absent):
    raise DataError(
      f"{where}, row {absent[0] + 1}: nobody's row; {len(absent)} of {len(values)} rows are so. Fill it in,"
      " or leave these rows out."
    )
  return values if values.dtype.kind in "iu" else np.array([as_text(one) for one in values.tolist()])


def _split(values: np.ndarray, where: str) -> np.ndarray:
  texts = [as_text(one).casefold() for one in values.tolist()]
  for row, one in enumerate(texts):
    if one not in USES:
      raise DataError(
        f"{where}, row {row + 1}: {one!r} is none of train (0), test (1) and -1 (neither). Rows to validate"
        " on are drawn of those that train, by valid_fraction."
      )
  return np.array([USES[one] for one in texts], np.int8)


def _short(table: Any) -> str:
  return os.fspath(table) if isinstance(table, str | os.PathLike) else type(table).__name__


def _several(setting: str, names: Any) -> tuple[str, ...]:
  """Returns names as a tuple; a text alone is one name, and None is none."""
  found = () if names is None else (names,) if isinstance(names, str) else names
  if not isinstance(found, list | tuple) or not all(isinstance(name, str) for name in found):
    raise SettingError(setting, names, "no names", f"Give texts, such as {setting}=('a', 'b').")
  return tuple(found)
