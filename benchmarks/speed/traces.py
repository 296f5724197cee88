"""Measures time a round and memory with 10^5 clients whose speeds and presence are traces in files.

    python benchmarks/speed/traces.py [--clients 100000] [--turns 3] [--rounds 48] [--out docs/results/raw]

Each client has 20 random images of 8 x 8, cohorts are of 100, logistic regression, B = 10, one epoch, FedAvg.
The traces are written first: log-normal speeds, and a client that is there for a quarter of every day of 24
rounds, from an hour of its own on. "uniform" is a uniform cohort without a clock, "clock" adds the speeds,
"traces" draws from those that are there too, and "deadline" also asks 1.3 times as many and waits for at most
three simulated seconds. Each measurement is a process of its own; the cases take turns, and a ratio is the
median of the turns' ratios to uniform, with their range, so that other work on the machine affects all alike.
"busy" is the load average of the machine per core when a measurement starts. The script writes traces.json
and prints a table.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import fedjax_het as fh

fh.prepare_cpu()

import jax  # noqa: E402

from benchmarks.provenance import RAW, provenance  # noqa: E402

EXAMPLES, COHORT, DAY, THERE = 20, 100, 24, 6
LATE = {"deadline": 3.0, "over_selection": 1.3}
CASES: dict[str, tuple[bool, bool, dict[str, float]]] = {  # speeds, presence, timing
  "uniform": (False, False, {}),
  "clock": (True, False, {}),
  "traces": (True, True, {}),
  "deadline": (True, True, LATE),
}


def write_traces(folder: Path, clients: int, rounds: int) -> None:
  """Writes speeds.csv and presence.csv of so many clients and rounds."""
  rng = np.random.default_rng(0)
  step, link = (median * np.exp(rng.normal(size=clients)) for median in (0.25, 7.5e5))
  lines = (f"{i}, {s:.6g}, {b:.6g}" for i, (s, b) in enumerate(zip(step, link)))
  (folder / "speeds.csv").write_text("\n".join(lines) + "\n")
  hours = rng.integers(0, DAY, clients)
  days = range(0, rounds + DAY, DAY)
  there = (f"{i},{day + hour},{day + hour + THERE}" for i, hour in enumerate(hours) for day in days)
  (folder / "presence.csv").write_text("\n".join(there) + "\n")


def measured(case: str, folder: Path, clients: int, rounds: int) -> dict[str, Any]:
  """What one process takes: seconds a round after as many rounds to warm up, and its largest resident set."""
  rng, rows = np.random.default_rng(0), clients * EXAMPLES
  data = fh.federate(
    rng.integers(0, 256, (rows, 8, 8, 1), np.uint8), rng.integers(0, 10, rows),
    np.arange(rows).reshape(clients, EXAMPLES), jax.random.key(0), num_classes=10, test_fraction=0.0,
  )  # fmt: skip
  speeds, presence, timing = CASES[case]
  started = time.perf_counter()
  parts: dict[str, Any] = {}
  if speeds:
    parts["system"] = fh.system.trace(path=str(folder / "speeds.csv"), **timing)
  if presence:
    parts["participation"] = fh.participation.trace(path=str(folder / "presence.csv"))
  read = time.perf_counter() - started
  client = fh.fedavg(fh.models.make("logistic_regression", (8, 8, 1), 10), epochs=1, batch_size=10, lr=0.01)
  algorithm, key = fh.federated(client, **parts), jax.random.key(0)
  engine = fh.Engine(algorithm, data, COHORT)
  state, _ = engine.advance(engine.init(key), rounds)
  started = time.perf_counter()
  state, infos = engine.advance(state, rounds)
  jax.block_until_ready(state.broadcast)
  seconds = (time.perf_counter() - started) / rounds
  simulated = float(fh.Clock(algorithm, data, COHORT, key).rounds(infos).mean()) if speeds else None
  arrived = COHORT if isinstance(infos.present, tuple) else float(infos.present.sum(axis=1).mean())
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
  return {
    "seconds_a_round": seconds, "peak_gb": peak / 1e9, "arrived": arrived, "seconds_to_read": read,
    "simulated_seconds_a_round": simulated,
  }  # fmt: skip


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--clients", type=int, default=100_000)
  parser.add_argument("--turns", type=int, default=3)
  parser.add_argument("--rounds", type=int, default=48, help="at most 128")
  parser.add_argument("--out", type=Path, default=RAW, help="the folder of the JSON")
  parser.add_argument("--one", nargs=2, metavar=("CASE", "FOLDER"), help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.one:
    case, folder = args.one
    print(json.dumps(measured(case, Path(folder), args.clients, args.rounds)))
    return
  report: dict[str, Any] = {**provenance(), "clients": args.clients, "rounds": args.rounds, "rows": []}
  with tempfile.TemporaryDirectory() as folder:
    write_traces(Path(folder), args.clients, 2 * args.rounds)
    sizes = ["--clients", str(args.clients), "--rounds", str(args.rounds)]
    for turn in range(args.turns):
      for case in CASES:
        busy = os.getloadavg()[0] / (os.cpu_count() or 1)
        command = [sys.executable, __file__, "--one", case, folder, *sizes]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        row = {"turn": turn, "case": case, "busy": round(busy, 2)} | json.loads(done.stdout)
        report["rows"].append(row)
        print(json.dumps(row), flush=True)
  (args.out / "traces.json").write_text(json.dumps(report, indent=1) + "\n")
  print("| case | ms a round | time / uniform's (range) | peak GB | arrive | simulated s |")
  print("|---|---|---|---|---|---|")
  of = {case: [row for row in report["rows"] if row["case"] == case] for case in CASES}
  for case, rows in of.items():
    ratios = [own["seconds_a_round"] / base["seconds_a_round"] for own, base in zip(rows, of["uniform"])]
    simulated = rows[0]["simulated_seconds_a_round"]
    cells = (
      case,
      f"{1e3 * statistics.median(row['seconds_a_round'] for row in rows):.1f}",
      f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
      f"{max(row['peak_gb'] for row in rows):.2f}",
      f"{statistics.mean(row['arrived'] for row in rows):.1f}",
      "" if simulated is None else f"{simulated:.1f}",
    )
    print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
  main()
