"""HAM10000, seven kinds of skin lesion of which one is 72 %: MobileNetV2 with and without class weights.

    python benchmarks/skin_lesions.py [--weights none balanced] [--rounds 15] [--seeds 0] [--width 0.5]
      [--data_dir DATA] [--out docs/results/skin_lesions.json]

One image a lesion, 64 x 64. A fifth of each kind, the same in all runs, tests the global model and is
nobody's; the rest goes to ten clients by Dirichlet(1) over the kinds. FedAvg, everybody in every round, one
epoch, B = 20, lr 0.01, momentum 0.9, weight decay 1e-4. Class weights are those of the clients' training
labels together. Every kind's recall and their mean, the balanced accuracy, stand beside the accuracy. Rows
that OUT has are kept.
"""

import argparse
import json
import time
from pathlib import Path

import jax
import numpy as np
from provenance import ROOT, provenance

import fedjax_het as fh
from fedjax_het.data.ham10000 import KINDS

CLIENTS, ALPHA = 10, 1.0


def held_out(y: np.ndarray) -> np.ndarray:
  """A fifth of each kind's rows, at random, bool [N]."""
  draws = np.random.default_rng(0).random(len(y))
  ranks = np.zeros(len(y))
  for kind in np.unique(y):
    rows = np.flatnonzero(y == kind)
    ranks[rows[draws[rows].argsort()]] = np.arange(len(rows)) / len(rows)
  return ranks < 0.2


def recalls(model: fh.Model, state: fh.State, x: np.ndarray, y: np.ndarray) -> list[float]:
  """The share of each kind's images that the global model names, percent."""
  judged = jax.jit(lambda rows: model.apply(state.broadcast.params, rows, state.broadcast.stats).argmax(-1))
  named = np.concatenate([judged(np.float32(part) / 255) for part in np.array_split(x, len(x) // 100)])
  return [float(100 * (named[y == kind] == kind).mean()) for kind in range(len(KINDS))]


def trained(weights: str, seed: int, args: argparse.Namespace) -> dict:
  """One run's figures."""
  source = fh.data.load("ham10000", args.data_dir, size=64, one_per_lesion=True)
  test = held_out(source.y)
  x, y, key = source.x[~test], source.y[~test], jax.random.key(seed)
  task = fh.tasks.classification(fh.tasks.balanced(y, len(KINDS)) if weights == "balanced" else None)
  data = fh.data.from_arrays(
    key, x, y, CLIENTS, "dirichlet", alpha=ALPHA, num_classes=len(KINDS), test_fraction=0.0, task=task
  )
  model = fh.models.make("mobilenet_v2", x.shape[1:], len(KINDS), task=task, width=args.width)
  client = fh.fedavg(model, epochs=1, batch_size=20, lr=0.01, momentum=0.9, weight_decay=1e-4)
  engine = fh.Engine(fh.federated(client), data, CLIENTS)
  state, course, started = engine.init(key), [], time.time()
  for r in range(args.rounds):
    state, _ = engine.advance(state, 1)
    recall = recalls(model, state, source.x[test], source.y[test])
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
  parser.add_argument("--rounds", type=int, default=15)
  parser.add_argument("--seeds", nargs="+", type=int, default=[0])
  parser.add_argument("--width", type=float, default=0.5)
  parser.add_argument("--data_dir", type=Path)
  parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "skin_lesions.json")
  args = parser.parse_args()
  fh.prepare_cpu()
  for seed in args.seeds:
    for weights in args.weights:
      row = trained(weights, seed, args) | {"width": args.width, **provenance()}
      record = json.loads(args.out.read_text()) if args.out.exists() else {}
      record[f"{weights}, seed {seed}"] = row
      args.out.write_text(json.dumps(record, indent=1) + "\n")
  for name, row in json.loads(args.out.read_text()).items():
    last = row["course"][-1]
    kinds = ", ".join(f"{kind} {own:.0f}" for kind, own in zip(KINDS, last["recall"]))
    print(f"{name}: accuracy {last['accuracy']:.1f}, balanced {last['balanced']:.1f}; {kinds}")


if __name__ == "__main__":
  main()
