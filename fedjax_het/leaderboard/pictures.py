"""A task's picture: accuracy against bytes, against seconds, and of the worst clients against the mean."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

from fedjax_het.leaderboard.summary import Line, Task
from fedjax_het.metrics.catalogue import shown
from fedjax_het.studies.plots import COLORS, GREY, axis_label, decorate, save

NAMED = 6  # most methods of the first group that are named in the picture
ALWAYS = ("fedavg", "local")  # named wherever they are


def draw(task: Task, path: Path) -> Path:
  """Draws a task's methods in three panels, those of the first group in colour, and returns the path.

  Args:
    task: the task, with at least one line.
    path: the PNG to write.
  """
  factor = shown(task.metric).factor
  figure = Figure(figsize=(11.0, 4.2), layout="constrained")
  panels = figure.subplots(1, 3)
  sent = {line.method: _sent(line) for line in task.lines}
  _panel(panels[0], task, sent, "bytes up and down of a run")
  seconds = {line.method: line.mean("train_seconds") for line in task.lines}
  _panel(panels[1], task, seconds, "seconds of training of a seed")
  worst = {line.method: None if (own := line.mean("worst")) is None else factor * own for line in task.lines}
  of = "worst client" if task.clients < 10 else "worst tenth of the clients"
  clients = f"{axis_label(task.metric)}, {of}"
  _panel(panels[2], task, worst, clients, log=False)
  handles, labels = panels[0].get_legend_handles_labels()
  figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=9)
  figure.suptitle(f"{task.name}: {len(task.lines)} methods", fontsize=12, fontweight="bold")
  return save(figure, path)


def _sent(line: Line) -> float | None:
  up, down = line.mean("up"), line.mean("down")
  return None if up is None or down is None else up + down


def _panel(ax: Axes, task: Task, at: dict[str, float | None], label: str, log: bool = True) -> None:
  """Draws the mean of each method against what it took; methods that took nothing at the left edge."""
  factor = shown(task.metric).factor
  known = [own for own in at.values() if own]
  least = min(known, default=1.0) / 3.0 if log else 0.0
  for lines, colour, name, order in (
    (task.others, GREY, "worse than the best", 3), (task.first, COLORS[0], "not told apart from the best", 4),
  ):  # fmt: skip
    points = [(at[line.method] or least, factor * (line.mean("mean") or 0.0)) for line in lines]
    x, y = np.array(points, float).reshape(-1, 2).T
    ax.scatter(x, y, s=26, color=colour, alpha=0.75, linewidth=0, label=name, zorder=order)
    for line, place in zip(lines, points):
      if line.method in ALWAYS or (lines is task.first and len(task.first) <= NAMED):
        ax.annotate(line.method, place, (4, 3), textcoords="offset points", fontsize=8, color=colour)
  if log:
    ax.set_xscale("log")
    ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    ax.xaxis.set_major_formatter(EngFormatter())
    ax.xaxis.set_minor_formatter(NullFormatter())
  ax.margins(x=0.12)
  ax.set_xlabel(label)
  decorate(ax, ylabel=axis_label(task.metric))
