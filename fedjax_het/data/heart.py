"""UCI Heart Disease: 920 patients of four hospitals, whose processed files are one client each.

A file has 14 columns and no header: age, sex, cp, trestbps, chol, fbs, restecg, thalach, exang, oldpeak,
slope, ca, thal, num. "?" is a missing value, and num is 0 without disease and 1 to 4 with disease.

Source: Janosi, Steinbrunn, Pfisterer and Detrano, UCI data set 45; the preparation follows AAggFF's code.
"""

from pathlib import Path

import numpy as np

from fedjax_het.data.files import Source, check_rows, find, lacking, number, read_table
from fedjax_het.errors import DataError

ROWS = {"cleveland": 303, "hungarian": 294, "switzerland": 123, "va": 200}
FEATURES = (
  "age", "sex", "trestbps", "chol", "fbs", "thalach", "exang", "oldpeak",
  "cp=1", "cp=2", "cp=3", "cp=4", "restecg=0", "restecg=1", "restecg=2",
)  # fmt: skip
_NUMERIC = [0, 1, 3, 4, 5, 7, 8, 9]
_CP, _RESTECG, _NUM = 2, 6, 13
# Valid codes of each coded column; NaN is among them where the authors' files have "?".
_CODES = {1: (0, 1), 2: (1, 2, 3, 4), 5: (0, 1), 6: (0, 1, 2), 8: (0, 1), 13: (0, 1, 2, 3, 4)}
_NEVER_MISSING = (0, 1, _CP, _NUM)


def file_name(hospital: str) -> str:
  """Returns the name of a hospital's file, as UCI ships it."""
  return f"processed.{hospital}.data"


def load_heart(folder: Path) -> Source | None:
  """Loads 15 features of each patient, float32 [920, 15], and labels, int32 [920], 1 for heart disease.

  `FEATURES` names the columns, and `groups` has the hospital of each patient.

  The columns slope, ca and thal are dropped (they are missing in most rows outside Cleveland), and no row is
  dropped; cp and restecg are one-hot. A missing restecg becomes 0, "normal", to which the authors' column
  mean is truncated. Any other missing value stays NaN, for `federate` to replace by the mean of the
  hospital's training rows (the authors' mean includes the test rows). A cholesterol of 0 means missing too,
  but stays 0, as the authors ship it. All 15 columns are to be standardised, as the authors do.

  Returns:
    The data set, or None where `folder` holds none of the files.

  Raises:
    DataError: a file is missing while others are present, or its rows, fields or codes differ from what UCI
      ships.
  """
  paths = {hospital: path for hospital in ROWS if (path := find(folder, file_name(hospital)))}
  if not paths:
    return None
  tables, notes = [], []
  for hospital, rows in ROWS.items():
    if hospital not in paths:
      raise DataError(f"heart wants {file_name(hospital)} too; looked in {folder.resolve()}.")
    table = _read(paths[hospital], rows)
    tables.append(table)
    missing = int(np.isnan(table[:, [*_NUMERIC, _RESTECG]]).sum())
    if np.isnan(table[:, _RESTECG]).all():
      notes.append(f"{hospital} has no value of restecg in any row: it becomes 0, normal")
    notes.append(
      f"{hospital}: {rows} rows, {int((table[:, _NUM] > 0).sum())} with disease, {missing} values missing in"
      f" the columns used, cholesterol 0 in {int((table[:, 4] == 0).sum())} rows"
      + (
        "" if table[:, 4].any() else " (all rows: it was not measured there, and is 0 after standardisation)"
      )
    )
  table = np.concatenate(tables)
  one_hot = [table[:, [_CP]] == np.arange(1, 5), np.nan_to_num(table[:, [_RESTECG]]) == np.arange(3)]
  x = np.concatenate([table[:, _NUMERIC], *one_hot], axis=1).astype(np.float32)
  y = (table[:, _NUM] > 0).astype(np.int32)
  groups = np.repeat(list(ROWS), [len(table) for table in tables])
  files = tuple(path.name for path in paths.values())
  every = tuple(range(len(FEATURES)))
  notes += lacking(x, groups, FEATURES)
  return Source(x, y, x[:0], y[:0], 2, "heart", groups, files, tuple(notes), every)


def _read(path: Path, rows: int) -> np.ndarray:
  """Reads one hospital's table, float64 [rows, 14], with NaN where a value is missing; raises `DataError`."""
  table = []
  for where, fields in read_table(path, 14):
    values = [number(where, field) for field in fields]
    for column, codes in _CODES.items():
      if values[column] not in codes and not np.isnan(values[column]):
        raise DataError(f"{where} is not what UCI ships: column {column + 1} is {values[column]:g}.")
    for column in _NEVER_MISSING:
      if np.isnan(values[column]):
        raise DataError(f"{where} is not what UCI ships: column {column + 1} is missing.")
    table.append(values)
  check_rows(path, len(table), rows)
  return np.array(table)
