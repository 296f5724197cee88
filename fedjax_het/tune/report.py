"""What a tuning study leaves: a line for each trial, a table, and a picture of the values by rung."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.box import SIMPLE_HEAD
from rich.table import Table

from fedjax_het.metrics.catalogue import shown
from fedjax_het.studies.plots import COLORS, GREY, axis_label, decorate, save
from fedjax_het.studies.text import named, number
from fedjax_het.workdir.folder import write_atomic
from fedjax_het.workdir.tracking import to_json

LINES = "trials.jsonl"
SHOWN = 20  # most trials in the table
MARKERS = ("v", "s", "o")  # of the rungs


class Trial(NamedTuple):
  """A trial of a study.

  Attributes:
    number: its number from 0.
    batch: the number of its batch.
    values: dotted field -> number.
    state: "running", "pruned" for a trial that was not among the better half of a rung, "diverged", or
      "complete" for one that has reached the last round.
    metric: the headline metric of the personalised models.
    rungs: round -> mean of the metric over the clients' validation parts; NaN after divergence.
    client_steps: local steps of all clients so far.
  """

  number: int
  batch: int
  values: Mapping[str, Any]
  state: str
  metric: str
  rungs: Mapping[int, float]
  client_steps: int

  @property
  def value(self) -> float:
    """The value of the last rung that it has reached; NaN before the first one."""
    return [math.nan, *self.rungs.values()][-1]


def write_trials(trials: Sequence[Trial], folder: Path) -> None:
  """Writes trials.jsonl, one line a trial, completely or not at all."""
  lines = (
    {
      "trial": own.number, "batch": own.batch, "values": own.values, "state": own.state, "metric": own.metric,
      "rungs": [{"round": end, "valid": value} for end, value in own.rungs.items()],
      "client_steps": own.client_steps,
    }
    for own in trials
  )  # fmt: skip
  write_atomic(folder / LINES, "".join(f"{to_json(line)}\n" for line in lines))


def trials_table(trials: Sequence[Trial], best: Trial) -> Table:
  """Returns a table of the trials that came farthest, with their value at each rung."""
  higher, metric = shown(best.metric).higher_is_better, best.metric
  ends = sorted({end for own in trials for end in own.rungs})

  def worth(own: Trial) -> tuple[int, float]:
    value = -math.inf if math.isnan(own.value) else own.value if higher else -own.value
    return len(own.rungs), value

  some = sorted(trials, key=worth, reverse=True)[:SHOWN]
  more = len(trials) - len(some)
  table = Table(
    box=SIMPLE_HEAD, title=f"{named(metric)} of the personalised models on the clients' validation parts",
    title_justify="left", title_style="bold",
    caption=f"and {more} trials that were left earlier, in {LINES}" if more else None,
    caption_justify="left",
  )  # fmt: skip
  for name in ("trial", *best.values, *(f"round {end}" for end in ends), ""):
    table.add_column(name, justify="right")
  for own in some:
    table.add_row(
      str(own.number), *(f"{value:.4g}" for value in own.values.values()),
      *(number(own.rungs.get(end), metric) for end in ends), "best" if own is best else own.state,
      style="bold green" if own is best else None,
    )  # fmt: skip
  return table


def in_short(trials: Sequence[Trial], best: Trial) -> str:
  """Returns the best trial as flags of a run, and the study's cost."""
  flags = " ".join(f"--config.{path}={value!r}" for path, value in best.values.items())
  steps = sum(own.client_steps for own in trials)
  return f"Best of {len(trials)} trials ({steps:,} client steps): {flags}"


def plot_trials(trials: Sequence[Trial], maximize: bool, path: Path, *, title: str) -> Path | None:
  """Draws the value of each trial at each rung, and the best value so far at the last rung.

  Args:
    trials: the trials.
    maximize: whether higher is better.
    path: the PNG to write.
    title: the figure's title.

  Returns:
    `path`; None, and no file, if no trial has a finite value.
  """
  known = {
    end: [(own.number, own.rungs[end]) for own in trials if math.isfinite(own.rungs.get(end, math.nan))]
    for end in sorted({end for own in trials for end in own.rungs})
  }
  if not any(known.values()):
    return None
  metric = trials[0].metric
  factor = shown(metric).factor
  figure = Figure(figsize=(7.0, 4.2), layout="constrained")
  ax = figure.subplots()
  for own in trials:
    reached = np.array([value for value in own.rungs.values() if math.isfinite(value)])
    ax.plot([own.number] * len(reached), factor * reached, color=GREY, linewidth=0.8, alpha=0.6)
  for (end, points), marker, color in zip(known.items(), MARKERS, COLORS[::-1]):
    places, values = np.array(points, float).reshape(-1, 2).T
    label = f"round {end}: {len(points)} trials"
    ax.plot(places, factor * values, marker, color=color, markersize=6, label=label, zorder=4)
  last = [*known.values()][-1]
  if last:
    places, values = np.array(last, float).T
    best = (np.maximum if maximize else np.minimum).accumulate(values)
    ax.step(places, factor * best, where="post", color="black", linewidth=1.2, label="best so far")
  ax.set_xlabel("trial")
  ax.xaxis.set_major_locator(MaxNLocator(integer=True))
  decorate(ax, ylabel=axis_label(metric))
  ax.legend(frameon=False, fontsize=9, loc="best")
  figure.suptitle(title, fontsize=12, fontweight="bold")
  ax.set_title("mean over the clients' validation parts · a line joins a trial's rungs", fontsize=9,
               color=GREY, loc="left")  # fmt: skip
  return save(figure, path)
