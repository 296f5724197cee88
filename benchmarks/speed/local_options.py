"""Measures the time of a round with each option of local training beside one without.

    python benchmarks/speed/local_options.py [--out docs/results/raw/local_options.json]

FedAvg on random images of MNIST's shape with a small TwoCNN: ten of 100 clients with 300 images each, batches
of 10, one epoch. Rounds with and without the option take turns; a ratio is the median of the turns' own.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np

import fedjax_het as fh

fh.prepare_cpu()

import jax  # noqa: E402

from benchmarks.provenance import RAW, provenance  # noqa: E402

CLIENTS, EXAMPLES, COHORT, ROUNDS, TURNS = 100, 300, 10, 3, 7
LOCAL = {"lr": 0.01, "epochs": 1, "batch_size": 10}
OPTIONS = {
  "nesterov": {"optimizer": "nesterov"},
  "adam": {"optimizer": "adam"},
  "adamw": {"optimizer": "adamw"},
  "steps = 30": {"steps": 30},
  "clip_norm = 1": {"clip_norm": 1.0},
  "warmup and cosine": {"warmup": 5.0, "schedule": "cosine", "schedule_rounds": 100},
  "label_smoothing": {"label_smoothing": 0.1},
  "sam": {"sam_radius": 0.05},
  "asam": {"sam_radius": 0.5, "sam_adaptive": True},
  "crop = 2": {"crop": 2},
  "flip": {"flip": True},
  "cutout = 8": {"cutout": 8},
  "mixup = 0.2": {"mixup": 0.2},
}
MODELS = {  # transforms of the model
  "frozen conv1": lambda model: fh.models.frozen(model, "conv1"),
  "lora, rank 4": lambda model: fh.models.lora(model, rank=4, layers="fc1"),
}


def federation() -> fh.data.FederatedData:
  """Random images of all clients."""
  rng, rows = np.random.default_rng(0), CLIENTS * EXAMPLES
  x = rng.integers(0, 256, (rows, 28, 28, 1), dtype=np.uint8)
  parts = np.split(np.arange(rows), CLIENTS)
  return fh.federate(x, rng.integers(0, 10, rows), parts, jax.random.key(0), num_classes=10)


def ratio(data: fh.data.FederatedData, plain: fh.ClientUpdate, other: fh.ClientUpdate) -> dict[str, float]:
  """Milliseconds of a round of both, and the median of the turns' ratios with its range."""
  engines = [fh.Engine(fh.federated(part), data, COHORT) for part in (plain, other)]
  states = [engine.init(jax.random.key(1)) for engine in engines]
  times = np.zeros((TURNS + 1, 2))
  for turn in range(TURNS + 1):
    for i, engine in enumerate(engines):
      started = time.perf_counter()
      states[i], _ = engine.advance(states[i], ROUNDS)
      times[turn, i] = 1e3 * (time.perf_counter() - started) / ROUNDS
  times = times[1:]  # the first compiles
  own = times[:, 1] / times[:, 0]
  return {
    "ms_without": float(np.median(times[:, 0])), "ms_with": float(np.median(times[:, 1])),
    "ratio": float(np.median(own)), "ratio_min": float(own.min()), "ratio_max": float(own.max()),
  }  # fmt: skip


def main() -> None:
  """Measures every option and writes the figures."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--out", type=Path, default=RAW / "local_options.json")
  args = parser.parse_args()
  data, model = federation(), fh.models.two_cnn(hidden=8, dense=64)
  plain, found = fh.fedavg(model, **LOCAL), {}
  others = {name: fh.fedavg(model, **{**LOCAL, **own}) for name, own in OPTIONS.items()}
  others |= {name: fh.fedavg(make(model), **LOCAL) for name, make in MODELS.items()}
  for name, other in {"nothing": plain, **others}.items():
    found[name] = ratio(data, plain, other)
    own = found[name]
    print(f"{name:<20} {own['ms_with']:8.1f} ms a round, {own['ratio']:.2f} times", flush=True)
  record = {"command": "python benchmarks/speed/local_options.py", **provenance(), "options": found}
  args.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
  main()
