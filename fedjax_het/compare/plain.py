"""Comparison of runs as tables on the terminal."""

import math
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Group as Lines
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from fedjax_het.compare.conditions import unequal_conditions
from fedjax_het.compare.export import budgets_table
from fedjax_het.compare.groups import Group, budget_of, late_of, unlike, unnamed
from fedjax_het.errors import SettingError, near
from fedjax_het.metrics.budget import unequal
from fedjax_het.metrics.seeds import OverSeeds, over_seeds, paired
from fedjax_het.studies.client_metrics import headline_of
from fedjax_het.studies.late import MARK, WHAT
from fedjax_het.studies.plots import spelled
from fedjax_het.studies.text import MISSING, named, number

COLUMNS = {"mean": "mean", "worst10": "worst 10 %", "std": "spread"}
MODELS = ("personalized", "global")


def headline(group: Group) -> str:
  """Returns the metric by which a group's task is judged, or "" before the first evaluation."""
  found = next((own for run in group.runs if (own := group.metrics(run)).get("personalized")), None)
  return headline_of(found) if found else ""


def judged(group: Group, model: str, metric: str = "") -> str:
  """Returns the metric that a group's table shows: `metric` if it has that, else its task's headline."""
  return metric if metric and group.values(model, metric, "mean") else "" if metric else headline(group)


def check_metric(groups: Sequence[Group], model: str, metric: str) -> None:
  """Raises `SettingError` if no group has the metric to be shown; "" is each task's headline metric."""
  if metric and not any(judged(group, model, metric) for group in groups):
    known = dict.fromkeys(
      name for group in groups for run in group.counted for name in group.metrics(run).get(model) or {}
    )
    problem = f"no run has it for the {spelled(model)} model"
    raise SettingError("metric", metric, problem, near(metric, known) if known else "Let a run be evaluated.")


def tables(
  groups: Sequence[Group], baseline: int = 0, model: str = "personalized", metric: str = ""
) -> RenderableType:
  """Returns a table for each metric by which some group's task is judged, and one of the runs' budgets.

  Args:
    groups: all groups of runs.
    baseline: the index of the group that the others are compared with.
    model: "personalized" or "global".
    metric: the metric to show; by default each task's headline.
  """
  wanted = metric
  metrics = dict.fromkeys(judged(group, model, wanted) for group in groups)
  known = [metric for metric in metrics if metric]
  parts: list[RenderableType] = []
  for metric in known:
    title = f"{named(metric)} of the {spelled(model)} model{'s' if model == 'personalized' else ''}"
    against = f"; differences from {groups[baseline].label}" if len(groups) > 1 else ""
    own = [group for group in groups if judged(group, model, wanted) == metric]
    parts += [Text(title + against, style="bold"), table(own, metric, groups[baseline], model)]
  makers = [group for group in groups if group.values("synthetic", "top1", "mean")]
  if makers:
    title = f"{named('top1')} of a classifier that learnt from the synthetic examples alone"
    parts += [Text(title, style="bold"), table(makers, "top1", groups[baseline], "synthetic")]
  if (took := budgets_table(groups)) is not None:
    parts.append(took)
    parts += [Text(note, style="bold") for note in unequal({own.label: budget_of(own) for own in groups})]
  parts += [Text(note, style="bold") for note in unequal_conditions(groups)]
  if others := unnamed(groups):
    told = "; ".join(f"{field} ({', '.join(map(str, values))})" for field, values in others.items())
    parts.append(Text(f"The lines differ also in what their labels do not say: {told}.", style="bold"))
  early = [group for group in groups if not judged(group, model, wanted)]
  lacking = f", without {named(metric)} of the {spelled(model)} model" if (metric := wanted) else ""
  parts += [Text(f"{group.label}: {group.state}{lacking}") for group in early]
  if known:
    note = (
      "mean, worst 10 % and spread (standard deviation) over the clients, each a mean over n seeds. ± is "
      "a 95 % interval over seeds (Student's t). A difference is the mean of those on the "
      "seeds that both have."
    )
    parts.append(Text(note, style="dim"))
    if any(late_of(group, model, judged(group, model, wanted)) for group in groups):
      parts.append(Text(f"{WHAT}. The range is over all seeds of the line.", style="dim"))
    others = {group.label: unlike(group.data, groups[baseline].data) for group in groups if headline(group)}
    apart = [f"{label} (another {', '.join(fields)})" for label, fields in others.items() if fields]
    if apart:
      note = (
        f"No difference from {groups[baseline].label}, whose clients' data are others: {'; '.join(apart)}."
      )
      parts.append(Text(note, style="dim"))
  return Lines(*parts)


def table(groups: Sequence[Group], metric: str, baseline: Group, model: str) -> Table:
  """Makes a table with a row for each group: figures over seeds, difference from the baseline, and state."""
  found = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
  found.add_column("", overflow="fold")
  found.add_column("n", justify="right")
  for name in (*COLUMNS.values(), "difference"):
    found.add_column(name, justify="right", no_wrap=True)
  for group in groups:
    columns = [over_seeds(group.values(model, metric, figure).values()) for figure in COLUMNS]
    first, *others = [text(own, metric) for own in columns]
    if ends := late_of(group, model, metric):
      first += f" {MARK} {' to '.join(number(end, metric) for end in ends)}"
    own, other = (each.values(model, metric, "mean") for each in (group, baseline))
    apart = group is baseline or unlike(group.data, baseline.data)
    difference = MISSING if apart else text(paired(own, other), metric, sign=True)
    others = [each.partition(" ")[0] for each in others]
    state = "" if group.state == "complete" else f"\n  {group.state}"
    found.add_row(Text(group.label + state), str(columns[0].seeds), first, *others, difference)
  return found


def text(own: OverSeeds, metric: str, sign: bool = False) -> str:
  """Formats a figure with its 95 % interval in its display unit, such as "93.10 ± 0.42"; a dash for none."""
  if math.isnan(own.mean):
    return MISSING
  mean = number(own.mean, metric)
  mean = f"+{mean}" if sign and own.mean > 0 else mean
  return mean if own.half is None else f"{mean} ± {number(own.half, metric)}"
