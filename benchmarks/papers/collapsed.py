"""Whether FedAvg's network at K = 500 on CIFAR-10 tells any images apart, by rounding of its start.

    python benchmarks/papers/collapsed.py --data_dir=DATA [--starts 5] [--rounds 60] [--seed 0] [--out FOLDER]

The cell of table 2.3: 500 clients of two shards, five a round, ten epochs, TwoCNN. The first start is the
seed's; in the others each parameter is multiplied by 1 + 0.0005 u, u uniform in [-1, 1], which is what
rounding to TF32 changes at most. Cohorts and mini-batches are the same in all. Every tenth round the
script puts 500 training images through the global model. A network whose ReLUs are all off gives every
image the same logits, and then only the last biases train. "spread" is the largest standard deviation of
a logit over the images.

The script writes collapsed.json. A start that it has is not run again.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

import fedjax_het as fh
from benchmarks.provenance import PAGES, place, provenance
from configs import table_2_3
from fedjax_het.config.plan import plan
from fedjax_het.experiment.build import build, engine_of
from fedjax_het.program.where import Where

EVERY, IMAGES, ROUNDING = 10, 500, 5e-4


def course(start: int, seed: int, rounds: int, data_dir: str) -> list[dict[str, float]]:
  """Every tenth round's spread of the logits, accuracy of the global model and mean training loss."""
  config = table_2_3.get_config(f"dataset=cifar10,clients=500,algorithm=fedavg,seed={seed}")
  config.data_dir = data_dir
  built = build(plan(config))
  engine, client = engine_of(built, Where()), built.algorithm.client
  rows = built.data.train.rows()
  x = np.asarray(built.data.x)[rows[:: len(rows) // IMAGES][:IMAGES]].astype(np.float32) / 255.0
  state = engine.init(built.key)
  if start:
    rng = np.random.default_rng(start)
    off = lambda leaf: leaf * (1.0 + ROUNDING * rng.uniform(-1.0, 1.0, leaf.shape).astype(np.float32))  # noqa: E731
    state = state._replace(
      broadcast=state.broadcast._replace(params=jax.tree.map(off, state.broadcast.params))
    )
  logits_of = jax.jit(client.apply)
  found: list[dict[str, float]] = []
  for _ in range(rounds // EVERY):
    state, infos = engine.advance(state, EVERY)
    logits = np.asarray(logits_of(client.global_model(state.broadcast), x))
    found.append({
      "round": int(engine.rounds_done(state)), "spread": float(logits.std(0).max()),
      "top1": float(np.nanmean(engine.evaluate(state).global_["top1"])),
      "train_loss": float(infos.clients.loss.mean()),
    })  # fmt: skip
    print(start, found[-1], flush=True)
  return found


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--data_dir", required=True)
  parser.add_argument("--starts", type=int, default=5)
  parser.add_argument("--rounds", type=int, default=60)
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--out", type=Path, default=PAGES, help="the folder of raw/")
  args = parser.parse_args()
  fh.prepare_cpu()
  path = place(args.out, "collapsed.json")
  found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
  for start in range(args.starts):
    key = f"seed={args.seed},start={start}"
    if key not in found:
      found[key] = {"course": course(start, args.seed, args.rounds, args.data_dir), "by": provenance()}
      path.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
  main()
