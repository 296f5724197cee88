"""Measures the seconds of compiling of the papers' configurations, with nothing compiled before.

    python benchmarks/speed/compile_times.py [--cells CELL ...] [--turns 3] [--before TREE]
      [--runs] [--out docs/results/raw/compile_times.json]

Each measurement is a process without a compilation cache, which compiles the first state, the rounds and the
evaluation of a cell with its own model, settings and cohort (all clients where the small files have fewer).
What is compiled does not depend on the number of examples, so the data sets are the tests' small files in the
true format, except MNIST and CIFAR-10, which are read from $FEDJAX_HET_DATA. Medians over the turns are
shown; the goal is 20 s on two cores, and 4 s for TwoNN. --before names the working tree of another commit:
each cell's rounds are then also compiled with that tree's library, just before. With --runs the script
measures instead a first run of two rounds, each evaluated, which includes tracing, checkpoints, tables and
pictures. Cells that are not named keep the figures that OUT has.
"""

import argparse
import contextlib
import json
import os
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CELLS = (
  "table_2_3.py:dataset=mnist,clients=100,algorithm=fedavg",
  "table_2_3.py:dataset=mnist,clients=100,algorithm=superfed_mm",
  "table_2_3.py:dataset=cifar10,clients=100,algorithm=fedavg",
  "table_2_3.py:dataset=cifar10,clients=100,algorithm=superfed_mm",
  "table_2_4.py:dataset=cifar100,algorithm=fedavg",
  "table_2_4.py:dataset=cifar100,algorithm=superfed_mm",
  "table_2_4.py:dataset=tiny_imagenet,algorithm=fedavg",
  "table_2_4.py:dataset=tiny_imagenet,algorithm=superfed_mm",
  "table_2_5.py:dataset=femnist,algorithm=fedavg",
  "table_2_5.py:dataset=femnist,algorithm=superfed_mm",
  "table_2_5.py:dataset=shakespeare,algorithm=fedavg",
  "table_2_5.py:dataset=shakespeare,algorithm=superfed_mm",
  "table_3_8.py:dataset=mqp,mixing=aaggff_s",
  "table_3_8.py:dataset=isic2019,mixing=aaggff_s",
  "table_3_9.py:dataset=celeba,mixing=aaggff_d",
  "table_3_9.py:dataset=reddit,mixing=aaggff_d",
  "table_3_9.py:dataset=speech_commands,mixing=aaggff_d",
  "table_3_10.py:dataset=tiny_imagenet,mixing=aaggff_d",
  "sosicfl_2.py:dataset=cifar10,split=2fold,algorithm=sosicfl",
)
REAL = ("mnist", "cifar10")


@contextlib.contextmanager
def small(cell: str) -> Iterator[Any]:
  """A cell's configuration on a small file of the true format."""
  import fedjax_het as fh

  fh.prepare_cpu()
  import pytest

  sys.path.insert(0, str(ROOT / "tests" / "shared"))
  from small_files import write_small

  from fedjax_het.config.plan import plan
  from fedjax_het.experiment.build import build

  file, _, keys = cell.partition(":")
  config = runpy.run_path(str(ROOT / "configs" / file))["get_config"](keys)
  with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
    with config.ignore_type(), config.unlocked():
      if config.dataset not in REAL:
        write_small(config.dataset, Path(folder), patch)
        config.data_dir = folder
        if config.partition.name == "dirichlet":
          config.num_clients, config.partition.min_size = 3, 5
        if config.mixing.name != "aaggff_s":  # which wants everybody
          cohort, config.cohort_size = config.cohort_size, 2  # the least of fair mixings
          config.cohort_size = min(cohort, build(plan(config)).data.num_clients)
    yield config


def compiled(cell: str) -> dict:
  """Compiles one cell in this process."""
  with small(cell) as config:
    import jax

    from fedjax_het.config.plan import plan
    from fedjax_het.experiment.build import build, engine_of
    from fedjax_het.program.where import EVERYWHERE

    experiment = build(plan(config))
  engine = engine_of(experiment, EVERYWHERE)
  state = engine.init(jax.random.key(0))
  engine.evaluate(state)
  before = engine.seconds.compile
  engine.compile()
  return {"rounds": engine.seconds.compile - before, "all": engine.seconds.compile}


def ran(cell: str) -> dict:
  """Runs two rounds of one cell in this process."""
  with small(cell) as config:
    import jax

    from fedjax_het.experiment.experiment import run_experiment

    jax.config.update("jax_enable_compilation_cache", False)
    config.rounds, config.eval_every = 2, 1
    with tempfile.TemporaryDirectory() as folder:
      started = time.perf_counter()
      run_experiment(config, f"{folder}/run")
      return {"run": time.perf_counter() - started}


def seconds(cell: str, tree: Path, runs: bool) -> dict[str, float]:
  """What `compiled` or `ran` says of a cell in a process of its own, with the library of a working tree."""
  command = [sys.executable, str(Path(__file__).resolve()), *(["--runs"] if runs else []), "--one", cell]
  done = subprocess.run(
    command, env=os.environ | {"PYTHONPATH": str(tree)}, capture_output=True, text=True, cwd=tree
  )
  if done.returncode:
    raise SystemExit(f"{cell}: {done.stderr[-2000:]}")
  return {what: round(own, 2) for what, own in json.loads(done.stdout.splitlines()[-1]).items()}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--cells", nargs="+", default=CELLS, metavar="CELL")
  parser.add_argument("--turns", type=int, default=3)
  parser.add_argument("--before", type=Path)
  parser.add_argument("--runs", action="store_true")
  parser.add_argument("--out", type=Path, help="default: docs/results/raw/compile_times.json")
  parser.add_argument("--one", help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.one:
    print(json.dumps((ran if args.runs else compiled)(args.one)))
    return
  from benchmarks.provenance import RAW, commit, provenance  # not for the processes of another tree

  out = args.out or RAW / "compile_times.json"
  record = json.loads(out.read_text()) if out.exists() else {}
  found, first = record.setdefault("runs" if args.runs else "seconds", {}), "run" if args.runs else "rounds"
  rows: dict[str, dict[str, list[float]]] = {cell: {} for cell in args.cells}
  for turn in range(args.turns):
    for cell, row in rows.items():
      if args.before:
        row.setdefault("before", []).append(seconds(cell, args.before.resolve(), args.runs)[first])
      for what, own in seconds(cell, ROOT, args.runs).items():
        row.setdefault(what, []).append(own)
      print(f"turn {turn + 1} of {args.turns}: {cell}: {row}", flush=True)
      found[cell] = row | {"by": {**provenance(), **({"before": commit(args.before)} if args.before else {})}}
      out.write_text(json.dumps(record, indent=1) + "\n")
  columns = (
    {"run": "a run of two rounds"}
    if args.runs
    else {"rounds": "rounds", "all": "with the first state and the evaluation"}
  )
  columns = {"before": "before"} | columns
  print(f"| cell | {' | '.join(columns.values())} |\n|{'---|' * (1 + len(columns))}")
  for cell, row in found.items():
    medians = [f"{statistics.median(row[what]):.1f}" if what in row else "–" for what in columns]
    print(f"| {cell} | {' | '.join(medians)} |")


if __name__ == "__main__":
  main()
