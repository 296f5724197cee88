"""Measures memory and time a round with 10,000 clients of which 500 are available at a time.

    python benchmarks/speed/availability.py [--turns 5] [--rounds 40] [--out docs/results/raw]

K = 10,000 clients with 20 random images of 28 x 28, cohorts of 50, TwoNN with 64 hidden units, B = 10, one
epoch, FedAvg and SuPerFed-MM, whose clients have states. "uniform" is a uniform cohort, which leaves
participation out; "available" draws each client with probability 0.05, "dropout" loses 30 % of these clients'
uploads too, and "cyclic" has 20 blocks of 500 clients in turns. Each measurement is a process of its own; the
participations take turns, and a ratio is the median of the turns' ratios to uniform, with their range, so
that other work on the machine affects both alike. "busy" is the load average of the machine per core when a
measurement starts. The script writes availability.json and prints a table.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import fedjax_het as fh

fh.prepare_cpu()

import jax  # noqa: E402

from benchmarks.provenance import RAW, provenance  # noqa: E402

CLIENTS, EXAMPLES, COHORT = 10_000, 20, 50
PARTS = {
  "uniform": fh.participation.uniform,
  "available": lambda: fh.participation.available(probability=0.05),
  "dropout": lambda: fh.participation.available(probability=0.05, dropout=0.3),
  "cyclic": lambda: fh.participation.cyclic(blocks=20),
}
METHODS = {"fedavg": fh.fedavg, "superfed_mm": fh.superfed}


def measured(method: str, name: str, rounds: int) -> dict[str, Any]:
  """What one process takes: seconds a round after as many rounds to warm up, and its largest resident set."""
  rng, rows = np.random.default_rng(0), CLIENTS * EXAMPLES
  data = fh.federate(
    rng.integers(0, 256, (rows, 28, 28, 1), np.uint8), rng.integers(0, 10, rows),
    np.arange(rows).reshape(CLIENTS, EXAMPLES), jax.random.key(0), num_classes=10, test_fraction=0.0,
  )  # fmt: skip
  client = METHODS[method](fh.models.two_nn((28, 28, 1), hidden=64), epochs=1, batch_size=10, lr=0.01)
  engine = fh.Engine(fh.federated(client, participation=PARTS[name]()), data, COHORT)
  state, _ = engine.advance(engine.init(jax.random.key(0)), rounds)
  started = time.perf_counter()
  state, infos = engine.advance(state, rounds)
  jax.block_until_ready(state.broadcast)
  seconds = (time.perf_counter() - started) / rounds
  arrived = COHORT if isinstance(infos.present, tuple) else float(infos.present.sum(axis=1).mean())
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
  return {"seconds_a_round": seconds, "peak_gb": peak / 1e9, "arrived": arrived}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--turns", type=int, default=5)
  parser.add_argument("--rounds", type=int, default=40)
  parser.add_argument("--out", type=Path, default=RAW, help="the folder of the JSON")
  parser.add_argument("--one", nargs=2, metavar=("METHOD", "PARTICIPATION"), help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.one:
    print(json.dumps(measured(*args.one, args.rounds)))
    return
  report: dict[str, Any] = {**provenance(), "rounds": args.rounds, "rows": []}
  for turn in range(args.turns):
    for method in METHODS:
      for name in PARTS:
        command = [sys.executable, __file__, "--one", method, name, "--rounds", str(args.rounds)]
        busy = os.getloadavg()[0] / (os.cpu_count() or 1)
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        row = {"turn": turn, "method": method, "participation": name, "busy": round(busy, 2)}
        report["rows"].append(row | json.loads(done.stdout))
        print(json.dumps(report["rows"][-1]), flush=True)
  (args.out / "availability.json").write_text(json.dumps(report, indent=1) + "\n")
  print(
    "| method | participation | time a round / uniform's (range) | peak GB | arrive |",
    "|---|---|---|---|---|",
    sep="\n",
  )
  for method in METHODS:
    of = {name: [row for row in report["rows"] if (row["method"], row["participation"]) == (method, name)]
          for name in PARTS}  # fmt: skip
    for name, rows in of.items():
      ratios = [own["seconds_a_round"] / base["seconds_a_round"] for own, base in zip(rows, of["uniform"])]
      cells = (
        f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
        f"{max(row['peak_gb'] for row in rows):.2f}",
      )
      print(
        f"| {method} | {name} | {' | '.join(cells)} | {statistics.mean(row['arrived'] for row in rows):.1f} |"
      )


if __name__ == "__main__":
  main()
