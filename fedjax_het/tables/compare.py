"""Comparison of a table's runs with the paper's figures, over seeds, and of its methods with each other."""

import contextlib
import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fedjax_het.config.values import is_measured
from fedjax_het.metrics.budget import mean_budget
from fedjax_het.metrics.late import unsettled
from fedjax_het.studies.plots import spelled
from fedjax_het.tables.paper import Cell, Figure, Relative, Table
from fedjax_het.tables.runs import Wanted, identity, outcome
from fedjax_het.workdir.folder import read_record, read_starts


class Late(NamedTuple):
  """The range of a run's mean over the clients in its last fifth, see `metrics.late`, as the table shows it.

  Attributes:
    low: the lowest judged mean.
    high: the highest.
    std: their standard deviation over the rounds.
    settled: whether the mean has settled.
  """

  low: float
  high: float
  std: float
  settled: bool


class Entry(NamedTuple):
  """One metric of one cell: the paper's figure, and ours for each seed.

  Attributes:
    cell: the cell.
    metric: the name of the metric.
    paper: the printed figure.
    ours: seed -> our figure; its std is over the clients, where the summary has one.
    failed: seed -> the reason why a run that ended has no figure.
    missing: seeds that have not run.
    late: seed -> the range of its figure in the run's last fifth; without the seeds for which it is unknown,
      and empty for figures that are no means over the clients after the last round.
    budget: what a run took, a mean over the seeds that have a figure, see `metrics.budget`.
    picked: what was picked for the figure and on which part, such as {"round": "test"}; see `picked_on`.
  """

  cell: Cell
  metric: str
  paper: Figure
  ours: Mapping[int, Figure]
  failed: Mapping[int, str]
  missing: Sequence[int]
  late: Mapping[int, Late] = MappingProxyType({})
  budget: Mapping[str, float] = MappingProxyType({})
  picked: Mapping[str, str] = MappingProxyType({})

  @property
  def moving(self) -> tuple[float, float] | None:
    """The lowest and highest late figure of all seeds if one of them has not settled; else None."""
    if all(own.settled for own in self.late.values()):
      return None
    return min(own.low for own in self.late.values()), max(own.high for own in self.late.values())

  @property
  def values(self) -> dict[int, float]:
    """Our mean of each seed: seed -> mean."""
    return {seed: own.mean for seed, own in self.ours.items() if own.mean is not None}

  @property
  def mean(self) -> float | None:
    """Our mean over the seeds."""
    return float(np.mean([*self.values.values()])) if self.values else None

  @property
  def over_seeds(self) -> float | None:
    """The sample standard deviation over the seeds; None for fewer than two."""
    return float(np.std([*self.values.values()], ddof=1)) if len(self.values) > 1 else None

  @property
  def over_clients(self) -> float | None:
    """The standard deviation over the clients, averaged over the seeds."""
    stds = [own.std for own in self.ours.values() if own.std is not None]
    return float(np.mean(stds)) if stds else None

  @property
  def difference(self) -> float | None:
    """Our mean minus the paper's."""
    return None if None in (self.mean, self.paper.mean) else self.mean - self.paper.mean  # type: ignore


def entries(table: Table, wanted: Sequence[Wanted], ended: Mapping[str, Path]) -> list[Entry]:
  """Returns all metrics of the wanted cells, in the table's order.

  `ended` maps the identities of ended runs to their folders, see `runs.ended`.
  """
  found = []
  folders = {id(one): ended.get(identity(one.plan)) for one in wanted}
  known = {one: outcome(folder) if folder else None for one, folder in folders.items()}
  if table.pick == "valid":
    known = {one: result and by_validation(result) for one, result in known.items()}
  places, shown = columns(table.cells), printed(table.cells, [*table.figures])

  def other(one: Wanted, figure: tuple[str, float] | Relative) -> dict[str, Any] | None:
    if not isinstance(figure, Relative):
      return None
    method, place = figure.other.get(one.cell.method, one.cell.method), _place(one, places)
    return next(
      (known[id(each)] for each in wanted if each.cell.method == method and _place(each, places) == place),
      None,
    )

  for _, group in itertools.groupby(wanted, key=lambda one: one.cell.text + one.cell.method):
    runs = list(group)
    results = {one.seed: known[id(one)] for one in runs}
    for metric in shown[runs[0].cell.text]:
      source = table.figures[metric]
      others = {one.seed: other(one, source) for one in runs}
      ours, failed = {}, {}
      for seed, result in results.items():
        if result is None:
          continue
        figure = None if _failed(result) else read(result, source, others[seed])
        if figure is not None and figure.mean is not None:
          ours[seed] = figure
        else:
          failed[seed] = _failed(result) or _lacks(source, metric, runs[0], result, others[seed])
      missing = [seed for seed, result in results.items() if result is None]
      paper = runs[0].cell.paper.get(metric, Figure())
      late = {seed: own for seed in ours if (own := late_of(results[seed] or {}, source)) is not None}
      budget = mean_budget([results[seed] or {} for seed in ours])
      seen = next((results[seed] or {} for seed in ours), {})
      picked = picked_on(seen, source, table.pick) if seen else {}
      found.append(Entry(runs[0].cell, metric, paper, ours, failed, missing, late, budget, picked))
  return found


def by_validation(summary: Mapping[str, Any]) -> dict[str, Any]:
  """Returns a summary in which what is picked on test parts is picked on validation parts instead.

  `best.MODEL` becomes the test figure of the evaluation that is best on the validation parts,
  `lambda.least_loss` that of the λ with the least loss there, and `lambda.per_client_test_optimistic` that of
  each client's λ by its validation part. What was not judged on validation parts is left out.
  """
  found = dict(summary)
  if isinstance(best := found.get("best"), Mapping):
    models = {name: own["valid"] for name, own in best.items() if isinstance(own, Mapping) and "valid" in own}
    found["best"] = {name: best[name] for name in ("metric", "course") if name in best} | models
  if isinstance(line := found.get("lambda"), Mapping):
    least = line.get("least_loss")
    found["lambda"] = {
      **line,
      "least_loss": least.get("valid") if isinstance(least, Mapping) else None,
      "per_client_test_optimistic": line.get("validation"),
    }
  return found


def picked_on(summary: Mapping[str, Any], source: tuple[str, float] | Relative, pick: str) -> dict[str, str]:
  """Returns what was picked for a figure of a run, and on which part of the clients' data.

  Args:
    summary: the run's summary.
    source: see `Table.figures`.
    pick: see `Table`.

  Returns:
    {"round": part} for a figure of the best round, and {"λ": part} for one of models at a picked λ, with the
    parts "test" and "validation"; {} for a figure for which nothing was picked.
  """
  path = source.path if isinstance(source, Relative) else source[0]
  section, part = path.split(".")[0], "validation" if pick == "valid" else "test"
  found = {"round": part} if section == "best" else {}
  if section == "lambda":
    return {"λ": part} if path.split(".")[1:2] != ["validation"] else {"λ": "validation"}
  of_line = at(summary, "lambda.picked_on")
  if of_line in ("test", "validation") and (path == "best" or ".personalized" in path):
    found["λ"] = of_line
  return found


def made(folders: Sequence[Path]) -> str:
  """Describes how the runs in some folders were made: code, machines and dates of all their starts."""
  runs = [(folder, read_starts(folder)) for folder in folders]
  starts = [start for _, own in runs for start in own]
  texts = []
  for name in ("version", "commit", "machine", "devices", "jax", "date"):
    values = list(dict.fromkeys(str(start[name]) for start in starts if start.get(name)))
    if name == "date" and len(values) > 3:
      values = [f"{min(values)} to {max(values)}"]
    if values:
      texts.append(f"{name} {', '.join(values)}")
  return "; ".join(texts + _of_other_data(runs))


def _of_other_data(runs: Sequence[tuple[Path, Sequence[Mapping[str, Any]]]]) -> list[str]:
  """Returns a sentence for each data set whose recorded digest differs between runs."""
  seen: dict[str, set[str]] = defaultdict(set)
  for folder, starts in runs:
    config = read_record(folder / "config.json") or {}
    name = " ".join(str(config[field]) for field in ("dataset", "dataset_options") if config.get(field))
    seen[name] |= {str(start["data"]["data_digest"]) for start in starts if "data_digest" in start["data"]}
  return [
    f"{name} was not the same data in all runs: data_digest {', '.join(sorted(own))}"
    for name, own in seen.items()
    if len(own) > 1
  ]


def read(
  summary: Mapping[str, Any], source: tuple[str, float] | Relative, other: Mapping[str, Any] | None = None
) -> Figure | None:
  """Reads a figure out of a summary: a number, or a mean and std; None if there is none.

  Args:
    summary: the run's summary.
    source: see `Table.figures`.
    other: the summary of the other method's run, for a `Relative`.
  """
  value: Any = None
  factor = 1.0
  if isinstance(source, Relative):
    own, reference = (
      at(summary, source.path),
      at(other, source.path) if other and not _failed(other) else None,
    )
    with contextlib.suppress(ArithmeticError, AttributeError, LookupError, TypeError, ValueError):  # damaged
      value = source.figure(own, reference) if own and reference else None
  else:
    value, factor = at(summary, source[0]), source[1]
  pair: list[Any] = [value.get("mean"), value.get("std")] if isinstance(value, Mapping) else [value, None]
  mean, std = (factor * one if is_measured(one) else None for one in pair)
  return None if mean is None else Figure(mean, std)


def late_of(summary: Mapping[str, Any], source: tuple[str, float] | Relative) -> Late | None:
  """Returns the late range of a figure whose source is `metrics.MODEL.METRIC` or its mean; else None."""
  if isinstance(source, Relative):
    return None
  section, *place = source[0].removesuffix(".mean").split(".")
  if section != "metrics" or len(place) != 2:
    return None
  model, metric = place
  values = [at(summary, f"late.{model}.{metric}.{name}") for name in ("min", "max", "std")]
  if not all(map(is_measured, values)):
    return None
  with contextlib.suppress(ArithmeticError, AttributeError, TypeError):  # damaged
    settled = unsettled(summary, model, metric) is None
    low, high, std = (source[1] * value for value in values)
    return Late(low, high, std, settled)
  return None


def at(summary: Mapping[str, Any], path: str) -> Any:
  """Returns the value at a dotted path of a summary, or None."""
  value: Any = summary
  for name in path.split("."):
    value = value.get(name) if isinstance(value, Mapping) else None
  return value


def _place(one: Wanted, keys: Sequence[str]) -> tuple[Any, ...]:
  """Returns what a run has in common with other methods' runs in its column: seed and column keys."""
  return (one.seed, *(one.cell.keys[key] for key in keys))


def counterpart(entry: Entry, entries: Sequence[Entry], method: str, column: Sequence[str]) -> Entry | None:
  """Returns the entry of another method for the same metric and column of a table, or None."""
  for other in entries:
    same = all(other.cell.keys[key] == entry.cell.keys[key] for key in column)
    if other.cell.method == method and other.metric == entry.metric and same:
      return other
  return None


def columns(cells: Sequence[Cell]) -> list[str]:
  """Returns the keys that tell the columns of a table apart: those whose values differ within a method.

  A key that belongs to the method, such as its mixing, is left out: the other keys determine it within a
  method, and methods differ in it where the other keys are equal. A cell may be there several times, as once
  for each metric.
  """
  different = len({(cell.method, *cell.keys.values()) for cell in cells})

  def values(cell: Cell, keys: Sequence[str]) -> tuple[str, ...]:
    return tuple(cell.keys[key] for key in keys)

  def differs(key: str) -> bool:
    return len({(cell.method, cell.keys[key]) for cell in cells}) > len({cell.method for cell in cells})

  found = [key for key in cells[0].keys if differs(key)]
  for key in [*found]:
    others = [other for other in found if other != key]
    determined = len({(cell.method, *values(cell, others)) for cell in cells}) == different
    if determined and len({values(cell, found) for cell in cells}) > len(
      {values(cell, others) for cell in cells}
    ):
      found = others
  return found


def printed(cells: Sequence[Cell], metrics: Sequence[str]) -> dict[str, list[str]]:
  """Returns the metrics of each cell: those for which the table has a line in the cell's column.

  A metric that no line of the table has is a metric of every cell. Cells are keyed by `Cell.text`.
  """
  known = {metric for cell in cells for metric in cell.paper}
  keys = columns(cells)
  of: dict[tuple[str, ...], set[str]] = defaultdict(lambda: {*metrics} - known)
  places = {cell.text: tuple(cell.keys[key] for key in keys) for cell in cells}
  for cell in cells:
    of[places[cell.text]] |= {*cell.paper}
  return {text: [metric for metric in metrics if metric in of[place]] for text, place in places.items()}


def _lacks(
  source: tuple[str, float] | Relative, metric: str, one: Wanted, result: Mapping[str, Any],
  other: Mapping[str, Any] | None,
) -> str:  # fmt: skip
  if not isinstance(source, Relative):
    return _absent(source[0], metric, result)
  if not at(result, source.path):
    return _absent(source.path, source.path, result)
  method = source.other.get(one.cell.method, one.cell.method)
  if other is None:
    return f"no run of {method} to compare with"
  why = _failed(other) or ("" if at(other, source.path) else _absent(source.path, source.path, other))
  return f"{method}, which it is compared with: {why}" if why else source.without.format(method)


def _absent(path: str, name: str, summary: Mapping[str, Any]) -> str:
  """Returns why a summary has nothing at a dotted path: what the method lacks, or that there is no `name`."""
  section, *place = path.split(".")
  models = summary.get("metrics")
  if section == "metrics" and len(place) > 1 and isinstance(models, Mapping):
    model, metric = place[:2]
    if not models.get(model):
      return f"no {spelled(model)} model"
    if metric not in models[model]:
      return f"no {metric} among its task's metrics"
  if place and isinstance(summary.get(section), Mapping):
    return f"no {place[-1]} among its {section} figures"
  lacking = {"lambda": "no line of models", "synthetic": "no synthetic examples", "simplex": "no simplex"}
  return lacking.get(section, f"its summary has no {name}")


def _failed(result: Mapping[str, Any]) -> str:
  """Returns the reason why a run or a sweep's member has no result, or "" if it has one."""
  if "failed" in result:
    return " ".join(str(result["failed"]).split()).rstrip(".") or "failed"
  return f"diverged in round {at(result, 'diverged.round')}" if result.get("diverged") else ""
