"""Measures what a run of each row of the leaderboard takes, and prints the trials that its budget holds.

    python benchmarks/leaderboard/step_times.py --data_dir=DATA [--tasks digits,heart] [--methods ditto]

Each row runs a few of its T rounds with its learning rate in the middle of the range, or at its lower end
where that diverges, on one device and one core of an otherwise idle machine. What a run of T rounds takes is
(T / rounds) times the seconds of training, and ten evaluations. docs/results/raw/leaderboard_steps.json keeps
the seconds; rows that it has are not run again. The lines printed at the end are those of TRIALS_TABLE in
configs/leaderboard.py.
"""

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

from ml_collections import ConfigDict

import fedjax_het as fh
from benchmarks.provenance import RAW, ROOT, place, provenance
from fedjax_het.errors import NonFiniteLoss, SettingError
from fedjax_het.experiment.experiment import run_experiment
from fedjax_het.leaderboard.board import Board, Row, read_board, rows_of
from fedjax_het.leaderboard.budget import LEAST, trials_within
from fedjax_het.program.where import Where

ROUNDS, EVALUATIONS = 4, 10


def seconds_of(board: Board, row: Row, data_dir: str) -> float:
  """Core-seconds of a run of all rounds, found from a run of a few of them."""
  config = board.config(row)
  try:
    return measured(config, data_dir)
  except NonFiniteLoss:
    low, *_ = board.tasks[row.task]["lr"].split(":")
    config = board.config(row)
    config.local.lr = float(low)
    return measured(config, data_dir)


def measured(config: ConfigDict, data_dir: str) -> float:
  """Core-seconds of a run of a configuration; the configuration is changed."""
  rounds, folder = int(config.rounds), tempfile.mkdtemp()
  config.rounds = min(ROUNDS, rounds)
  config.eval_every, config.data_dir = int(config.rounds), data_dir
  try:
    own = run_experiment(config, folder, Where(devices=1))["seconds"]
  finally:
    shutil.rmtree(folder)
  return own["train"] * rounds / int(config.rounds) + EVALUATIONS * own["eval"]


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--data_dir", default="")
  parser.add_argument("--tasks", default="")
  parser.add_argument("--methods", default="")
  parser.add_argument("--out", type=Path, default=RAW.parent, help="folder, laid out as docs/results")
  args = parser.parse_args()
  fh.prepare_cpu(1)
  board = read_board(ROOT / "configs" / "leaderboard.py")
  tasks, methods = ([own for own in text.split(",") if own] for text in (args.tasks, args.methods))
  raw = place(args.out, "leaderboard_steps.json")
  known = json.loads(raw.read_text()) if raw.exists() else {}
  for row in rows_of(board, tasks, methods):
    key = f"{row.task}/{row.method}"
    if key in known or board.tasks[row.task].get("gpu") or board.goes(row):
      continue
    try:
      known[key] = {"seconds": seconds_of(board, row, args.data_dir)} | provenance()
    except (SettingError, NonFiniteLoss) as error:
      print(f"{key}: {error}", file=sys.stderr, flush=True)
      continue
    raw.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")
    print(f"{key}: {known[key]['seconds']:.1f} core-seconds a run", flush=True)
  print(" ".join(["method", *board.tasks]))
  for name in board.names():
    numbers = [board.trials[task].get(name, LEAST) for task in board.tasks]
    for place_, task in enumerate(board.tasks):
      if own := known.get(f"{task}/{name}"):
        numbers[place_] = trials_within(own["seconds"], int(board.config(Row(task, name)).rounds))
    print(" ".join([name, *map(str, numbers)]))


if __name__ == "__main__":
  main()
