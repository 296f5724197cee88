"""Synthetic images as a grid, a class a row, and as an animation over the rounds."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

COLUMNS = 10
FRAMES_PER_SECOND = 3


def sample_files(folder: Path) -> list[Path]:
  """A run's files of synthetic examples by round, each named by its round; others are nobody's."""
  return sorted(path for path in folder.glob("*.npz") if path.stem.isdecimal())


def sample_grid(x: np.ndarray, y: np.ndarray, num_classes: int, columns: int = COLUMNS) -> np.ndarray:
  """A mosaic with the first `columns` images of class c in row c, one grey pixel between any two.

  Args:
    x: images [N, height, width, 1 or 3], clipped to [0, 1].
    y: labels, int [N].
    num_classes: C.
    columns: images a class; missing ones stay grey.

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


def canvas(grid: np.ndarray) -> tuple[Figure, object, object]:
  """(figure, its image, its title), three inches wide or more."""
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
  heading.set_text(title)  # type: ignore[attr-defined]
  path = Path(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  figure.savefig(path, dpi=150, format="png")
  return path


def animate(
  frames: Sequence[tuple[str, np.ndarray, np.ndarray]], num_classes: int, path: str | os.PathLike[str]
) -> Path:
  """Draws a GIF with a grid a frame.

  Args:
    frames: (title, x, y), as `sample_grid` takes them; at least one.
    num_classes: C.
    path: the GIF to write; its folder is made where missing.

  Returns:
    `path`.
  """
  from matplotlib.animation import FuncAnimation, PillowWriter  # a sixth of a second, for these runs alone

  grids = [sample_grid(x, y, num_classes) for _, x, y in frames]
  figure, image, heading = canvas(grids[0])

  def show(i: int) -> tuple:
    image.set_data(grids[i])  # type: ignore[attr-defined]
    heading.set_text(frames[i][0])  # type: ignore[attr-defined]
    return image, heading

  path = Path(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  FuncAnimation(figure, show, frames=len(frames)).save(path, PillowWriter(fps=FRAMES_PER_SECOND), dpi=100)
  return path
