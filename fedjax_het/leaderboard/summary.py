"""A task's rows over their seeds: means with intervals, and who cannot be told apart from the best."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_het.metrics.catalogue import shown
from fedjax_het.metrics.groups import Groups, with_the_best
from fedjax_het.metrics.seeds import OverSeeds, over_seeds

COLUMNS = ("mean", "worst", "weighted", "global", "ece", "up", "down", "client_steps", "train_seconds")


class Line(NamedTuple):
  """A method on a task, over its seeds.

  Attributes:
    method: its name.
    raw: its raw figures.
    over: column -> mean and interval over the seeds; None where the method has no such figure.
  """

  method: str
  raw: Mapping[str, Any]
  over: Mapping[str, OverSeeds | None]

  def mean(self, column: str) -> float | None:
    """Returns the mean of a column over the seeds; None where the method has no such figure."""
    own = self.over[column]
    return None if own is None else own.mean


class Task(NamedTuple):
  """A task's rows.

  Attributes:
    name: the task.
    metric: the headline metric; "" if no row has figures.
    clients: K.
    first: the lines of the first group, alphabetically.
    others: those of the methods that are worse, from the best mean on.
    failed: method -> why it has no figures to compare.
    groups: the comparison; None for fewer than two methods.
  """

  name: str
  metric: str
  clients: int
  first: Sequence[Line]
  others: Sequence[Line]
  failed: Mapping[str, str]
  groups: Groups | None

  @property
  def lines(self) -> list[Line]:
    """All lines, as they are shown."""
    return [*self.first, *self.others]


def summarized(name: str, found: Mapping[str, Mapping[str, Any]]) -> Task:
  """Returns a task's rows over their seeds.

  Args:
    name: the task.
    found: method -> its raw figures.
  """
  failed: dict[str, str] = {}
  lines: dict[str, Line] = {}
  for method, raw in found.items():
    seeds = list(raw.get("seeds", {}).values())
    lost = sum(own.get("mean") is None for own in seeds)
    if not seeds:
      failed[method] = str(raw.get("failed", "it has no seeds"))
    elif lost:
      failed[method] = f"{lost} of {len(seeds)} seeds have no value (they diverged)"
    else:
      lines[method] = Line(method, raw, {column: _over(seeds, column) for column in COLUMNS})
  if not lines:
    return Task(name, "", 0, [], [], failed, None)
  some = next(iter(lines.values())).raw
  metric, clients = some["metric"], some["num_clients"]
  groups = None
  first, others = sorted(lines), []
  if len(lines) > 1:
    values = {
      method: {int(seed): own["mean"] for seed, own in line.raw["seeds"].items()}
      for method, line in lines.items()
    }
    groups = with_the_best(values, shown(metric).higher_is_better)
    first, others = [*groups.first], [*groups.others]
  return Task(
    name, metric, clients, [lines[one] for one in first], [lines[one] for one in others], failed, groups
  )


def _over(seeds: Sequence[Mapping[str, Any]], column: str) -> OverSeeds | None:
  values = [own.get(column) for own in seeds]
  numbers = [float(own) for own in values if own is not None]
  return over_seeds(numbers) if len(numbers) == len(values) and np.isfinite(numbers).all() else None
