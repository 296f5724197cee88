"""Figures of synthetic images: a grid with one row per class, and an animation over the rounds."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.text import Text

from fedjax_het.studies.plots import save

COLUMNS = 10
FRAMES_PER_SECOND = 3


def sample_files(folder: Path) -> list[Path]:
  """Lists a run's files of synthetic examples, named by round and sorted by it; other files are ignored."""
  return sorted(path for path in folder.glob("*.npz") if path.stem.isdecimal())


def sample_grid(x: np.ndarray, y: np.ndarray, num_classes: int, columns: int = COLUMNS) -> np.ndarray:
  """Tiles the first `columns` images of each class c in row c, with one grey pixel between any two.

  Args:
    x: images [N, height, width, 1 or 3], clipped to [0, 1].
    y: labels, int [N].
    num_classes: C, the number of classes.
    columns: images per class; missing ones stay grey.

  Returns:
    float32 [C (height + 1) + 1, columns (width + 1) + 1, 3].
  """
  height, width = x.shape[1:3]
  grid = np.full((num_classes * (height + 1) + 1, columns * (width + 1) + 1, 3), 0.5, np.float32)
  for c in range(num_classes):
    for j, image in enumerate(np.clip(x[y == c][:columns], 0.0, 1.0)):
      top, left = c * (height + 1) + 1, j * (width + 1) + 1
      grid[top : top + height, left : left + width] = image
  return grid


def canvas(grid: np.ndarray) -> tuple[Figure, AxesImage, Text]:
  """Creates a figure that shows the grid, five inches wide; returns (figure, its image, its title)."""
  width = 5.0
  figure = Figure(figsize=(width, width * grid.shape[0] / grid.shape[1] + 0.4), layout="constrained")
  ax = figure.subplots()
  image = ax.imshow(grid, interpolation="nearest")
  ax.set_axis_off()
  return figure, image, ax.set_title("", fontsize=10)


def plot_samples(
  x: np.ndarray, y: np.ndarray, num_classes: int, path: str | os.PathLike[str], *, title: str = ""
) -> Path:
  """Draws `sample_grid` as a PNG (as the thesis's figures 4.1 to 4.4); returns `path`."""
  figure, _, heading = canvas(sample_grid(x, y, num_classes))
  heading.set_text(title)
  return save(figure, path)


def animate(
  frames: Sequence[tuple[str, np.ndarray, np.ndarray]], num_classes: int, path: str | os.PathLike[str]
) -> Path:
  """Draws a GIF with one grid per frame.

  Args:
    frames: (title, x, y), as `sample_grid` takes them; at least one.
    num_classes: C, the number of classes.
    path: the GIF to write, which is returned; its folder is created if missing.
  """
  from matplotlib.animation import FuncAnimation, PillowWriter  # takes a sixth of a second to import

  grids = [sample_grid(x, y, num_classes) for _, x, y in frames]
  figure, image, heading = canvas(grids[0])

  def show(i: int) -> tuple:
    image.set_data(grids[i])
    heading.set_text(frames[i][0])
    return image, heading

  path = Path(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  FuncAnimation(figure, show, frames=len(frames)).save(path, PillowWriter(fps=FRAMES_PER_SECOND), dpi=100)
  return path
