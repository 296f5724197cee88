"""Checks of the leaderboard: a task made again from an empty folder, a method under two names, times.

    python benchmarks/leaderboard/checks.py [--again=RAW --task=heart] [--runs=RUNS --again_runs=RUNS]

With --again it compares a task's rows in RAW, which were made by

    python -m fedjax_het.leaderboard --tasks=heart --raw=RAW --workdir=RUNS --data_dir=DATA

from empty folders, with the board's: everything but seconds, dates and commits, and the groups; with both
workdirs also the values of every trial. The result is kept in docs/results/raw/leaderboard_checks.json. Then
the page docs/results/leaderboard_checks.md is written: what --again has found, where the comparison puts the
two rows of benchmarks/leaderboard/twins.py, what each task has taken, and what a cell takes a peer.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.leaderboard import twins
from benchmarks.provenance import PAGES, RAW, ROOT, made, provenance, write_tables
from fedjax_het.leaderboard.board import Board, read_board
from fedjax_het.leaderboard.raw import lasting, read_task
from fedjax_het.leaderboard.summary import summarized
from fedjax_het.metrics.seeds import over_seeds
from fedjax_het.workdir.folder import read_json_lines

FILE, TWINS, PAGE = (
  RAW / "leaderboard_checks.json",
  RAW / "leaderboard_checks",
  PAGES / "leaderboard_checks.md",
)
PEER = RAW / "peer_cell.json"
WALL = "By the wall clock, with other work beside on most days, the first compilations of a program included."
COMMAND = "python benchmarks/leaderboard/checks.py --again=RAW --task={} --runs=RUNS --again_runs=RUNS"


def trials(runs: Path, task: str) -> dict[str, Any]:
  """Returns method -> its trials, as its workdir has them."""
  return {
    path.parent.parent.name.rpartition("-")[0]: read_json_lines(path)
    for path in sorted((runs / task).glob("*/tuning/trials.jsonl"))
  }


def compare(board: Board, task: str, again: Path, runs: tuple[Path, Path] | None) -> dict[str, Any]:
  """Compares a task's rows in two folders."""
  one, other = read_task(RAW / "leaderboard", task, board.names()), read_task(again, task, board.names())
  groups = [
    summarized(task, {name: own[name] for name in one if name in other}).groups for own in (one, other)
  ]
  found = {
    "rows": len(one), "again": len(other),
    "different": [name for name in one if name in other and lasting(one[name]) != lasting(other[name])],
    "same_groups": groups[0] == groups[1],
    "seconds": [round(seconds(own), 1) for own in (one, other)], "by": provenance(),
  }  # fmt: skip
  if runs:
    own, theirs = (trials(folder, task) for folder in runs)
    both = [name for name in own if name in theirs]
    found["trials"] = {
      "methods": len(both), "different": [name for name in both if own[name] != theirs[name]],
    }  # fmt: skip
  return found


def seconds(rows: Mapping[str, Mapping[str, Any]]) -> float:
  """Returns what tuning and runs of some rows took."""
  return sum(own.get("tuning", {}).get("seconds", 0.0) + own.get("seconds", 0.0) for own in rows.values())


def write(board: Board, known: Mapping[str, Any]) -> None:
  """Writes the page's tables."""
  lines = ["### Again from an empty folder", ""]
  lines += [
    "| task | rows | made again | different | trials different | groups |",
    "|---|---|---|---|---|---|",
  ]
  for task, own in known.items():
    of_trials = own.get("trials")
    differ = f"{len(of_trials['different'])} of {of_trials['methods']} methods" if of_trials else "–"
    cells = [task, own["rows"], own["again"], len(own["different"]), differ]
    lines.append(f"| {' | '.join(map(str, cells))} | {'the same' if own['same_groups'] else 'others'} |")
    lines += ["", made(COMMAND.format(task), [own])]
  found = read_task(TWINS, twins.TASK, twins.names())
  if found:
    lines += ["", f"### `{twins.BEST}` on {twins.TASK} under two names, and made worse", ""]
    lines += ["| method | top-1 (%) | group | tuned to |", "|---|---|---|---|"]
    rows = read_task(RAW / "leaderboard", twins.TASK, board.names())
    groups = summarized(twins.TASK, rows | found).groups
    assert groups is not None
    for name in (twins.BEST, *found):
      own = (rows | found)[name]
      over = over_seeds(one["mean"] for one in own["seeds"].values())
      tuned = ", ".join(f"{field} = {value:.3g}" for field, value in own["chosen"].items())
      group = "first" if name in groups.first else ""
      lines.append(f"| {name} | {100 * over.mean:.1f} ± {100 * (over.half or 0):.1f} | {group} | {tuned} |")
    command = "python -m fedjax_het.leaderboard --board=benchmarks/leaderboard/twins.py"
    lines += ["", made(command, [{"by": own["provenance"]} for own in found.values()])]
  lines += [
    "",
    "### What the tasks took",
    "",
    WALL,
    "",
    "| task | rows | hours on one core | longest row, minutes |",
  ]
  lines.append("|---|---|---|---|")
  for task in board.tasks:
    if rows := read_task(RAW / "leaderboard", task, board.names()):
      name = max(rows, key=lambda one: seconds({one: rows[one]}))
      longest = f"{seconds({name: rows[name]}) / 60:.1f} ({name})"
      lines.append(f"| {task} | {len(rows)} | {seconds(rows) / 3600:.1f} | {longest} |")
  if PEER.exists():
    own = json.loads(PEER.read_text())
    ours, theirs = (own["median"][name] for name in ("fedjax_het", "pfl-research"))
    runs, turns, ratio = own["runs_a_cell"], len(own["seconds"]["fedjax_het"]), own["ratio"]
    lines += ["", "### What a cell takes a peer", ""]
    lines.append(
      f"A run of FedAvg on mnist_shards: {ours:.1f} s here, {theirs:.1f} s in pfl-research 0.6.0 on one core"
      f" ({ratio:.1f} times; medians of {turns} turns). A cell costs as many steps as {runs:.1f} runs:"
      f" {runs * theirs / 60:.1f} minutes of training there, {runs * ours / 60:.1f} here."
    )
    lines += ["", made("taskset -c 0 python benchmarks/leaderboard/peer_cell.py", [own])]
  write_tables(PAGE, "\n".join(lines))


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--again", type=Path)
  parser.add_argument("--task", default="heart")
  parser.add_argument("--runs", type=Path)
  parser.add_argument("--again_runs", type=Path)
  args = parser.parse_args()
  board = read_board(ROOT / "configs" / "leaderboard.py")
  known = json.loads(FILE.read_text()) if FILE.exists() else {}
  if args.again:
    runs = (args.runs, args.again_runs) if args.runs and args.again_runs else None
    known[args.task] = compare(board, args.task, args.again, runs)
    FILE.write_text(json.dumps(known, indent=1) + "\n")
  write(board, known)


if __name__ == "__main__":
  main()
