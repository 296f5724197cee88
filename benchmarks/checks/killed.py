"""Kills runs at random moments, continues them, and compares them with a run that was left alone.

    python benchmarks/checks/killed.py [--runs 20] [--kills 2] [--seed 0]

Each run is the launcher's SuPerFed on digits (the quickstart's data, 60 rounds, an evaluation every 7). It
gets SIGKILL --kills times, each after a random share of the undisturbed run's time, and then goes on to its
end. metrics.jsonl and summary.json (without wall-clock fields) and the parameters of the last checkpoint must
be the same bytes as the undisturbed run's. One more run gets SIGTERM, and the script prints how many seconds
it takes to end with a checkpoint.
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import numpy as np

from fedjax_het.config import quickstart
from fedjax_het.config.plan import plan
from fedjax_het.engine.engine import Engine
from fedjax_het.experiment import experiment
from fedjax_het.experiment.recorded import timeless
from fedjax_het.workdir.checkpoint import Checkpoints

SETTINGS = ["--config.rounds=60", "--config.eval_every=7", "--config.algorithm.start=0.34"]


def start(workdir: Path) -> subprocess.Popen:
  command = [
    sys.executable, "-m", "fedjax_het.run", f"--workdir={workdir}", "--checkpoint_seconds=0.2", *SETTINGS,
  ]  # fmt: skip
  return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finish(workdir: Path) -> None:
  process = start(workdir)
  _, errors = process.communicate()
  if process.returncode:
    raise SystemExit(f"a run failed: {errors.decode()}")


def record(workdir: Path) -> tuple[list[dict], dict]:
  lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
  summary = json.loads((workdir / "summary.json").read_text())
  return timeless(lines), timeless(summary)


def parameters(workdir: Path) -> list[np.ndarray]:
  config = quickstart.get_config()
  config.update(rounds=60, eval_every=7)
  config.algorithm.start = 0.34
  built = experiment.build(plan(config))
  checkpoints = Checkpoints(workdir / "checkpoints")
  found = checkpoints.restore(Engine(built.algorithm, built.data, config.cohort_size).init(jax.random.key(0)))
  checkpoints.close()
  assert found is not None
  state = found[0]._replace(key=jax.random.key_data(found[0].key))
  return [np.asarray(leaf) for leaf in jax.tree.leaves(state)]


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--runs", type=int, default=20)
  parser.add_argument("--kills", type=int, default=2)
  parser.add_argument("--seed", type=int, default=0)
  args = parser.parse_args()
  rng = random.Random(args.seed)
  with tempfile.TemporaryDirectory() as folder:
    root = Path(folder)
    finish(root / "warm")  # compiled programs are on disk from here on
    began = time.monotonic()
    finish(root / "whole")
    seconds = time.monotonic() - began
    expected, leaves = record(root / "whole"), parameters(root / "whole")
    print(f"undisturbed: {seconds:.1f} s", flush=True)
    same = 0
    for run in range(args.runs):
      workdir, moments = root / f"run{run}", []
      for _ in range(args.kills):
        process = start(workdir)
        moments.append(rng.uniform(0.1, 1.0) * seconds)
        try:
          process.wait(moments[-1])
        except subprocess.TimeoutExpired:
          process.send_signal(signal.SIGKILL)
        process.communicate()
      finish(workdir)
      equal = record(workdir) == expected and all(
        np.array_equal(a, b) for a, b in zip(parameters(workdir), leaves, strict=True)
      )
      same += equal
      at = ", ".join(f"{moment:.1f}" for moment in moments)
      print(f"run {run}: killed after {at} s: {'the same' if equal else 'DIFFERS'}", flush=True)
    print(f"{same} of {args.runs} are the same")
    process = start(root / "stopped")
    time.sleep(0.7 * seconds)
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate()
    took = time.monotonic() - began
    print(
      f"SIGTERM: ended after {took:.1f} s, exit status {process.returncode}: {errors.decode()[-90:].strip()}"
    )
    finish(root / "stopped")
    print("and went on to the same end:", record(root / "stopped") == expected)


if __name__ == "__main__":
  main()
