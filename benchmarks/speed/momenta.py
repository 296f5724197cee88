"""Compares momenta in bfloat16 with momenta in float32: client steps a second of a TwoNN.

    python benchmarks/speed/momenta.py [--turns 15] [--out docs/results/raw/momenta.json]

100 clients of 480 random examples, cohort 5, B = 10, one epoch, SGD with momentum 0.9 and weight decay 1e-4,
for FedAvg and SuPerFed-MM, with the same optax parts for both widths. One process compiles all four programs,
which then take turns with windows of three rounds. A ratio is the median of the turns' ratios.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import fedjax_het as fh
from benchmarks.provenance import RAW, provenance
from fedjax_het.clients.objective import Optimizer

ROUNDS = 3
WIDTHS = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}


def sgd(width: jnp.dtype) -> Optimizer:
  """lr -> the papers' SGD, whose momentum has this dtype."""
  return lambda lr: optax.chain(
    optax.add_decayed_weights(1e-4),
    optax.trace(0.9, accumulator_dtype=width),
    optax.scale_by_learning_rate(lr),
  )


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--turns", type=int, default=15)
  parser.add_argument("--out", type=Path, default=RAW / "momenta.json")
  args = parser.parse_args()
  fh.prepare_cpu()
  rng, key = np.random.default_rng(0), jax.random.key(0)
  x = rng.integers(0, 256, (48000, 28, 28, 1), np.uint8)
  parts = np.split(np.arange(len(x)), 100)
  data = fh.federate(x, rng.integers(0, 10, len(x)), parts, key, num_classes=10, test_fraction=0.0)
  running = {}
  for method in ("fedavg", "superfed_mm"):
    for width, dtype in WIDTHS.items():
      model = fh.models.two_nn(shape=x.shape[1:])
      client = getattr(fh, method)(model, epochs=1, batch_size=10, lr=0.01, optimizer=sgd(dtype))
      engine = fh.Engine(fh.federated(client), data, 5)
      running[method, width] = [engine, engine.advance(engine.init(key), 1)[0]]
  steps: dict[str, dict[str, list[float]]] = {method: {} for method, _ in running}
  for _ in range(args.turns):
    for (method, width), own in running.items():
      started = time.perf_counter()
      own[1], infos = own[0].advance(own[1], ROUNDS)
      rate = int(infos.clients.steps.sum()) / (time.perf_counter() - started)
      steps[method].setdefault(width, []).append(round(rate, 1))
  args.out.write_text(json.dumps({**provenance(), "steps a second": steps}, indent=1) + "\n")
  for method, own in steps.items():
    ratios = [half / whole for whole, half in zip(own["float32"], own["bfloat16"])]
    medians = ", ".join(f"{width} {statistics.median(rates):.0f}" for width, rates in own.items())
    print(f"{method}: {medians} steps a second; {statistics.median(ratios):.2f} times as many in bfloat16")


if __name__ == "__main__":
  main()
