"""Compares two trees of the project: client steps a second, and seconds to start.

    git worktree add /tmp/before COMMIT
    python benchmarks/speed/before_after.py --before /tmp/before [--turns 25] [--starts 3] [--rows NAME ...]

Steps: one process of each tree compiles every row once. Then the two take turns (before, after, before, ...)
with windows of a fraction of a second, so that other load on the machine falls on both. The work is 100
clients of 480 random examples, cohort 5, B = 10 unless the row says otherwise, one epoch, with the papers'
momentum of 0.9 and weight decay of 1e-4 or with plain SGD. "unequal" clients have 4 to 900 examples (Pareto's
law), half of them to train on. "six members" are a sweep of the six in one program, a round a call; 500
clients have 96 examples each. AAggFF-D asks the clients for their losses F_i. A "judged" row counts an
evaluation's test examples a second instead of client steps. Trees before commit f6b6b0f count half of APFL's
steps. A ratio is the median of the turns' ratios. "start" is the time of a process until two rounds are done,
without and with a compilation cache. The script writes a JSON file and prints the table.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

PLAIN, PAPERS = {"momentum": 0.0, "weight_decay": 0.0}, {"momentum": 0.9, "weight_decay": 1e-4}


class Row(NamedTuple):
  """What is measured of a method on a model: windows of so many rounds; where there are none, evaluations."""

  method: str
  model: str
  settings: dict
  rounds: int = 0
  unequal: bool = False
  mixing: str = "static"
  batch: int = 10
  clients: int = 100
  members: int = 0


ROWS = {
  "FedAvg, plain SGD, TwoNN": Row("fedavg", "two_nn", PLAIN, 4),
  "FedAvg, TwoNN": Row("fedavg", "two_nn", PAPERS, 4),
  "SCAFFOLD, TwoNN": Row("scaffold", "two_nn", PAPERS, 2),
  "Ditto, TwoNN": Row("ditto", "two_nn", PAPERS, 2),
  "APFL, TwoNN": Row("apfl", "two_nn", PAPERS, 2),
  "SuPerFed-MM, TwoNN": Row("superfed_mm", "two_nn", PAPERS, 2),
  "FedAvg, TwoCNN": Row("fedavg", "two_cnn", PAPERS, 1),
  "FedAvg, B = 50, SimpleCNN": Row("fedavg", "simple_cnn", PAPERS, 1, batch=50),
  "FedAvg, B = 50, ResNet-10, h = 8": Row("fedavg", "resnet10", PAPERS, 1, batch=50),
  "FedAvg, VGG-9": Row("fedavg", "vgg9", PAPERS, 1),
  "FedAvg, unequal, AAggFF-D, TwoNN": Row("fedavg", "two_nn", PAPERS, 16, True, "aaggff_d"),
  "FedAvg, judged, TwoNN": Row("fedavg", "two_nn", PAPERS),
  "FedAvg, unequal, judged, TwoNN": Row("fedavg", "two_nn", PAPERS, unequal=True),
  "SuPerFed-MM, unequal, judged, TwoNN": Row("superfed_mm", "two_nn", PAPERS, unequal=True),
  "FedAvg, unequal, judged, TwoCNN": Row("fedavg", "two_cnn", PAPERS, unequal=True),
  "FedAvg, six members, TwoNN": Row("fedavg", "two_nn", PAPERS, 1, members=6),
  "SCAFFOLD, six members, TwoNN": Row("scaffold", "two_nn", PAPERS, 1, members=6),
  "SCAFFOLD, six members, 500 clients, TwoNN": Row("scaffold", "two_nn", PAPERS, 1, clients=500, members=6),
}
MODELS = {
  "two_nn": {"shape": (28, 28, 1)},
  "two_cnn": {"shape": (32, 32, 3)},
  "simple_cnn": {"shape": (32, 32, 3)},
  "resnet10": {"shape": (32, 32, 3), "width": 8},
  "vgg9": {"shape": (28, 28, 1)},
}


def serve(rows: list[str]) -> None:
  """Compiles rows of the tree on the path; then says a window's steps a second for each name."""
  import jax
  import numpy as np

  import fedjax_het as fh
  from fedjax_het.engine.batched_runs import Members

  fh.prepare_cpu()

  def made(row: Row) -> Callable[[], float]:
    rng = np.random.default_rng(0)
    sizes = np.full(row.clients, 48000 // row.clients)
    if row.unequal:
      sizes = np.clip(4 + 20 * rng.pareto(1.0, 100), 4, 900).astype(int)
    x = rng.integers(0, 256, (sizes.sum(), *MODELS[row.model]["shape"]), np.uint8)
    parts = np.split(np.arange(len(x)), np.cumsum(sizes)[:-1])
    key, test = jax.random.key(0), 0.0 if row.rounds and not row.unequal else 0.5
    data = fh.federate(x, rng.integers(0, 10, len(x)), parts, key, num_classes=10, test_fraction=test)
    network = getattr(fh.models, row.model)(**MODELS[row.model])

    def algorithm(lr: float = 0.01) -> fh.Algorithm:
      client = getattr(fh, row.method)(network, epochs=1, batch_size=row.batch, lr=lr, **row.settings)
      return fh.federated(client, getattr(fh.mixing, row.mixing)())

    if row.members:
      engine = Members(algorithm, data, {"lr": [0.01] * row.members}, row.members, 5)
      state, _ = engine.advance(engine.init(jax.random.split(key, row.members)), 1)
    else:
      engine = fh.Engine(algorithm(), data, 5)
      state, _ = engine.advance(engine.init(key), 1)

    def window() -> float:
      nonlocal state
      started = time.perf_counter()
      state, infos = engine.advance(state, row.rounds)
      seconds = time.perf_counter() - started
      assert np.isfinite(infos.clients.loss).all()
      return int(infos.clients.steps.sum()) / seconds

    def judged() -> float:
      started = time.perf_counter()
      found = engine.evaluate(state)
      assert np.isfinite(found.personalized["loss"]).all()
      return int(np.asarray(data.test.size).sum()) / (time.perf_counter() - started)

    measure = window if row.rounds else judged
    measure()  # compiled
    return measure

  windows = {name: made(ROWS[name]) for name in rows}
  print("ready", flush=True)
  for line in sys.stdin:
    print(windows[line.strip()](), flush=True)


def environment(tree: Path) -> dict[str, str]:
  """In which a tree's own library is imported."""
  return os.environ | {"PYTHONPATH": str(tree), "JAX_PLATFORMS": "cpu"}


def steps(trees: dict[str, Path], rows: list[str], turns: int) -> dict[str, dict[str, list[float]]]:
  """Row -> side -> client steps a second, one a turn."""
  command = [sys.executable, __file__, "--serve", "--rows", *rows]
  pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
  served = {
    side: subprocess.Popen(command, cwd=tree, env=environment(tree), **pipes) for side, tree in trees.items()
  }

  def said(process: subprocess.Popen) -> str:
    line = process.stdout.readline().strip()
    if not line:
      raise SystemExit("A tree's process ended; its error stands above.")
    return line

  for process in served.values():
    assert said(process) == "ready"
  found: dict[str, dict[str, list[float]]] = {name: {side: [] for side in trees} for name in rows}
  for turn in range(turns):
    for name in rows:
      for side, process in served.items():
        process.stdin.write(name + "\n")
        process.stdin.flush()
        found[name][side].append(float(said(process)))
    print(f"turn {turn + 1} of {turns}", flush=True)
  for process in served.values():
    process.stdin.close()
    process.wait()
  return found


def start(tree: Path, algorithm: str, cache: str) -> float:
  """Seconds from a process's start to its first two rounds of TwoNN."""
  folder = tree / "benchmarks"
  script = next(folder.glob("speed/ours.py"), folder / "ours.py")  # where trees of before the rooms have it
  command = [sys.executable, str(script), "--start", "--algorithm", algorithm]
  command += ["--cache", cache, "--started", str(time.time())]
  ran = subprocess.run(command, cwd=tree, env=environment(tree), capture_output=True, text=True)
  if ran.returncode:
    raise SystemExit(f"{tree}: {ran.stderr[-2000:]}")
  return json.loads(ran.stdout.splitlines()[-1])["ready_seconds"]


def starts(trees: dict[str, Path], turns: int) -> dict[str, dict[str, list[float]]]:
  """Row -> side -> seconds, one a turn."""
  found: dict[str, dict[str, list[float]]] = {}
  for turn in range(turns):
    for side, tree in trees.items():
      for algorithm in ("fedavg", "superfed_mm"):
        with tempfile.TemporaryDirectory() as cache:
          for what in ("cold", "warm"):
            seconds = found.setdefault(f"{algorithm}: {what} start, s", {name: [] for name in trees})
            seconds[side].append(start(tree, algorithm, cache))
    print(f"start {turn + 1} of {turns}", flush=True)
  return found


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--before", type=Path, help="a tree of the project at an earlier commit")
  parser.add_argument("--turns", type=int, default=25, help="turns of steps; 0 for none")
  parser.add_argument("--starts", type=int, default=3, help="turns of starts; 0 for none")
  parser.add_argument("--rows", nargs="*", choices=ROWS, default=[*ROWS])
  parser.add_argument("--out", type=Path, help="default: docs/results/raw/before_after.json")
  parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.serve:
    serve(args.rows)
    return
  if args.before is None:
    parser.error("--before is required")
  from benchmarks.provenance import RAW, ROOT, commit, provenance  # not for the trees' own processes

  trees = {"before": args.before.resolve(), "after": ROOT}
  found = steps(trees, args.rows, args.turns) if args.turns else {}
  unit = lambda name: "client steps" if ROWS[name].rounds else "test examples"  # noqa: E731
  found = {f"{name}: {unit(name)} a second": sides for name, sides in found.items()}
  found |= starts(trees, args.starts)
  report = {
    **provenance(), "before": commit(trees["before"]), "turns": args.turns,
    "rows": {
      name: {side: [round(value, 3) for value in values] for side, values in sides.items()}
      for name, sides in found.items()
    },
  }  # fmt: skip
  (args.out or RAW / "before_after.json").write_text(json.dumps(report, indent=1) + "\n")
  print("| | before | after | after / before |\n|---|---|---|---|")
  for name, sides in found.items():
    before, after = (statistics.median(sides[side]) for side in trees)
    ratio = statistics.median(b / a for a, b in zip(sides["before"], sides["after"]))
    print(f"| {name} | {before:,.4g} | {after:,.4g} | {ratio:.3f} |")


if __name__ == "__main__":
  main()
