"""Two trees of the project beside one another: client steps a second, and seconds to start.

    git worktree add /tmp/before COMMIT
    python benchmarks/before_after.py --before /tmp/before [--turns 5]

Runs `ours.py` of each tree, a process each, in turns (before, after, before, ...), so that what else the
machine does falls on both; medians. "start" is a process's time until two rounds are done, without and with a
compilation cache. Writes docs/results/before_after.json.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from provenance import ROOT, commit, provenance

SPEED = {
  "FedAvg, TwoNN": ("two_nn", "fedavg"),
  "SuPerFed-MM, TwoNN": ("two_nn", "superfed_mm"),
  "FedAvg, TwoCNN": ("two_cnn", "fedavg"),
}


def ours(tree: Path, *flags: str) -> dict:
  """One run of a tree's `ours.py`."""
  command = [sys.executable, str(tree / "benchmarks" / "ours.py"), *flags]
  environment = os.environ | {"PYTHONPATH": str(tree), "JAX_PLATFORMS": "cpu"}
  ran = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
  if ran.returncode:
    raise SystemExit(f"{tree}: {ran.stderr[-2000:]}")
  return json.loads(ran.stdout.splitlines()[-1])


def start(tree: Path, algorithm: str, cache: str) -> float:
  """Seconds from a process's start to its first two rounds of TwoNN."""
  flags = "--start", "--algorithm", algorithm, "--cache", cache, "--started", str(time.time())
  return ours(tree, *flags)["ready_seconds"]


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--before", type=Path, required=True, help="a tree of the project at an earlier commit")
  parser.add_argument("--turns", type=int, default=5)
  parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "before_after.json")
  args = parser.parse_args()
  trees = {"before": args.before.resolve(), "after": ROOT}
  found: dict[str, dict[str, list[float]]] = {}
  for turn in range(args.turns):
    for side, tree in trees.items():
      for name, (model, algorithm) in SPEED.items():
        rounds = "120" if model == "two_nn" else "6"
        line = ours(tree, "--model", model, "--algorithm", algorithm, "--rounds", rounds)
        rates = found.setdefault(f"{name}: client steps a second", {"before": [], "after": []})
        rates[side].append(line["client_steps_per_second"])
      if turn < 3:
        for algorithm in ("fedavg", "superfed_mm"):
          with tempfile.TemporaryDirectory() as cache:
            for what in ("cold", "warm"):
              seconds = found.setdefault(f"{algorithm}, TwoNN: {what} start, s", {"before": [], "after": []})
              seconds[side].append(start(tree, algorithm, cache))
    print(f"turn {turn + 1} of {args.turns}", flush=True)
  report = {
    **provenance(), "before": commit(trees["before"]), "turns": args.turns,
    "rows": {
      name: {side: [round(value, 3) for value in values] for side, values in sides.items()}
      for name, sides in found.items()
    },
  }  # fmt: skip
  args.out.write_text(json.dumps(report, indent=1) + "\n")
  print("| | before | after | after / before |\n|---|---|---|---|")
  for name, sides in found.items():
    before, after = (statistics.median(sides[side]) for side in trees)
    print(f"| {name} | {before:,.4g} | {after:,.4g} | {after / before:.3f} |")


if __name__ == "__main__":
  main()
