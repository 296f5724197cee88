"""A table of a paper: the configuration of each cell's run, and the printed figures.

A table consists of two files with one name. `configs/NAME.py` has `get_config(cell)`, and `FIGURES`, which
maps each metric to its place in a run's summary.json: name -> (dotted path, factor). `configs/NAME.csv` has a
line for each printed figure: `method`, the paper's name of it, the keys of the cell as `get_config` takes
them, `metric`, `mean` and `std`. A line without figures makes a cell for which the paper prints nothing. A
metric that is computed from two methods' runs is a `Relative`.
"""

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from fedjax_het.config.file import called, load_module
from fedjax_het.config.values import is_number
from fedjax_het.errors import SettingError, check_choice, near

NOT_KEYS = ("method", "metric", "mean", "std")


class Figure(NamedTuple):
  """A mean and its standard deviation; None for what is not known."""

  mean: float | None = None
  std: float | None = None


class Relative(NamedTuple):
  """A metric computed from a run and another method's run of the same seed and column.

  Attributes:
    path: dotted path in both runs' summary.json.
    figure: (value at `path` in the run's summary, in the other's) -> the figure, or None.
    other: method -> the method that it is compared with; by default itself.
    without: the reason shown where `figure` is None, with {} for the other method's name.
  """

  path: str
  figure: Callable[[Any, Any], float | None]
  other: Mapping[str, str]
  without: str = "no figure relative to {}'s"


Beside = Relative  # the name that earlier configuration files import


class Cell(NamedTuple):
  """One cell of a table: a method in one setting, run once for each seed.

  Attributes:
    method: the paper's name of the method.
    keys: the arguments of `get_config`: key -> value.
    paper: metric -> the printed figure.
  """

  method: str
  keys: Mapping[str, str]
  paper: Mapping[str, Figure]

  @property
  def text(self) -> str:
    """The keys as text, such as "dataset=mnist,clients=100,algorithm=fedavg"."""
    return ",".join(f"{key}={value}" for key, value in self.keys.items())


class Table(NamedTuple):
  """A paper's table, as read by `read_table`.

  Attributes:
    name: the name of its two files, without their endings.
    title: the first line of the docstring of `configs/NAME.py`.
    get_config: cell -> configuration.
    figures: metric -> (dotted path in summary.json, factor that makes the value there comparable with the
      printed one), or a `Relative`.
    cells: the cells, in the paper's order.
    changed: settings that differ from the table's, such as "rounds=50"; "" by default.
    pick: the part of the clients' data on which a best round or λ is picked, "test" as printed, or "valid".
  """

  name: str
  title: str
  get_config: Callable[[str], ConfigDict]
  figures: Mapping[str, tuple[str, float] | Relative]
  cells: Sequence[Cell]
  changed: str = ""
  pick: str = "test"


def read_table(path: str | Path) -> Table:
  """Reads the table whose configuration file is `path`, and the .csv of the same name.

  Raises:
    SettingError: a file is missing, cannot be read, or lacks what makes a table.
  """
  remedy = "Name a table such as configs/table_2_3.py."
  config = Path(path)
  if config.suffix != ".py":
    raise SettingError("table", str(path), "is not a .py file, the configuration", remedy)
  printed = config.with_suffix(".csv")
  for needed in (config, printed):
    if not needed.is_file():
      raise SettingError("table", str(needed), "no such file", remedy)
  module = load_module("table", config)
  for name in ("get_config", "FIGURES"):
    if not hasattr(module, name):
      raise SettingError("table", str(config), f"has no {name}", "See fedjax_het/tables/paper.py.")
  check_figures(module.FIGURES)
  title = (module.__doc__ or config.stem).splitlines()[0].rstrip(".")
  try:
    with printed.open(newline="", encoding="utf-8-sig") as file:
      cells = read_cells(csv.DictReader(file), printed, module.FIGURES)
  except (UnicodeError, csv.Error) as error:
    raise SettingError("table", str(printed), f"is no CSV in UTF-8 ({error})", "Mend it.") from error
  except OSError as error:
    raise SettingError("table", str(printed), f"cannot be read ({error})", remedy) from error
  return Table(config.stem, title, _told(module.get_config, config), module.FIGURES, cells)


def _told(get_config: Callable[[str], ConfigDict], path: Path) -> Callable[[str], ConfigDict]:
  """Wraps `get_config` so that whatever it raises becomes a `SettingError` naming the cell."""

  def told(cell: str) -> ConfigDict:
    found = called("table", cell, path, get_config, cell, what=f"{path} cannot make it")
    if not isinstance(found, ConfigDict):
      problem = f"get_config of {path} returns {found!r:.60} for it, which is no ConfigDict"
      raise SettingError("table", cell, problem, "Mend its get_config, or the cell.")
    return found

  return told


def check_figures(figures: Mapping[str, Any]) -> None:
  """Raises `SettingError` for a metric's source that is not as `Table.figures` describes."""
  for metric, source in figures.items():
    pair = isinstance(source, tuple | list) and len(source) == 2
    if not isinstance(source, Relative) and not (
      pair and isinstance(source[0], str) and is_number(source[1])
    ):
      raise SettingError(
        f"FIGURES[{metric!r}]", source, "is not (dotted path, factor)",
        'Write such as ("metrics.personalized.top1", 100.0).',
      )  # fmt: skip


def read_cells(lines: csv.DictReader, path: Path, metrics: Mapping[str, object]) -> list[Cell]:
  """Makes cells of a CSV's lines; the lines with the same method and keys are one cell.

  Raises:
    SettingError: a column is missing, a line has another number of fields, a metric is unknown, a figure is
      no number or repeated, or there are no cells.
  """
  if missing := [name for name in NOT_KEYS if name not in (lines.fieldnames or ())]:
    raise SettingError("table", str(path), f"has no column {missing[0]}", "Add it.")
  found: dict[tuple[str, ...], Cell] = {}
  for line in lines:
    if None in (*line, *line.values()):
      problem = f"line {lines.line_num} has not as many fields as there are columns"
      raise SettingError("table", str(path), problem, "Mend it.")
    keys = {name: value for name, value in line.items() if name not in NOT_KEYS}
    cell = found.setdefault((line["method"], *keys.values()), Cell(line["method"], keys, {}))
    check_choice(f"{path.name}'s metric", line["metric"], metrics)
    if line["metric"] in cell.paper:
      raise SettingError(line["metric"], cell.text, f"stands in {path} twice", "Remove one.")
    try:
      figure = Figure(*(finite(line[name]) if line[name] else None for name in ("mean", "std")))
    except ValueError as error:
      raise SettingError(line["metric"], cell.text, f"of {path}: {error}", "Write a number.") from error
    cell.paper[line["metric"]] = figure  # type: ignore[index]
  if not found:
    raise SettingError("table", str(path), "has no cells", "Write a line for each.")
  return list(found.values())


def finite(text: str) -> float:
  """Parses a finite number; raises ValueError for any other text, NaN and infinity."""
  if not math.isfinite(number := float(text)):
    raise ValueError(f"{text!r} is no figure")
  return number


def parse_where(text: str, flag: str = "where") -> dict[str, list[str]]:
  """Parses "dataset=mnist,clients=50|100" into {"dataset": ["mnist"], "clients": ["50", "100"]}.

  Raises:
    SettingError: a part has no "=", or a key is repeated.
  """
  found: dict[str, list[str]] = {}
  for part in filter(None, text.split(",")):
    key, equals, values = (own.strip() for own in part.partition("="))
    if not equals:
      raise SettingError(flag, part, "says no value", f"Write --{flag}=key=value,key=value.")
    if key in found:
      both = "|".join([*found[key], values])
      remedy = f"Write {key}={both} for any of these." if flag == "where" else "Give it once."
      raise SettingError(flag, text, f"names {key} twice", remedy)
    found[key] = [value.strip() for value in values.split("|")]
  return found


def chosen(cells: Sequence[Cell], where: Mapping[str, Sequence[str]]) -> list[Cell]:
  """Returns the cells whose keys have the given values; `method` is a key too.

  Raises:
    SettingError: the table has no such key or value, or no cell is left.
  """
  own = [{"method": cell.method, **cell.keys} for cell in cells]
  for key, values in where.items():
    if key not in own[0]:
      remedy = f"{near(key, own[0])} Arguments that are no columns are set by --cell={key}={values[0]}."
      raise SettingError("where's key", key, "is no column of the table", remedy)
    for value in values:
      check_choice(f"where={key}", value, {keys[key] for keys in own})
  left = [c for c, keys in zip(cells, own) if all(keys[key] in values for key, values in where.items())]
  if not left:
    raise SettingError("where", dict(where), "no cell of the table has all these values", "Ask for less.")
  return left


def with_keys(table: Table, cells: Sequence[Cell], text: str) -> Table:
  """Returns the table with more arguments of `get_config` in all cells, such as "model=minilm".

  Args:
    table: the table.
    cells: the cells that are wanted; `changed` says the arguments unless no configuration of these changes.
    text: the arguments, as in a cell's text; "" for none.

  Raises:
    SettingError: a part has no "=", or a key is repeated, is a column, or is the seed.
  """
  if not text:
    return table
  for key, values in parse_where(text, "cell").items():
    value = "|".join(values)
    if key == "seed":
      raise SettingError("cell", text, "every cell has the seeds of --seeds", f"Write --seeds={value}.")
    if key in cells[0].keys:
      raise SettingError("cell", text, f"{key} is a column of the table", f"Write --where={key}={value}.")
  get_config = table.get_config
  same = all(get_config(cell.text) == get_config(f"{cell.text},{text}") for cell in cells)
  return table._replace(
    get_config=lambda cell: get_config(f"{cell},{text}"), changed="" if same else text.replace(",", ", ")
  )


def method_of(name: str, cells: Sequence[Cell]) -> str:
  """Returns the paper's name of a method that is given by this name or by its key `algorithm`; "" for "".

  Raises:
    SettingError: no cell has such a method.
  """
  methods = {cell.method for cell in cells}
  known = {cell.keys.get("algorithm", cell.method): cell.method for cell in cells[::-1]}
  known |= {method: method for method in methods}
  if name:
    check_choice("against", name, known)
  return known.get(name, "")
