"""Measures seconds a round against cohort size, number of clients and model size.

    python benchmarks/speed/scaling.py [--quick] [--out docs/results]

The data are synthetic images of MNIST's shape, 100 training examples a client; batch 10, one local epoch,
TwoNN with 200 hidden units (50 when the number of clients varies, since 10,000 local models of 200 take 8
GB). A point is the median of three timings of the compiled rounds, after one that does not count. The script
writes OUT/raw/scaling.json and the picture OUT/images/scaling.png.
"""

import argparse
import json
import os
import time
from pathlib import Path

import jax
import numpy as np
from matplotlib.figure import Figure

import fedjax_het as fh
from benchmarks.provenance import PAGES, place, provenance

EXAMPLES = 125  # a client; 100 train, 25 test


def make_data(num_clients: int) -> fh.data.FederatedData:
  """K clients of 100 training and 25 test images, random pixels and labels."""
  rng = np.random.default_rng(0)
  rows = num_clients * EXAMPLES
  x = rng.integers(0, 256, (rows, 28, 28, 1), dtype=np.uint8)
  parts = np.split(np.arange(rows), num_clients)
  return fh.federate(x, rng.integers(0, 10, rows), parts, jax.random.key(0), num_classes=10)


def client(name: str, hidden: int) -> fh.ClientUpdate:
  """The method `name` around TwoNN."""
  model = fh.models.two_nn(hidden=hidden)
  return getattr(fh, name)(model, epochs=1, batch_size=10)


def measure(name: str, data: fh.data.FederatedData, cohort: int, hidden: int, rounds: int) -> dict:
  """Median seconds a round, and the bytes of the stacked client states."""
  engine = fh.Engine(fh.federated(client(name, hidden)), data, cohort)
  state = engine.init(jax.random.key(1))
  times = []
  for _ in range(4):
    started = time.perf_counter()
    state, _ = engine.advance(state, rounds)
    times.append((time.perf_counter() - started) / rounds)
  parameters = fh.models.count_parameters(state.broadcast.params)
  held = sum(leaf.nbytes for leaf in jax.tree.leaves(state.clients))
  point = {
    "method": name, "clients": data.num_clients, "cohort": cohort, "hidden": hidden, "parameters": parameters,
    "seconds_a_round": float(np.median(times[1:])), "client_state_bytes": held,
  }  # fmt: skip
  print(
    f"{name:>12} K={data.num_clients:<6} S={cohort:<3} hidden={hidden:<4}"
    f" {1e3 * point['seconds_a_round']:9.2f} ms a round, client state {held / 1e6:9.1f} MB",
    flush=True,
  )
  return point


def draw(points: dict[str, list[dict]], path: Path) -> None:
  """Three panels: seconds a round against each size, with the line of exact proportion."""
  figure = Figure(figsize=(12, 4), layout="constrained", dpi=150)
  panels = figure.subplots(1, 3, sharey=True)
  labels = {
    "cohort": "cohort size S",
    "clients": "clients K (cohort of 5, 50 hidden units)",
    "parameters": "model parameters",
  }
  colours = {"fedavg": "#0072b2", "superfed_mm": "#d55e00"}
  for panel, (axis, rows) in zip(panels, points.items(), strict=True):
    for name, colour in colours.items():
      own = [row for row in rows if row["method"] == name]
      sizes = np.array([row[axis] for row in own], float)
      seconds = np.array([row["seconds_a_round"] for row in own])
      panel.loglog(sizes, seconds, "o-", color=colour, label=name)
      ideal = seconds[0] * (np.ones_like(sizes) if axis == "clients" else sizes / sizes[0])
      panel.loglog(sizes, ideal, ":", color=colour, linewidth=1)
    panel.set_xlabel(labels[axis])
    panel.set_xticks(sizes, [f"{int(size):,}" for size in sizes], rotation=30)
    panel.minorticks_off()
    panel.grid(alpha=0.3)
  panels[0].set_ylabel("seconds a round")
  panels[0].legend(frameon=False)
  figure.suptitle("Cost of a round (dotted: proportional; for clients: flat)", fontweight="bold")
  figure.savefig(path)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--quick", action="store_true", help="tiny sizes, to try the script")
  parser.add_argument("--out", type=Path, default=PAGES, help="the folder of raw/ and images/")
  options = parser.parse_args()
  jax.config.update("jax_num_cpu_devices", os.cpu_count())
  cohorts = (2, 4) if options.quick else (5, 10, 20, 40, 80)
  clients = (8, 16) if options.quick else (100, 300, 1000, 3000, 10_000)
  widths = (16, 32) if options.quick else (50, 100, 200, 400, 800)
  base, rounds, hidden = (4, 2, 16) if options.quick else (100, 10, 200)
  small = make_data(base)
  points: dict[str, list[dict]] = {"cohort": [], "clients": [], "parameters": []}
  for name in ("fedavg", "superfed_mm"):
    for cohort in cohorts:
      points["cohort"].append(measure(name, small, min(cohort, base), hidden, max(2, rounds * 5 // cohort)))
    for width in widths:
      points["parameters"].append(measure(name, small, min(5, base), width, rounds))
  for count in clients:
    data = make_data(count)
    for name in ("fedavg", "superfed_mm"):
      points["clients"].append(measure(name, data, min(5, base), min(widths), rounds))
  record = {
    "command": "python benchmarks/speed/scaling.py" + (" --quick" if options.quick else ""),
    **provenance(), "points": points,
  }  # fmt: skip
  place(options.out, "scaling.json").write_text(json.dumps(record, indent=2) + "\n")
  draw(points, place(options.out, "scaling.png"))


if __name__ == "__main__":
  main()
