"""Figures of a simplex of models: the clients' points and regions in it, and a metric over its points."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Polygon
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from fedjax_het.clients.regions import WIDEST
from fedjax_het.metrics.catalogue import shown
from fedjax_het.parts import Simplex
from fedjax_het.studies.plots import COLORS, GREY, axis_label, decorate, save

MOST_NAMED = 10  # up to this many clusters, a legend names them


def corners(count: int) -> np.ndarray:
  """Returns the endpoints' positions, [count, 2]: corners of a regular polygon, the first at the top."""
  turn = np.pi / 2 + 2 * np.pi * np.arange(count) / count
  return np.stack([np.cos(turn), np.sin(turn)], 1)


def region(center: ArrayLike, radius: float) -> np.ndarray:
  """Returns the corners of {x in Δ² : ‖x - μ‖₁ <= η}, in order, [n, 3]: a hexagon clipped to the triangle."""
  mu, step = np.asarray(center, np.float64), radius / 2 * np.eye(3)
  found = [mu + step[i] - step[j] for i, j in ((0, 1), (0, 2), (1, 2), (1, 0), (2, 0), (2, 1))]
  for edge in range(3):
    kept = []
    for a, b in zip(found, [*found[1:], *found[:1]]):
      if a[edge] >= 0:
        kept.append(a)
      if (a[edge] >= 0) != (b[edge] >= 0):
        kept.append(a + a[edge] / (a[edge] - b[edge]) * (b - a))
    found = kept
  return np.array(found)


def plot_clients(
  simplex: Simplex, path: str | os.PathLike[str], *, title: str = "", epsilon: float | None = None
) -> Path:
  """Draws each client's point in its cluster's colour, and the clusters' centers and regions.

  Two endpoints are a line, three a triangle; more are the corners of a polygon, in which different points may
  coincide and regions are not drawn. Regions that are the whole simplex are not drawn either.

  Args:
    simplex: the clients' points, centers and radius.
    path: the PNG to write, which is returned; its folder is created if missing.
    title: the figure's title.
    epsilon: ε of the noise on the label counts, if any: the points are computed from noised counts.
  """
  points, centers, clusters = (np.asarray(own) for own in (simplex.points, simplex.centers, simplex.clusters))
  names, first = np.unique(clusters, return_index=True)
  colors = cluster_colors(len(names))
  figure = Figure(figsize=(6.4, 2.8 if points.shape[1] == 2 else 4.8), layout="constrained")
  counts = "label counts" if epsilon is None else f"label counts with noise of ε = {epsilon:g}"
  figure.suptitle(f"{title}, by their {counts}", fontsize=11, fontweight="bold")
  whole = float(simplex.radius) >= WIDEST
  ax = figure.subplots()
  if points.shape[1] == 2:
    _clients_on_line(ax, points, centers[first], float(simplex.radius), clusters, names, colors)
  else:
    at = points @ corners(points.shape[1])
    frame(ax, points.shape[1])
    for name, color, center in zip(names, colors, centers[first]):
      if points.shape[1] == 3:
        outline(ax, center, float(simplex.radius), color)
      own = clusters == name
      dots(
        ax,
        at[own],
        color=color,
        s=18,
        edgecolor="black",
        linewidth=0.4,
        zorder=4,
        label=f"cluster {name}: {own.sum()}",
      )
      dots(ax, center @ corners(len(center)), color=color, marker="X", s=110, edgecolor="white", zorder=3)
  if len(names) <= MOST_NAMED:
    signs = "dashed: center" if points.shape[1] == 2 else "cross: center"
    signs += " of all" if whole and len(np.unique(centers, axis=0)) == 1 else ""
    figure.legend(loc="outside right center", frameon=False, fontsize=8, title=signs, title_fontsize=8)
  told = [f"{len(names)} clusters"] if len(names) > MOST_NAMED else []
  if whole:
    told.append("every region is the whole simplex")
  elif points.shape[1] > 3:
    told.append("regions are not drawn")
  ax.set_title(", ".join(told), fontsize=9, color=GREY)
  return save(figure, path)


def _clients_on_line(ax: Axes, points, centers, radius, clusters, names, colors) -> None:
  """Draws histograms of the clients over α₂ with regions shaded."""
  bins = np.linspace(0.0, 1.0, 41)
  for name, color, center in zip(names, colors, centers):
    own = points[clusters == name, 1]
    shade(ax, center[1], radius, color, 0.12)
    ax.hist(own, bins.tolist(), color=color, alpha=0.8, label=f"cluster {name}: {len(own)}")
    ax.axvline(center[1], color=color, linestyle="--", linewidth=1.2)
  ax.set(xlabel="α₂ = 1 - α₁", xlim=(0, 1))
  ax.yaxis.set_major_locator(MaxNLocator(integer=True))
  decorate(ax, "clients")


def plot_line(
  found: Mapping[str, Any], simplex: Simplex, path: str | os.PathLike[str], *, title: str = ""
) -> Path:
  """Draws a metric over α₂ for two endpoints: all clients, and some clusters with their center and region.

  Args:
    found: section `simplex` of the summary.
    simplex: centers, clusters and radius.
    path: the PNG to write, which is returned.
    title: the figure's title.
  """
  x, factor = np.asarray(found["alphas"])[:, 1], shown(found["metric"]).factor
  order = np.argsort(x)
  figure = Figure(figsize=(6.6, 4.0), layout="constrained")
  figure.suptitle(f"{title}: models on the line", fontsize=11, fontweight="bold")
  ax = figure.subplots()
  every = factor * np.array(found["all"], float)
  ax.plot(x[order], every[order], color="black", linewidth=2, label="all clients")
  shades = cluster_colors(len(np.unique(np.asarray(simplex.clusters))))
  whole = float(simplex.radius) >= WIDEST
  for name, values in found["clusters"].items():
    color, center = shades[int(name)], center_of(simplex, int(name))[1]
    shade(ax, center, float(simplex.radius), color, 0.1)
    ax.axvline(center, color=color, linestyle="--", linewidth=1)
    label = f"cluster {name}" + ("" if whole else ", its region shaded")
    ax.plot(x[order], factor * np.array(values, float)[order], color=color, label=label)
  ax.set(xlabel="α₂ = 1 - α₁", xlim=(0, 1))
  decorate(ax, axis_label(found["metric"]))
  figure.legend(loc="outside right center", frameon=False, fontsize=9)
  return save(figure, path)


def plot_triangles(
  found: Mapping[str, Any], simplex: Simplex, path: str | os.PathLike[str], *, title: str = ""
) -> Path:
  """Draws a metric over the triangle of three endpoints: all clients, and some clusters; see `plot_line`.

  A panel without values, such as a cluster without test examples, is left out.
  """
  alphas, factor = np.asarray(found["alphas"]), shown(found["metric"]).factor
  panels: dict[int | None, Any] = {None: found["all"]}  # None: all clients
  panels |= {int(name): own for name, own in found["clusters"].items()}
  panels = {name: own for name, own in panels.items() if np.isfinite(np.array(own, float)).all()}
  shades = cluster_colors(len(np.unique(np.asarray(simplex.clusters))))
  figure = Figure(figsize=(3.5 * len(panels) + 1.0, 3.9), layout="constrained")
  figure.suptitle(f"{title}: models in the simplex", fontsize=11, fontweight="bold")
  every = factor * np.array([*panels.values()], float)
  levels = MaxNLocator(12).tick_values(np.nanmin(every), max(np.nanmax(every), np.nanmin(every) + 1e-6))
  at = alphas @ corners(3)
  axes = figure.subplots(1, len(panels), squeeze=False)[0]
  for ax, (name, values) in zip(axes, panels.items()):
    frame(ax, 3)
    drawn = ax.tricontourf(*at.T, factor * np.array(values, float), levels=levels, cmap="viridis")
    clusters = np.asarray(simplex.clusters)
    points = np.asarray(simplex.points)[clusters == (clusters if name is None else name)] @ corners(3)
    dots(ax, points, color="white", s=12, edgecolor="black", linewidth=0.5, zorder=3)
    if name is None:
      ax.set_title(f"all {len(points)} clients", fontsize=10)
      continue
    ax.set_title(f"cluster {name}, {len(points)} clients", fontsize=10, color=shades[name])
    center = center_of(simplex, name)
    outline(ax, center, float(simplex.radius), "black", filled=False)
    dots(ax, center @ corners(3), color=shades[name], marker="X", s=90, edgecolor="white", zorder=4)
  figure.colorbar(drawn, ax=axes, label=axis_label(found["metric"]), shrink=0.8, pad=0.01)
  return save(figure, path)


def dots(ax: Axes, at: np.ndarray, **style: Any) -> None:
  """Scatters points at positions [n, 2] or [2]."""
  x, y = np.atleast_2d(at).T
  ax.scatter(x, y, **style)


def frame(ax: Axes, count: int) -> None:
  """Draws the simplex's outline and the endpoints' names, without axes."""
  ends = corners(count)
  ax.add_patch(Polygon(ends, fill=False, edgecolor=GREY, linewidth=1))
  for m, end in enumerate(ends, 1):
    ax.annotate(rf"$\theta_{{{m}}}$", 1.13 * end, ha="center", va="center", fontsize=10, color=GREY)
  ax.set(xlim=(-1.2, 1.2), ylim=(-0.8 if count == 3 else -1.2, 1.25), aspect="equal")
  ax.axis("off")


def shade(ax: Axes, center: float, radius: float, color: Any, alpha: float) -> None:
  """Shades a region on the line of two endpoints, η / 2 to both sides in α₂, unless it is the whole line."""
  if radius < WIDEST:
    ax.axvspan(max(center - radius / 2, 0), min(center + radius / 2, 1), color=color, alpha=alpha)


def outline(ax: Axes, center: np.ndarray, radius: float, color: Any, filled: bool = True) -> None:
  """Outlines a region in the triangle, unless it covers the whole triangle."""
  if radius >= WIDEST:
    return
  shape = region(center, radius) @ corners(3)
  if filled:
    ax.add_patch(Polygon(shape, facecolor=color, alpha=0.15, linewidth=0))
  ax.add_patch(Polygon(shape, fill=False, edgecolor=color, linewidth=1.5))


def cluster_colors(count: int) -> list[Any]:
  """Returns one colour per cluster."""
  many = count > len(COLORS)
  return [colormaps["turbo"](v) for v in np.linspace(0, 1, count)] if many else list(COLORS[:count])


def center_of(simplex: Simplex, cluster: int) -> np.ndarray:
  """Returns a cluster's center, [M + 1]."""
  return np.asarray(simplex.centers)[np.asarray(simplex.clusters) == cluster][0]
