"""A task's picture: accuracy against bytes, against seconds, and of the worst clients against the mean."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import EngFormatter, Formatter, LogLocator, NullFormatter, StrMethodFormatter

from fedjax_het.leaderboard.summary import Line, Task
from fedjax_het.metrics.catalogue import shown
from fedjax_het.studies.plots import COLORS, GREY, axis_label, decorate, save

NAMED = 6  # methods with the best means, which are named in the picture
ALWAYS = ("fedavg", "local")  # named wherever they are
SIZE, WIDTH, HEIGHT, GAP = 8, 4.7, 10.0, 9.0  # of names, a letter, a line, beside a point; in points
Name = tuple[float, float, str, str]  # x, y, what is written there, colour


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
  names = [_panel(panels[0], task, sent, "bytes up and down of a run", EngFormatter(unit="B"))]
  seconds = {line.method: line.mean("train_seconds") for line in task.lines}
  names += [_panel(panels[1], task, seconds, "seconds of training of a seed", StrMethodFormatter("{x:g}"))]
  worst = {line.method: None if (own := line.mean("worst")) is None else factor * own for line in task.lines}
  of = "worst client" if task.clients < 10 else "worst tenth of the clients"
  names += [_panel(panels[2], task, worst, f"{axis_label(task.metric)}\nof the {of}")]
  handles, labels = panels[0].get_legend_handles_labels()
  figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=9)
  worth, floor = _worth(task), _floor(task)
  gone = sum(own < floor for own in worth.values())
  where = "below" if shown(task.metric).higher_is_better else "above"
  left_out = f", {gone} of them {where} what is shown" if gone else ""
  figure.suptitle(f"{task.name}: {len(task.lines)} methods{left_out}", fontsize=12, fontweight="bold")
  figure.draw_without_rendering()  # so that the panels have their places
  for ax, beside in zip(panels, names):
    _write(ax, beside, figure.dpi / 72.0)
  return save(figure, path)


def _sent(line: Line) -> float | None:
  up, down = line.mean("up"), line.mean("down")
  return None if up is None or down is None else up + down


def _panel(
  ax: Axes, task: Task, at: dict[str, float | None], label: str, ticks: Formatter | None = None
) -> list[Name]:
  """Draws the mean of each method against what it took, and returns the names to write beside the points.

  With `ticks` the axis is logarithmic: a method that took nothing stands at its left edge, named with a 0.
  A method of which it is not known what it took is left out. So are methods far worse than all others; the
  title of the picture says how many these are.
  """
  known = [own for own in at.values() if own]
  least = min(known, default=1.0) / 3.0 if ticks else 0.0
  means, worth, floor = _means(task), _worth(task), _floor(task)
  best = sorted(worth, key=lambda method: -worth[method])[:NAMED]
  names: list[Name] = []
  for own, colour, name, order in (
    (task.others, GREY, "worse than the best", 3), (task.first, COLORS[0], "not told apart from the best", 4),
  ):  # fmt: skip
    own = [line for line in own if worth[line.method] >= floor and at[line.method] is not None]
    points = [(at[line.method] or least, means[line.method]) for line in own]
    x, y = np.array(points, float).reshape(-1, 2).T
    ax.scatter(x, y, s=26, color=colour, alpha=0.75, linewidth=0, label=name, zorder=order)
    for line, place in zip(own, points):
      if line.method in (*ALWAYS, *best):
        names.append(
          (*place, f"{line.method} (0)" if ticks and at[line.method] == 0 else line.method, colour)
        )
  if ticks:
    ax.set_xscale("log")
    decades = np.log10(max(known, default=1.0) / min(known, default=1.0))
    ax.xaxis.set_major_locator(LogLocator(subs=(1.0,) if decades > 1.2 else (1.0, 2.0, 5.0)))
    ax.xaxis.set_major_formatter(ticks)
    ax.xaxis.set_minor_formatter(NullFormatter())
  ax.margins(x=0.12)
  ax.set_xlabel(label)
  decorate(ax, ylabel=axis_label(task.metric))
  return names


def _means(task: Task) -> dict[str, float]:
  """Returns method -> the mean of the task's metric over its seeds, in the axes' unit (% for accuracies)."""
  return {line.method: shown(task.metric).factor * (line.mean("mean") or 0.0) for line in task.lines}


def _worth(task: Task) -> dict[str, float]:
  """Returns `_means`, negated where lower is better."""
  sign = 1.0 if shown(task.metric).higher_is_better else -1.0
  return {method: sign * mean for method, mean in _means(task).items()}


def _floor(task: Task) -> float:
  """Returns the least `_worth` with which a row is in the picture, so that far worse ones do not squeeze it.

  It is q - 1.5 (max - q), where q is the 10 % quantile of the task's rows.
  """
  worth = [*_worth(task).values()]
  low, high = np.quantile(worth, 0.1), max(worth)
  return float(low - 1.5 * (high - low))


def _write(ax: Axes, names: list[Name], point: float) -> None:
  """Writes names beside their points, each moved down, with a line, until it covers no other.

  Args:
    ax: the panel, in its place.
    names: the names.
    point: pixels of a typographic point.
  """
  taken: list[tuple[float, float, float]] = []  # left, right and middle of what is written, in points
  right = ax.get_window_extent().x1 / point
  for x, y, name, colour in sorted(names, key=lambda own: -own[1]):
    at_x, at_y = (float(own) / point for own in ax.transData.transform((x, y)))
    width = WIDTH * len(name)
    left = at_x + GAP if at_x + GAP + width < right else at_x - GAP - width
    middle = at_y
    while any(a < left + width and left < b and abs(c - middle) < HEIGHT for a, b, c in taken):
      middle -= 1.0
    taken.append((left, left + width, middle))
    line = {"arrowstyle": "-", "color": colour, "linewidth": 0.5, "shrinkA": 0.0, "shrinkB": 2.0}
    ax.annotate(
      name, (x, y), (left - at_x, middle - at_y), textcoords="offset points", fontsize=SIZE, color=colour,
      va="center", arrowprops=line if at_y - middle > HEIGHT / 2.0 else None, zorder=6,
      path_effects=[withStroke(linewidth=2.0, foreground="white")],
    )  # fmt: skip
