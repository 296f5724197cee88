"""Measures wall times of whole programs, from the command to the prompt, as a user starts them.

    python benchmarks/speed/wall_times.py --data_dir DATA [--rounds 20] [--turns 3] [--out FILE.json]

Each program is a process: the quickstart; the quickstart with eight seeds, as `--sweep.seed=0,...,7`; and
`reproduce` of the column of table 2.3 with MNIST and 100 clients, all its methods one after another,
shortened to --rounds. "first" starts with an empty compilation cache; "again" has the cache of the first and
a new workdir. Programs take turns, and medians are shown. The goal for eight seeds is at most 8 / (number of
cores) times the time of one.
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

from benchmarks.provenance import RAW, ROOT, provenance

SEEDS = ",".join(map(str, range(8)))


def commands(data_dir: str, rounds: int) -> dict[str, list[str]]:
  """What is timed: name -> arguments, but for the workdir."""
  return {
    "quickstart": ["-m", "fedjax_het.run"],
    "quickstart, eight seeds": ["-m", "fedjax_het.run", f"--sweep.seed={SEEDS}"],
    f"reproduce, table 2.3, MNIST, K = 100, T = {rounds}": [
      "-m", "fedjax_het.reproduce", "--table=configs/table_2_3.py", "--where=dataset=mnist,clients=100",
      f"--config.rounds={rounds}", f"--data_dir={data_dir}",
    ],
  }  # fmt: skip


def timed(command: list[str], workdir: Path, cache: Path) -> float:
  """Seconds from start to end of a process; raises where it fails."""
  own = {"JAX_COMPILATION_CACHE_DIR": str(cache)}
  start = time.perf_counter()
  done = subprocess.run(
    [sys.executable, *command, f"--workdir={workdir}"],
    cwd=ROOT,
    env=os.environ | own,
    capture_output=True,
    text=True,
  )
  seconds = time.perf_counter() - start
  if done.returncode:
    raise SystemExit(f"{' '.join(command)}: {done.stderr[-2000:]}")
  return seconds


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--data_dir", required=True)
  parser.add_argument("--rounds", type=int, default=20)
  parser.add_argument("--turns", type=int, default=3)
  parser.add_argument("--out", type=Path, default=RAW / "wall_times.json")
  args = parser.parse_args()
  rows: dict[str, dict[str, list[float]]] = {}
  for turn in range(args.turns):
    for name, command in commands(args.data_dir, args.rounds).items():
      with tempfile.TemporaryDirectory() as folder:
        for start in ("first", "again"):
          seconds = timed(command, Path(folder) / start, Path(folder) / "cache")
          rows.setdefault(name, {}).setdefault(start, []).append(round(seconds, 2))
          print(f"turn {turn + 1} of {args.turns}: {name}, {start}: {seconds:.1f} s", flush=True)
    report = {**provenance(), "cores": len(os.sched_getaffinity(0)), "seconds": rows}
    args.out.write_text(json.dumps(report, indent=1) + "\n")
  print("| | first start, s | again, s |\n|---|---|---|")
  for name, row in rows.items():
    cells = [f"{statistics.median(own):.1f} ({min(own):.1f} – {max(own):.1f})" for own in row.values()]
    print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
  main()
