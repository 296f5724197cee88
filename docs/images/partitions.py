"""Draws partitions.png and feature_shift.png, the pictures of docs/data.md, of MNIST.

python docs/images/partitions.py DATA
"""

import sys
from pathlib import Path

import jax
import numpy as np
from matplotlib.figure import Figure

import fedjax_het as fh
from fedjax_het.studies.feature_shift import plot_shift
from fedjax_het.studies.partition import counts_of
from fedjax_het.studies.plots import colours_of, save

HERE, CLIENTS = Path(__file__).parent, 12
SHOWN = {
  "quantity_skew": {"alpha": 0.5}, "power_law": {"exponent": 1.0},
  "label_quantity": {"classes_per_client": 2}, "extended_dirichlet": {"classes_per_client": 2, "alpha": 0.5},
}  # fmt: skip


def main(data_dir: str) -> None:
  """Draws both pictures of the data in a folder."""
  source, key = fh.data.load("mnist", data_dir), jax.random.key(0)
  figure = Figure(figsize=(10.4, 2.9), layout="constrained")
  for axes, (name, options) in zip(figure.subplots(1, len(SHOWN), sharey=True), SHOWN.items()):
    counts = counts_of(fh.data.partition(key, name, source.y, CLIENTS, **options), source.y, 10)
    left = np.zeros(CLIENTS)
    for own, colour in zip(counts.T, colours_of(10)):
      axes.barh(np.arange(CLIENTS), own, left=left, color=colour, height=0.8)
      left += own
    told = ", ".join(f"{setting}={value}" for setting, value in options.items())
    axes.set_title(f"{name}\n{told.replace('classes_per_client', 'classes')}", fontsize=9)
    axes.set(xlabel="rows", ylim=(CLIENTS - 0.4, -0.6))
    axes.spines[["top", "right"]].set_visible(False)
    axes.label_outer()
  figure.supylabel("client", fontsize=10)
  save(figure, HERE / "partitions.png")
  data = fh.data.from_arrays(key, source.x, source.y, 20)
  shifted = fh.data.feature_shift(key, data, fh.data.rotations())
  hidden = np.arange(20) % 4
  plot_shift(shifted, HERE / "feature_shift.png", hidden=hidden, title="MNIST, four hidden rotations")


if __name__ == "__main__":
  main(sys.argv[1])
