"""A table of a paper: how each of its cells is run, and what was printed there.

It is two files of one name. `configs/NAME.py` has `get_config(cell)`, and `FIGURES`, which says where a run's
summary.json has each metric: name -> (dotted path, factor). `configs/NAME.csv` has a line a printed figure:
`method`, as the paper calls it, the keys of the cell as `get_config` takes them, `metric`, `mean` and `std`.
A line without figures makes a cell of which the paper says nothing. A figure of two runs is a `Beside`.
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
  """A printed mean and its std; None where there is none."""

  mean: float | None = None
  std: float | None = None


class Beside(NamedTuple):
  """A figure of a run beside another method's, of the same seed and a cell that is the same otherwise.

  Attributes:
    path: dotted path in summary.json.
    figure: (what is there in the run's, in the other's) -> the figure, None where there is none.
    other: method -> the other method; a method that is not there is beside itself.
    without: what is said of a run where `figure` is None; {} in it is the other method.
  """

  path: str
  figure: Callable[[Any, Any], float | None]
  other: Mapping[str, str]
  without: str = "no figure beside {}'s"


class Cell(NamedTuple):
  """What one run of a table is.

  Attributes:
    method: as the paper calls it.
    keys: what `get_config` is given: key -> value.
    paper: metric -> what is printed.
  """

  method: str
  keys: Mapping[str, str]
  paper: Mapping[str, Figure]

  @property
  def text(self) -> str:
    """Such as "dataset=mnist,clients=100,algorithm=fedavg"."""
    return ",".join(f"{key}={value}" for key, value in self.keys.items())


class Table(NamedTuple):
  """A paper's table.

  Attributes:
    name: of its files.
    title: the first line of what `configs/NAME.py` says of itself.
    get_config: cell -> configuration.
    figures: metric -> (dotted path in summary.json, what a value there is multiplied by to be as printed), or
      `Beside`.
    cells: in the paper's order.
    changed: what is asked for other than in the table, such as "rounds=50"; nothing by default.
  """

  name: str
  title: str
  get_config: Callable[[str], ConfigDict]
  figures: Mapping[str, tuple[str, float] | Beside]
  cells: Sequence[Cell]
  changed: str = ""


def read_table(path: str | Path) -> Table:
  """The table whose configuration file is `path`.

  Raises:
    SettingError: a file is missing, cannot be read, or has not what makes a table.
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
  """`get_config`, whose mistakes are those of a setting."""

  def told(cell: str) -> ConfigDict:
    found = called("table", cell, path, get_config, cell, what=f"{path} cannot make it")
    if not isinstance(found, ConfigDict):
      problem = f"get_config of {path} returns {found!r:.60} for it, which is no ConfigDict"
      raise SettingError("table", cell, problem, "Mend its get_config, or the cell.")
    return found

  return told


def check_figures(figures: Mapping[str, Any]) -> None:
  """Raises `SettingError` for a source of a metric that is not as in `Table.figures`."""
  for metric, source in figures.items():
    pair = isinstance(source, tuple | list) and len(source) == 2
    if not isinstance(source, Beside) and not (pair and isinstance(source[0], str) and is_number(source[1])):
      raise SettingError(
        f"FIGURES[{metric!r}]", source, "is not (dotted path, factor)",
        'Write such as ("metrics.personalized.top1", 100.0).',
      )  # fmt: skip


def read_cells(lines: csv.DictReader, path: Path, metrics: Mapping[str, object]) -> list[Cell]:
  """The cells of a CSV's lines; those of one method and one cell belong together.

  Raises:
    SettingError: a column is missing, a line of another length, a metric unknown, a figure no number or given
      twice, or there are no cells.
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
  """The number that a text is; raises ValueError for any other text, NaN and infinity."""
  if not math.isfinite(number := float(text)):
    raise ValueError(f"{text!r} is no figure")
  return number


def parse_where(text: str, flag: str = "where") -> dict[str, list[str]]:
  """ "dataset=mnist,clients=50|100" -> {"dataset": ["mnist"], "clients": ["50", "100"]}.

  Raises:
    SettingError: a part without "=", or a key twice.
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
  """The cells whose keys have the values asked for; `method` is a key too.

  Raises:
    SettingError: a key or a value that the table has not, or no cell left.
  """
  own = [{"method": cell.method, **cell.keys} for cell in cells]
  for key, values in where.items():
    if key not in own[0]:
      remedy = f"{near(key, own[0])} What is no column is set by --cell={key}={values[0]}."
      raise SettingError("where's key", key, "is no column of the table", remedy)
    for value in values:
      check_choice(f"where={key}", value, {keys[key] for keys in own})
  left = [c for c, keys in zip(cells, own) if all(keys[key] in values for key, values in where.items())]
  if not left:
    raise SettingError("where", dict(where), "no cell of the table is so", "Ask for less.")
  return left


def with_keys(table: Table, cells: Sequence[Cell], text: str) -> Table:
  """The table with more keys, "model=minilm", of `cells`: such as `get_config` takes and no column has.

  Raises:
    SettingError: a part without "=", a key twice, one that is a column, or the seed.
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
  """The method of some cells that is called so by the paper, or by its key `algorithm`; "" for "".

  Raises:
    SettingError: no cell's is.
  """
  methods = {cell.method for cell in cells}
  known = {cell.keys.get("algorithm", cell.method): cell.method for cell in cells[::-1]}
  known |= {method: method for method in methods}
  if name:
    check_choice("against", name, known)
  return known.get(name, "")
