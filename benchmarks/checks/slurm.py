"""Compares runs that SLURM stops at their time limit and requeues with a run that was left alone.

    python benchmarks/checks/slurm.py [--runs 3] [--rounds 6000] [--minutes 3] [--folder FOLDER] [--out FILE]

Each run is launch/slurm.sh with two CPU tasks on one node: the quickstart's SuPerFed on digits for --rounds
rounds, with a time limit of --minutes and SIGTERM --warning seconds before it (SLURM may send it up to a
minute earlier). One more run has one task and all the time it needs. The exit status is 0 if metrics.jsonl
and summary.json of all runs are the same bytes, apart from `seconds`, and each of the stopped runs was
requeued at least twice. A requeued job waits two minutes. The nodes must be able to see the folder.

The script needs a SLURM (`sinfo` shows a node). Debian can make one of a single machine; as root:

    apt-get install slurm-wlm munge
    mkdir -p /var/spool/one/state /var/spool/one/slurmd
    cat >/etc/slurm/slurm.conf <<END
    ClusterName=one
    SlurmctldHost=$(hostname -s)(127.0.0.1)
    SlurmUser=root
    SlurmdUser=root
    StateSaveLocation=/var/spool/one/state
    SlurmdSpoolDir=/var/spool/one/slurmd
    ProctrackType=proctrack/linuxproc
    TaskPlugin=task/none
    SelectType=select/cons_tres
    ReturnToService=2
    NodeName=$(hostname -s) NodeAddr=127.0.0.1 CPUs=$(nproc)
    PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE
    END
    service munge start; slurmctld; slurmd
"""

import argparse
import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.provenance import RAW, ROOT, provenance
from fedjax_het.experiment.recorded import timeless

ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"}
ENVIRONMENT = os.environ | {
  "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT),
  "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1",
}  # fmt: skip


def output(*command: str) -> str:
  return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip()


def check_slurm() -> None:
  """Ends the program where no SLURM answers."""
  if not shutil.which("sbatch") or subprocess.run(["sinfo"], capture_output=True).returncode:
    raise SystemExit("No SLURM answers here: slurm.py --help says how to make one of this machine.")


@contextlib.contextmanager
def place(folder: Path | None) -> Iterator[Path]:
  """A folder, made where missing; a temporary one for None."""
  with tempfile.TemporaryDirectory() as temporary:
    own = (folder or Path(temporary)).resolve()
    own.mkdir(parents=True, exist_ok=True)
    yield own


def keep(path: Path, found: dict[str, Any]) -> None:
  """Writes and prints what was found, with the command and where it ran."""
  command = shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
  document = {"command": command, "slurm": output("sinfo", "--version"), **provenance(), **found}
  path.write_text(json.dumps(document, indent=2) + "\n")
  print(json.dumps(document, indent=2))


def submit(workdir: Path, rounds: int, tasks: int, *limits: str) -> str:
  """Puts a run into the queue: its job's number."""
  command = [
    "sbatch", "--parsable", "--nodes=1", f"--ntasks-per-node={tasks}", "--cpus-per-task=1",
    "--gpus-per-node=0", f"--output={workdir}.log", *limits, f"{ROOT}/launch/slurm.sh",
    f"--workdir={workdir}", f"--config.rounds={rounds}", "--config.eval_every=100",
  ]  # fmt: skip
  done = subprocess.run(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True, check=True)
  return done.stdout.strip().split(";")[0]


def wait(jobs: dict[str, str]) -> dict[str, dict[str, str]]:
  """What SLURM says of each job when it has ended; it forgets them some minutes later."""
  ended: dict[str, dict[str, str]] = {}
  while len(ended) < len(jobs):
    for name in jobs.keys() - ended.keys():
      words = output("scontrol", "-o", "show", "job", jobs[name]).split()
      fields = dict(word.split("=", 1) for word in words if "=" in word)
      if fields["JobState"] in ENDED:
        ended[name] = fields
    time.sleep(5)
  return ended


def record(workdir: Path) -> str:
  """The bytes that must not depend on how often a run was stopped."""
  summary = json.loads((workdir / "summary.json").read_text())
  lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
  return "\n".join(json.dumps(timeless(one)) for one in [*lines, summary])


def result(workdir: Path, fields: dict[str, str]) -> dict[str, Any]:
  """How a job went, for the record."""
  log = Path(f"{workdir}.log").read_text()
  if fields["JobState"] != "COMPLETED":
    raise SystemExit(f"{log[-2000:]}\n{workdir.name} ended as {fields['JobState']}; too few --minutes?")
  rounds = [json.loads(line)["round"] for line in (workdir / "metrics.jsonl").read_text().splitlines()]
  return {
    "tasks": int(fields["NumTasks"]), "requeued": int(fields["Restarts"]), "evaluations": len(rounds),
    "stopped_after_rounds": sorted({int(found) for found in re.findall(r"SIGTERM after round (\d+);", log)}),
  }  # fmt: skip


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--runs", type=int, default=3)
  parser.add_argument("--rounds", type=int, default=6000, help="of each run: fewer on a slower machine")
  parser.add_argument("--minutes", type=int, default=3, help="time limit; more where starting takes long")
  parser.add_argument("--warning", type=int, default=90, help="seconds before it")
  parser.add_argument("--folder", type=Path, help="made where missing; by default a temporary one, removed")
  parser.add_argument("--out", type=Path, default=RAW / "slurm.json")
  args = parser.parse_args()
  check_slurm()
  with place(args.folder) as folder:
    limits = [f"--time={args.minutes}", f"--signal=B:TERM@{args.warning}"]
    jobs = {"whole": submit(folder / "whole", args.rounds, 1, "--time=1-0")}
    for name in (f"run{number}" for number in range(args.runs)):
      jobs[name] = submit(folder / name, args.rounds, 2, *limits)
    results = {name: result(folder / name, fields) for name, fields in wait(jobs).items()}
    expected = record(folder / "whole")
    for name in jobs.keys() - {"whole"}:
      results[name]["same"] = record(folder / name) == expected
  keep(args.out, {"runs": {name: results[name] for name in jobs}})
  if any(results[name]["requeued"] < 2 for name in jobs.keys() - {"whole"}):
    raise SystemExit("A run was not requeued twice: give --rounds more, or --minutes fewer.")
  if not all(results[name]["same"] for name in jobs.keys() - {"whole"}):
    raise SystemExit("The runs DIFFER.")


if __name__ == "__main__":
  main()
