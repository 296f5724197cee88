"""Compares the engine with a padded vmap on clients of very different sizes.

    python benchmarks/speed/ragged.py [--out docs/results/raw/ragged.json]

MNIST, from $FEDJAX_HET_DATA, is divided among 100 clients with log-normal sizes (σ = 1); cohort 20, TwoNN, B
= 10, one local epoch, plain SGD. Useful steps are those of the clients' own examples. "vmap" trains a
device's share of the cohort side by side for as many steps as its longest client needs, and masks the others.
"groups" trains four clients of similar size at a time. "engine" is what the library does by default on this
machine. The same with equal sizes shows how much of the ratio is due to the sizes. The better of two turns
counts.
"""

import argparse
import datetime
import json
import time
from pathlib import Path

import jax
import numpy as np

import fedjax_het as fh
from benchmarks.provenance import RAW

CLIENTS, COHORT, ROUNDS = 100, 20, 20


def federation(source, sigma: float) -> fh.data.FederatedData:
  rng = np.random.default_rng(0)
  shares = np.exp(sigma * rng.normal(size=CLIENTS))
  sizes = np.maximum(1, np.floor(shares / shares.sum() * len(source.y))).astype(int)
  rows = rng.permutation(len(source.y))[: sizes.sum()]
  return fh.federate(
    source.x, source.y, np.split(rows, np.cumsum(sizes)[:-1]), jax.random.key(0), num_classes=10,
    test_fraction=0.0,
  )  # fmt: skip


def measure(data, client_batch: int | None) -> tuple[float, list[np.ndarray]]:
  """Useful client steps a second, and the parameters after the first round."""
  model = fh.models.two_nn((28, 28, 1))
  client = fh.fedavg(model, lr=0.01, epochs=1, batch_size=10, momentum=0.0, weight_decay=0.0)
  engine = fh.Engine(fh.federated(client), data, COHORT, client_batch=client_batch)
  state, _ = engine.advance(engine.init(jax.random.key(1)), 1)
  first = [np.array(leaf) for leaf in jax.tree.leaves(state.broadcast)]
  best = 0.0
  for _ in range(2):
    started = time.perf_counter()
    state, infos = engine.advance(state, ROUNDS)
    best = max(best, infos.clients.steps.sum() / (time.perf_counter() - started))
  return float(best), first


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--out", type=Path, default=RAW / "ragged.json")
  args = parser.parse_args()
  fh.prepare_cpu()
  source = fh.data.load("mnist")
  report = {
    "date": str(datetime.date.today()),
    "devices": jax.device_count(),
    "backend": jax.default_backend(),
  }
  for name, sigma in (("log-normal", 1.0), ("equal", 0.0)):
    data = federation(source, sigma)
    sizes = np.asarray(data.train.size)
    engine, ours = measure(data, None)
    vmap, theirs = measure(data, COHORT)
    groups, _ = measure(data, 4)
    apart = max(float(np.abs(a - b).max() / np.abs(a).max()) for a, b in zip(ours, theirs))
    report[name] = {
      "sizes": {"smallest": int(sizes.min()), "median": int(np.median(sizes)), "largest": int(sizes.max())},
      "engine_steps_per_second": engine,
      "vmap_steps_per_second": vmap, "groups_steps_per_second": groups, "ratio": engine / vmap,
      "largest_relative_difference_after_a_round": apart,
    }  # fmt: skip
    print(name, json.dumps(report[name]), flush=True)
  args.out.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
  main()
