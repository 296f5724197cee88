"""Compares LoRA and frozen layers with full training: FedAvg, a small TwoCNN on MNIST, K = 100.

    python benchmarks/papers/lora_mnist.py --data DATA [--toy] [--out docs/results/raw/lora_mnist.json]

The first 30,000 training images are dealt to 100 clients, Dirichlet(0.5); ten take part in each of 20 rounds
of one epoch. Each row is one program of three seeds (draws, split and first weights) and four rates, of
which the best by the mean accuracy on the clients' validation parts is reported, on their test parts. No
weights were trained before: what a row freezes is random.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

import fedjax_het as fh

fh.prepare_cpu()

import jax  # noqa: E402

from benchmarks.provenance import RAW, provenance  # noqa: E402
from fedjax_het.experiment.traffic import traffic  # noqa: E402

CLIENTS, COHORT, SEEDS, RATES = 100, 10, (0, 1, 2), (0.01, 0.03, 0.1, 0.3)
BODY = "conv1,conv2,fc1"
ROWS: dict[str, Callable[[fh.Model], fh.Model]] = {
  "full": lambda model: model,
  "LoRA, rank 1": lambda model: fh.models.lora(model, rank=1),
  "LoRA, rank 4": lambda model: fh.models.lora(model, rank=4),
  "LoRA, rank 8": lambda model: fh.models.lora(model, rank=8),
  "FFA-LoRA, rank 4": lambda model: fh.models.lora(model, rank=4, variant="ffa"),
  "head alone": lambda model: fh.models.frozen(model, BODY),
}


def federation(folder: str, seed: int, images: int) -> fh.data.FederatedData:
  """The clients of a seed."""
  source = fh.data.load("mnist", folder)
  x, y = source.x[:images], source.y[:images]
  deal, split = jax.random.split(jax.random.key(seed))
  parts = fh.data.dirichlet(deal, y, num_clients=CLIENTS, alpha=0.5)
  return fh.federate(
    x, y, parts, split, num_classes=10, test_fraction=0.2, valid_fraction=0.2, scale=source.scale
  )


def row(transform: Callable[[fh.Model], fh.Model], data: list[fh.data.FederatedData], rounds: int) -> dict:
  """A row's figures: numbers trained, bytes of one client in a round, and accuracies by rate and seed."""
  model = transform(fh.models.two_cnn(hidden=8, dense=64))

  def make(lr: float) -> fh.Algorithm:
    return fh.federated(fh.fedavg(model, lr=lr, momentum=0.9, epochs=1, batch_size=20))

  found = fh.sweep(make, {"lr": RATES}, SEEDS, data=data, rounds=rounds, cohort_size=COHORT)
  by = {
    part: np.reshape([own["global"]["top1"]["mean"] for own in values], (len(SEEDS), len(RATES)))
    for part, values in (("test", found.metrics), ("valid", found.valid))
  }
  best = int(np.nanargmax(by["valid"].mean(0)))
  shapes = jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0)))
  return {
    "trained": sum(leaf.size for leaf in shapes),
    "bytes_up": traffic(make(RATES[0]), data[0], COHORT)["up"] // COHORT,
    "lr": RATES[best], "top1": by["test"][:, best].tolist(),
    "by_rate": {str(lr): by["test"][:, i].tolist() for i, lr in enumerate(RATES)},
  }  # fmt: skip


def main() -> None:
  """Runs every row, prints the table, and writes the figures."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--data", required=True, help="the folder with the folder mnist")
  parser.add_argument("--toy", action="store_true", help="one round of few images, to see that it works")
  parser.add_argument("--out", type=Path, default=RAW / "lora_mnist.json")
  given = parser.parse_args()
  images, rounds = (3_000, 1) if given.toy else (30_000, 20)
  data = [federation(given.data, seed, images) for seed in SEEDS]
  rows = {}
  for name, transform in ROWS.items():
    rows[name] = own = row(transform, data, rounds)
    mean, std = 100 * np.mean(own["top1"]), 100 * np.std(own["top1"])
    print(
      f"| {name} | {own['trained']:,} | {own['bytes_up']:,} | {own['lr']} | {mean:.1f} ± {std:.1f} |",
      flush=True,
    )
  settings = {"images": images, "rounds": rounds, "cohort_size": COHORT, "seeds": SEEDS, "rates": RATES}
  given.out.write_text(json.dumps({**provenance(), **settings, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
  main()
