"""Renders a comparison of runs as CSV (unrounded) and LaTeX, and tables of budgets and of single clients."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from fedjax_het.compare.groups import Group, budget_of, unlike
from fedjax_het.compare.runs import Run
from fedjax_het.errors import SettingError
from fedjax_het.metrics.budget import BUDGETS, amount
from fedjax_het.metrics.seeds import over_seeds, paired
from fedjax_het.output import escape
from fedjax_het.studies.client_metrics import read_clients
from fedjax_het.studies.text import named, number

FIGURES = ("mean", "worst10", "std")
MOST_ROWS = 100  # clients that the terminal shows at most


def rows(groups: Sequence[Group], metric: str, baseline: Group, model: str) -> list[dict[str, Any]]:
  """Returns the comparison's rows with unrounded figures, one for each group; None for what is not known.

  Args:
    groups: the groups that have `metric`.
    metric: the metric.
    baseline: the group that differences are taken from.
    model: "personalized" or "global".

  Returns:
    Dictionaries of label, model, metric, seeds; mean, worst10 and std over the clients, each a mean over the
    seeds; half the 95 % interval of the mean; the difference from the baseline, paired by seed, and half its
    interval; the budget of a run; state; and the fields of the configuration in which groups differ.
  """
  found = []
  for group in groups:
    own = {name: over_seeds(group.values(model, metric, name).values()) for name in FIGURES}
    apart = group is baseline or bool(unlike(group.data, baseline.data))
    values = group.values(model, metric, "mean"), baseline.values(model, metric, "mean")
    less = None if apart else paired(*values)
    row: dict[str, Any] = {"label": group.label, "model": model, "metric": metric, "seeds": own["mean"].seeds}
    row |= {name: one.mean if one.seeds else None for name, one in own.items()}
    row |= {"half": own["mean"].half, "baseline": baseline.label}
    row |= {"difference": less.mean if less and less.seeds else None, "difference_half": less and less.half}
    took = budget_of(group)
    row |= {name: took.get(name) for name in BUDGETS} | {"state": group.state}
    found.append(row | {name: value for name, value in group.fields.items() if name not in row})
  return found


def as_csv(table: Sequence[Mapping[str, Any]]) -> str:
  """Renders rows as CSV; the columns are those of all rows, and what is not known is blank."""
  names = list(dict.fromkeys(name for row in table for name in row))
  out = io.StringIO()
  write = csv.writer(out, lineterminator="\n")
  write.writerow(map(escape.csv_field, names))
  for row in table:
    values = ("" if row.get(name) is None else row[name] for name in names)
    write.writerow([escape.csv_field(v if isinstance(v, int | float) else str(v)) for v in values])
  return out.getvalue()


def as_latex(table: Sequence[Mapping[str, Any]]) -> str:
  r"""Renders `rows` as LaTeX, for `\usepackage{booktabs}`; a `tabular` for each metric."""
  parts = []
  for metric in dict.fromkeys(row["metric"] for row in table):
    own = [row for row in table if row["metric"] == metric]
    heads = ["", "seeds", f"{named(metric)}: mean", "worst 10 %", "spread", f"less {own[0]['baseline']}"]
    body = [heads, *(_texts(row, metric) for row in own)]
    first, *others = (" & ".join(map(escape.latex, line)) + r" \\" for line in body)
    parts += [rf"\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}", r"\toprule", first, r"\midrule", *others]
    parts += [r"\bottomrule", r"\end{tabular}", ""]
  return "\n".join(parts)


def _texts(row: Mapping[str, Any], metric: str) -> list[str]:
  def with_half(name: str, half: str, sign: str = "") -> str:
    text = number(row[name], metric)
    text = f"+{text}" if sign and (row[name] or 0) > 0 else text
    return text if row[half] is None else f"{text} ± {number(row[half], metric)}"

  others = [number(row[name], metric) for name in ("worst10", "std")]
  difference = with_half("difference", "difference_half", "+")
  return [str(row["label"]), str(row["seeds"]), with_half("mean", "half"), *others, difference]


def budgets_table(groups: Sequence[Group]) -> Table | None:
  """Returns a table of what a run of each group took, a mean over its seeds; None where nothing is known."""
  took = {group.label: budget_of(group) for group in groups}
  if not any(took.values()):
    return None
  table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
  table.add_column("a run took", overflow="fold")
  names = [name for name in BUDGETS if any(name in own for own in took.values())]
  for name in names:
    table.add_column(BUDGETS[name], justify="right", no_wrap=True)
  for label, own in took.items():
    table.add_row(Text(label), *(amount(name, own.get(name)) for name in names))
  return table


def clients(groups: Sequence[Group], metric: str, model: str) -> list[dict[str, Any]]:
  """Returns a row for each client: its name, or its number where clients have none, and a value by label.

  A value is the mean over the runs of a group that have one for the client, read from their clients.npz; None
  where none has. Clients are sorted by the first group's value, worst first where that is lowest.

  Raises:
    SettingError: clients have no names, and a number is another client in each of several seeds.
  """
  found: dict[str, dict[str, list[float]]] = {}
  seeds: set[int] = set()  # of runs whose clients go by a number that depends on the seed
  for group in groups:
    for run in group.counted:
      names, stored = read_clients(run.folder)
      values = stored.get(f"{model}/{metric}")
      if values is None or values.ndim != 1:
        continue
      if names is not None and names.shape == values.shape:
        told = names
      else:
        told = np.arange(len(values))
        seeds |= set() if _same_in_all_seeds(run) else {run.seed}
      for name, value in zip(told, values):
        own = found.setdefault(str(name), {}).setdefault(group.label, [])
        own += [float(value)] * bool(np.isfinite(value))
  if len(seeds) > 1:
    problem = f"clients have no names, and number 0 is another client in each of {len(seeds)} seeds"
    remedy = "Name runs of one seed, or train with --config.partition.seed=0, which deals the rows of all."
    raise SettingError("clients", True, problem, remedy)
  labels = [group.label for group in groups]
  table = [
    {"client": name, **{label: float(np.mean(own[label])) if own.get(label) else None for label in labels}}
    for name, own in found.items()
  ]
  last = float("inf")
  return sorted(table, key=lambda row: last if (own := row[labels[0]]) is None else own)


def _same_in_all_seeds(run: Run) -> bool:
  """Returns whether a client's number does not depend on the run's seed."""
  own = run.config.get("partition")
  if not isinstance(own, Mapping):
    return False
  return own.get("seed") is not None or (own.get("name") == "natural" and own.get("sample") is None)


def clients_table(table: Sequence[Mapping[str, Any]], metric: str) -> Table:
  """Renders `clients` for the terminal, at most `MOST_ROWS` rows."""
  drawn = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
  for place, name in enumerate(table[0] if table else ()):
    drawn.add_column(Text(name), justify="right" if place else "left", overflow="fold")
  for row in table[:MOST_ROWS]:
    name, *values = row.values()
    drawn.add_row(Text(name), *(number(value, metric) for value in values))
  if len(table) > MOST_ROWS:
    drawn.caption = f"{len(table) - MOST_ROWS} more clients: --csv=FILE has all"
  return drawn
