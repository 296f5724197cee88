"""Figure of a partition: the number of rows of each class that every client holds.

Up to 40 clients are stacked horizontal bars, so that sizes can be read off. More are a heat map, one column
per client, below a bar chart of their sizes: columns are sorted by the class a client holds most of (then by
its share, then by its second class), and the colour is the class's share of the client's rows, so that small
clients are visible as well as large ones; the colour scale ends at the 95 % quantile of the clients' largest
shares. If labels are not classes, sizes alone are drawn.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from fedjax_het.studies.plots import colours_of, plain
from fedjax_het.studies.stored import write_arrays
from fedjax_het.studies.study import Study, Watched

MOST_BARS = 40
MOST_NAMES = 20  # classes that get a legend entry or a tick each
FILE, PICTURE = "partition.npz", "partition.png"


class Partition(Study):
  """Study that writes partition.png and partition.npz before the first round.

  The file holds `counts`, each client's rows per class, integers [K, C], or if labels are not classes, each
  client's rows, [K, 1]; and where they have names, `names` of the clients, [K], and `classes`, [C].
  """

  name = "partition"

  @classmethod
  def fits(cls, run: Watched) -> bool:
    """Always True: every run has a partition."""
    return True

  def resume(self, rounds_done: int, checkpoint_state: Any) -> None:
    """Writes partition.npz; called before the first round and after every restart."""
    if self.run.writes:
      self._write()

  def _write(self) -> None:
    counts = counts_of(self.run.parts, self._labels, self.run.data.num_classes)
    names = {name: np.array(own) for name, own in self._names.items() if own}
    write_arrays(self.run.folder / FILE, counts=counts, **names)

  def draw_first(self) -> None:
    """Draws partition.png."""
    path, num_classes = self.run.figures / PICTURE, self.run.data.num_classes
    plot_partition(self.run.parts, self._labels, path, num_classes, self.run.title, *self._names.values())

  def draw(self, lines: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> None:
    """Makes partition.png and partition.npz again if they were removed."""
    if not (self.run.folder / FILE).exists():
      self._write()
    if not (self.run.figures / PICTURE).exists():
      self.draw_first()

  @property
  def _names(self) -> dict[str, tuple[str, ...]]:
    """Returns the names of the clients and of the classes, () where they have none."""
    encoder = self.run.data.encoder
    classes = tuple(map(str, encoder.labels)) if self._labels is not None else ()
    return {"names": encoder.clients, "classes": classes}

  @property
  def _labels(self) -> ArrayLike | None:
    """Returns the data set's labels, or None where they are no classes."""
    return self.run.source.y if self.run.algorithm.client.task.classes else None


def counts_of(parts: Sequence[ArrayLike], labels: ArrayLike | None, num_classes: int) -> np.ndarray:
  """Counts each client's rows per class, integers [K, C], or all its rows, [K, 1], if labels are None."""
  if labels is None:
    return np.array([[len(np.asarray(rows))] for rows in parts])
  labels = np.asarray(labels)
  return np.stack([np.bincount(labels[np.asarray(rows)], minlength=num_classes) for rows in parts])


def plot_partition(
  parts: Sequence[ArrayLike],
  labels: ArrayLike | None,
  path: str | os.PathLike[str],
  num_classes: int,
  title: str = "",
  names: Sequence[str] = (),
  classes: Sequence[str] = (),
) -> None:
  """Draws the partition to `path`, whose suffix chooses the format; needs no display.

  Args:
    parts: row numbers of each client, K arrays, as the partitioners return them.
    labels: classes of all rows, [N]; None if labels are not classes.
    path: the file to write.
    num_classes: C, the number of classes.
    title: title above the row counts; by default the number of clients.
    names: the clients' names, K; their numbers by default. More than 40 clients are not named.
    classes: the classes' names, C; their numbers by default.
  """
  counts = counts_of(parts, labels, num_classes)
  few, num_classes = len(counts) <= MOST_BARS, counts.shape[1]
  height = 1.4 + 0.24 * len(counts) if few else 4.0 + 0.12 * min(num_classes, 30)
  figure = Figure(figsize=(8.0, max(height, 2.6)), layout="constrained")
  FigureCanvasAgg(figure)
  classes = [plain(own) for own in classes] or [*map(str, range(num_classes))]
  if few:
    _bars(figure, counts, [plain(own) for own in names] or [*map(str, range(len(counts)))], classes)
  elif labels is None:
    _sizes(figure, counts)
  else:
    _heat_map(figure, counts, classes)
  sizes, held = counts.sum(1), (counts > 0).sum(1)
  facts = (
    f"{sizes.sum():,} rows; rows a client {_span(sizes)}"
    f"{'' if labels is None else f'; classes a client {_span(held)}'}"
  )
  figure.suptitle(f"{title or f'{len(counts)} clients'}\n{facts}", fontsize=10)
  figure.savefig(path, dpi=150)


def _bars(figure: Figure, counts: np.ndarray, names: Sequence[str], classes: Sequence[str]) -> None:
  axes = figure.subplots()
  num_clients, num_classes = counts.shape
  colours = colours_of(num_classes)
  clients, left = np.arange(num_clients), np.zeros(num_clients)
  for c in range(num_classes):
    axes.barh(
      clients, counts[:, c], left=left, height=0.8, color=colours[c], label=classes[c],
      edgecolor="white", linewidth=0.4 if num_classes <= MOST_NAMES else 0.0,
    )  # fmt: skip
    left += counts[:, c]
  axes.set(xlabel="rows", ylabel="client", ylim=(num_clients - 0.4, -0.6))
  axes.set_yticks(clients, names)
  axes.tick_params(axis="y", length=0, labelsize=8)
  axes.spines[["top", "right"]].set_visible(False)
  if 1 < num_classes <= MOST_NAMES:
    figure.legend(
      *axes.get_legend_handles_labels(), title="class", loc="outside right center", fontsize=8, frameon=False
    )


def _heat_map(figure: Figure, counts: np.ndarray, classes: Sequence[str] = ()) -> None:
  num_clients, num_classes = counts.shape
  sizes = counts.sum(1)
  shares = counts / np.maximum(sizes, 1)[:, None]
  ranked = np.argsort(-shares, axis=1, kind="stable")
  order = np.lexsort((ranked[:, 1] if num_classes > 1 else sizes, -shares.max(1).round(1), ranked[:, 0]))
  top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(1, 4))
  top.bar(np.arange(num_clients), sizes[order], width=1.0, color="0.55")
  top.set(ylabel="rows", ylim=(0, None))
  top.spines[["top", "right"]].set_visible(False)
  top.tick_params(axis="x", length=0, labelbottom=False)
  # Chance level stays pale, and a few one-class clients do not darken the scale for all others.
  darkest = min(1.0, max(np.quantile(shares.max(1), 0.95), 4.0 / num_classes))
  image = bottom.imshow(
    shares[order].T, aspect="auto", cmap="Blues", vmin=0, vmax=darkest, interpolation="nearest"
  )
  bottom.set(xlabel="clients, in order of the class they hold most of", ylabel="class")
  if num_classes <= MOST_NAMES:
    bottom.set_yticks(range(num_classes), classes or None)
  more = "max" if shares.max() > darkest else "neither"
  figure.colorbar(image, ax=bottom, label="share of the client's rows", pad=0.01, extend=more)


def _sizes(figure: Figure, counts: np.ndarray) -> None:
  axes = figure.subplots()
  axes.bar(np.arange(len(counts)), np.sort(counts[:, 0])[::-1], width=1.0, color="0.55")
  axes.set(xlabel="clients, in order of their size", ylabel="rows", ylim=(0, None))
  axes.spines[["top", "right"]].set_visible(False)


def _span(values: np.ndarray) -> str:
  low, high = values.min(), values.max()
  return f"{low:,}" if low == high else f"{low:,} to {high:,} (median {np.median(values):,.0f})"
