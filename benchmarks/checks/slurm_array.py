"""Compares a table made by a SLURM job array, whose node dies on the way, with one made by one process.

    python benchmarks/checks/slurm_array.py [--members 2] [--rounds 400] [--cut COMMAND --revive COMMAND]

The table is four methods on digits, two seeds each, --rounds rounds. `launch/slurm.sh reproduce` makes it as
an array of --members jobs, all at a time with a CPU each, which share one folder. If --cut is given, that
command kills the node's daemons while two runs train, and the script kills what these had started (SIGKILL,
as in a power cut). --revive starts the node's daemon again. The daemon then tells the controller that it
knows nothing of these jobs, and SLURM requeues them. A requeued job waits two minutes. The script needs a
SLURM, as slurm.py does. On a node made of a single machine by root:

    --cut 'pkill -KILL slurmstepd; pkill -KILL slurmd' --revive slurmd

The exit status is 0 if every run was begun once, by either member, and continued once if it was killed, and
if metrics.jsonl and summary.json of each are the same bytes as in the table made by one process, apart from
`seconds`.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.checks.slurm import ENVIRONMENT, check_slurm, keep, place, record, wait
from benchmarks.provenance import RAW, ROOT

CONFIG = '''"""Four methods on digits."""

from fedjax_het.config.quickstart import get_config as quickstart

FIGURES = {"top1": ("metrics.personalized.top1", 100.0)}


def get_config(cell=""):
  """Such as "algorithm=ditto"."""
  config = quickstart(cell)
  config.rounds, config.eval_every = ROUNDS, ROUNDS // 4
  return config
'''
METHODS = {"FedAvg": "fedavg", "FedRep": "fedrep", "Ditto": "ditto", "APFL": "apfl"}
SEEDS = 2
PATIENCE = 1800  # seconds until two runs must be at work


def write_table(folder: Path, rounds: int) -> Path:
  """The table's two files."""
  path = folder / "digits_table.py"
  path.write_text(f"ROUNDS = {rounds}\n\n{CONFIG}")
  lines = [f"{name},{key},top1,,\n" for name, key in METHODS.items()]
  path.with_suffix(".csv").write_text("".join(["method,algorithm,metric,mean,std\n", *lines]))
  return path


def arguments(table: Path, workdir: Path) -> list[str]:
  """Of `reproduce`."""
  seeds = ",".join(map(str, range(SEEDS)))
  return [f"--table={table}", f"--workdir={workdir}", f"--seeds={seeds}"]


def submit(table: Path, workdir: Path, members: int) -> str:
  """Puts the array into the queue: its number."""
  command = [
    "sbatch", "--parsable", f"--array=0-{members - 1}", "--nodes=1", "--ntasks-per-node=1",
    "--cpus-per-task=1", "--gpus-per-node=0", "--time=60", f"--output={workdir}-%a.log",
    f"{ROOT}/launch/slurm.sh", "reproduce", *arguments(table, workdir),
  ]  # fmt: skip
  done = subprocess.run(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True, check=True)
  return done.stdout.strip().split(";")[0]


def processes(array: str) -> list[int]:
  """Those that the members have started, by their environment."""
  found = []
  for path in Path("/proc").glob("[0-9]*/environ"):
    try:
      variables = path.read_bytes().split(b"\0")
    except OSError:  # it has ended, or is another's
      continue
    if f"SLURM_ARRAY_JOB_ID={array}".encode() in variables:
      found.append(int(path.parent.name))
  return found


def at_work(folder: Path, sign: str) -> list[str]:
  """The runs that have a file `sign` with something in it, and have not ended."""
  begun = (path.parent for path in folder.rglob(sign) if path.stat().st_size)
  return sorted(str(path.relative_to(folder)) for path in begun if not (path / "summary.json").exists())


def die(array: str, folder: Path, cut: str, revive: str) -> dict[str, Any]:
  """Kills the node's daemons and what they had started, in the midst of two runs."""
  until = time.monotonic() + PATIENCE
  while len(at_work(folder, "metrics.jsonl")) < 2:
    if time.monotonic() > until:
      raise SystemExit(
        f"No two runs were evaluated within {PATIENCE} s: see the array's logs in {folder.parent}."
      )
    time.sleep(0.5)
  runs = at_work(folder, "starts.jsonl")
  killed, done = processes(array), len(list(folder.rglob("summary.json")))
  subprocess.run(cut, shell=True, check=False)
  for process in killed:
    with contextlib.suppress(ProcessLookupError):  # it went with the one before
      os.kill(process, signal.SIGKILL)
  subprocess.run(revive, shell=True, check=True)
  return {"killed_processes": len(killed), "killed_in": runs, "done_before": done}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--members", type=int, default=2)
  parser.add_argument("--rounds", type=int, default=400)
  parser.add_argument("--cut", default="", help="what kills the node's daemons; by default nothing does")
  parser.add_argument("--revive", default="slurmd", help="what starts the node's daemon again")
  parser.add_argument("--folder", type=Path, help="made where missing; by default a temporary one, removed")
  parser.add_argument("--out", type=Path, default=RAW / "slurm_array.json")
  args = parser.parse_args()
  check_slurm()
  with place(args.folder) as folder:
    table = write_table(folder, args.rounds)
    array = submit(table, folder / "array", args.members)
    death = die(array, folder / "array", args.cut, args.revive) if args.cut else {}
    ended = wait({f"member {i}": f"{array}_{i}" for i in range(args.members)})
    alone = [sys.executable, "-m", "fedjax_het.reproduce", *arguments(table, folder / "alone")]
    subprocess.run(alone, env=ENVIRONMENT, check=True, stdout=subprocess.DEVNULL)
    expected = runs_of(folder / "alone")
    found = runs_of(folder / "array")
    started = starts_of(folder / "array")
  members = {
    name: {"state": own["JobState"], "requeued": int(own["Restarts"])} for name, own in ended.items()
  }
  complete = len(found) == len(METHODS) * SEEDS
  same = sorted(found) == sorted(expected)
  once = all(count <= 1 + (name in death.get("killed_in", [])) for name, count in started.items())
  seen = {"members": members, "runs": len(found), "starts": started, "once": once, "same": same}
  keep(args.out, death | seen)
  if not (complete and once and same):
    raise SystemExit("The tables DIFFER, or a run was made twice.")


def starts_of(folder: Path) -> dict[str, int]:
  """How often each run was begun or continued."""
  paths = sorted(folder.rglob("starts.jsonl"))
  return {str(path.parent.relative_to(folder)): len(path.read_text().splitlines()) for path in paths}


def runs_of(folder: Path) -> list[str]:
  """What each run that has ended wrote, `seconds` aside."""
  return [record(path.parent) for path in sorted(folder.rglob("summary.json"))]


if __name__ == "__main__":
  main()
