"""Figure of a feature shift: examples of clients whose features differ."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fedjax_het.data.container import FederatedData
from fedjax_het.data.scale import as_read
from fedjax_het.studies.plots import save
from fedjax_het.studies.samples import COLUMNS, sample_grid
from fedjax_het.studies.study import Study, Watched

PICTURE = "feature_shift.png"
ROWS = 8  # clients that are shown where there are no clusters, evenly spaced


class FeatureShift(Study):
  """Study that draws feature_shift.png before the first round, if `feature_shift` changes images."""

  name = "feature_shift"

  @classmethod
  def fits(cls, run: Watched) -> bool:
    """Returns whether the configuration shifts features, and examples are images."""
    x = run.data.x
    return bool(run.config.feature_shift) and getattr(x, "ndim", 0) == 4 and x.shape[3] in (1, 3)

  def draw_first(self) -> None:
    """Draws feature_shift.png."""
    plot_shift(self.run.data, self.run.figures / PICTURE, hidden=self.run.hidden, title=self.run.title)

  def draw(self, lines: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> None:
    """Draws feature_shift.png again if it was removed."""
    if not (self.run.figures / PICTURE).exists():
      self.draw_first()


def plot_shift(
  data: FederatedData, path: str | os.PathLike[str], *, hidden: np.ndarray | None = None, title: str = ""
) -> Path:
  """Draws ten training images of each of some clients, one row per client.

  Args:
    data: all clients' data, whose examples are images [H, W, 1 or 3].
    path: the PNG to write, which is returned; its folder is created if missing.
    hidden: the clients' hidden clusters, int [K]: the first client of each is shown. None shows
      eight clients, or all of fewer.
    title: the figure's title.
  """
  if hidden is None:
    shown = np.unique(np.linspace(0, data.num_clients - 1, ROWS).round().astype(int))
    labels = [f"client {i}" for i in shown]
  else:
    clusters, shown = np.unique(hidden, return_index=True)
    labels = [f"cluster {m}: client {i}" for m, i in zip(clusters, shown)]
  rows = [data.train.rows(np.array([i]))[:COLUMNS] for i in shown]
  x = np.asarray(as_read(np.asarray(data.x)[np.concatenate(rows)], data.scale), np.float32)
  y = np.repeat(np.arange(len(rows)), [*map(len, rows)])
  grid = sample_grid(x, y, len(rows))
  figure = Figure(figsize=(8.0, 0.8 + 0.72 * len(rows)), layout="constrained")
  figure.suptitle(f"{title}: training examples by client", fontsize=11, fontweight="bold")
  axes = figure.subplots()
  axes.imshow(grid, vmin=0, vmax=1, interpolation="nearest")
  height = x.shape[1] + 1
  axes.set_yticks((np.arange(len(rows)) + 0.5) * height, labels, fontsize=9)
  axes.set_xticks([])
  axes.tick_params(length=0)
  axes.spines[:].set_visible(False)
  return save(figure, path)
