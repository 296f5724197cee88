"""Learning curves of groups of runs over rounds, client steps, bytes or time, and their static picture."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fedjax_het.compare.groups import Group
from fedjax_het.compare.runs import Run
from fedjax_het.errors import SettingError
from fedjax_het.metrics.budget import budget
from fedjax_het.metrics.catalogue import shown
from fedjax_het.studies.plots import COLORS, axis_label, decorate, save, spelled
from fedjax_het.studies.study import series

# The horizontal axes over which a curve may be drawn -> their labels.
AXES = {
  "round": "communication round",
  "client_steps": "client steps",
  "bytes": "bytes sent up and down",
  "seconds": "seconds of training",
  "simulated_seconds": "simulated seconds",
}
DASHES = ("-", "--", ":", "-.")


def axes(run: Run) -> dict[str, np.ndarray]:
  """Returns each of `AXES` at a run's evaluations, float64 [R]; NaN where it is not known.

  Where the lines, of earlier versions, have no client steps or bytes, those of a complete run are
  divided by its rounds.
  """
  rounds = np.asarray(series(run.lines, "round"), np.float64)
  total, last = budget(run.summary), run.config["rounds"]
  found = {"round": rounds, "seconds": np.asarray(series(run.lines, "seconds", "train"), np.float64)}
  found["simulated_seconds"] = series(run.lines, "simulated_seconds")
  known = {
    "client_steps": series(run.lines, "client_steps"),
    "bytes": series(run.lines, "bytes", "up") + series(run.lines, "bytes", "down"),
  }
  for name, own in known.items():
    found[name] = np.where(np.isfinite(own), own, rounds / last * total.get(name, np.nan))
  return found


def curve(
  group: Group, model: str, metric: str, over: str = "round", figure: str = "mean"
) -> tuple[np.ndarray, np.ndarray]:
  """Returns where a group's runs were evaluated, a mean over the seeds, [R], and their figures, [seeds, R].

  Only rounds at which all runs that count have a value are used.

  Args:
    group: the group.
    model: "personalized" or "global".
    metric: the metric.
    over: one of `AXES`.
    figure: a figure over the clients, such as "mean".
  """
  runs: list[Mapping[int, tuple[float, float]]] = []
  for run in group.counted:
    values = series(run.lines, "metrics", model, metric, figure)
    points = zip(series(run.lines, "round"), axes(run)[over], values)
    runs.append({int(t): (x, y) for t, x, y in points if np.isfinite(x) and np.isfinite(y)})
  shared = sorted(set.intersection(*map(set, runs))) if runs else []
  both = np.array([[own[t] for t in shared] for own in runs], np.float64).reshape(len(runs), len(shared), 2)
  return both[..., 0].mean(0) if len(runs) else np.empty(0), both[..., 1]


def without_axis(groups: Sequence[Group], metric: str, model: str, over: str) -> list[str]:
  """Returns the labels of groups that have curves over the rounds, and none over the axis `over`."""
  return [
    group.label for group in groups
    if curve(group, model, metric)[0].size and not curve(group, model, metric, over)[0].size
  ]  # fmt: skip


def plot_groups(
  groups: Sequence[Group], metric: str, path: str | os.PathLike[str], *,
  model: str = "personalized", over: str = "round",
) -> Path:  # fmt: skip
  """Draws each group's mean over the clients, a mean over the seeds, with the seeds' range as a band.

  Args:
    groups: the groups of runs.
    metric: the metric.
    path: the PNG to write, which is returned.
    model: the model that is judged.
    over: what the curves are drawn over, one of `AXES`.

  Raises:
    SettingError: no group has such figures over this axis, or the file cannot be written.
  """
  figure = Figure(figsize=(9.0, 4.6), layout="constrained")
  ax, factor, drawn = figure.subplots(), shown(metric).factor, 0
  for place, group in enumerate(groups):
    x, values = curve(group, model, metric, over)
    if not x.size:
      continue
    drawn, color, dash = drawn + 1, COLORS[place % len(COLORS)], DASHES[place % len(DASHES)]
    ax.plot(x, factor * values.mean(0), color=color, linestyle=dash, linewidth=1.8, label=group.label)
    if len(values) > 1:
      ends = factor * values.min(0), factor * values.max(0)
      ax.fill_between(x, *ends, color=color, alpha=0.13, linewidth=0)
  if not drawn:
    problem = f"no run has the {metric} of the {spelled(model)} model over {AXES[over]}"
    raise SettingError("picture", os.fspath(path), problem, "Draw it over rounds, or of another metric.")
  ax.set_xlabel(AXES[over])
  decorate(ax, ylabel=f"{axis_label(metric)}, mean over clients")
  figure.legend(frameon=False, fontsize=9, loc="outside right upper")
  ax.set_title("mean over the seeds, band: lowest to highest seed", fontsize=9, loc="left")
  try:
    return save(figure, path)
  except OSError as error:
    problem = f"cannot be written ({error.strerror or error})"
    raise SettingError("picture", os.fspath(path), problem, "Name a file that you may write.") from error


def for_page(run: Run) -> dict[str, Any]:
  """Returns a run's axes as lists for the page; an axis without any known value is left out."""
  known = {name: values for name, values in axes(run).items() if np.isfinite(values).any()}
  return {name: [float(f"{x:.6g}") if np.isfinite(x) else None for x in own] for name, own in known.items()}
