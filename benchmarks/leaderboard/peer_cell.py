"""What a cell of the leaderboard takes a peer: FedAvg on mnist_shards, here and in pfl-research 0.6.0.

    taskset -c 0 python benchmarks/leaderboard/peer_cell.py [--turns 3]

Both train the task's network in the task's rounds: 100 clients of 420 images, cohorts of ten, one epoch of
batches of 20, plain SGD, 100 rounds after two for warm-up, on one core, in turns. Images and labels are
random, which changes no time. Ours is a single run, without compiling. A cell is as many runs as its trials
cost and five seeds. docs/results/raw/peer_cell.json has all turns; checks.py shows them.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

from benchmarks.peers.envs import ENVS, PEERS
from benchmarks.provenance import RAW, ROOT, provenance
from fedjax_het.leaderboard.board import Row, read_board
from fedjax_het.leaderboard.budget import SEEDS
from fedjax_het.tune.rungs import BATCH, budget

WORK = {"model": "two_nn_64", "samples": 420, "cohort": 10, "batch": 20, "rounds": 100, "lr": 0.1}
SIDES = {
  "fedjax_het": [sys.executable, str(ROOT / "benchmarks" / "speed" / "ours.py"), "--devices", "1"],
  "pfl-research": [
    str(ENVS / "pfl_research" / "bin" / "python"), str(PEERS / "pfl_research.py"), "--threads", "1",
    "--optimizers", "loop", "fused",
  ],
}  # fmt: skip


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--turns", type=int, default=3)
  args = parser.parse_args()
  work = [text for name, value in WORK.items() for text in (f"--{name}", str(value))]
  seconds: dict[str, list[float]] = {name: [] for name in SIDES}
  for _ in range(args.turns):
    for name, command in SIDES.items():
      environment = os.environ | {"PYTHONPATH": str(ROOT)}
      done = subprocess.run([*command, *work], capture_output=True, text=True, check=True, env=environment)
      line = json.loads(done.stdout.splitlines()[-1])
      assert line["finite"] and line["steps"] == 100 * 10 * 21
      seconds[name].append(line["seconds"])
      print(f"{name}: {seconds[name][-1]:.2f} s", flush=True)
  board, row = read_board(ROOT / "configs" / "leaderboard.py"), Row("mnist_shards", "fedavg")
  rounds = int(board.config(row).rounds)
  runs = budget(board.number_of_trials(row), BATCH, rounds) / rounds + len(SEEDS)
  median = {name: statistics.median(own) for name, own in seconds.items()}
  found = {
    "seconds": seconds, "median": median, "runs_a_cell": round(runs, 2),
    "ratio": median["pfl-research"] / median["fedjax_het"], "by": provenance(),
  }  # fmt: skip
  (RAW / "peer_cell.json").write_text(json.dumps(found, indent=1) + "\n")
  print(f"{found['ratio']:.1f} times, a cell of {runs:.1f} runs")


if __name__ == "__main__":
  main()
