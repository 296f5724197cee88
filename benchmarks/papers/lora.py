"""Compares LoRA with a frozen encoder (MiniLM on MQP) and with full training (a decoder on Shakespeare).

    python benchmarks/papers/lora.py --runs=RUNS --weights=model.safetensors --vocabulary=tokenizer.json

WEIGHTS and VOCABULARY are those of all-MiniLM-L6-v2 (docs/models.md); without them only the decoder is run.
Runs that RUNS already has are not started again. OUT/raw/lora.json holds each run's figures, the numbers
that are trained, and the bytes that a client sends in a round. The budget is that of a small machine:
few rounds of few steps.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.provenance import PAGES, ROOT, place
from benchmarks.tables.run_figures import figures
from fedjax_het.workdir.folder import Workdir, read_record

MQP = {
  "config": "configs/table_3_8.py:dataset=mqp,mixing=static,model=minilm,seed=0", "rounds": 6,
  "eval_every": 2, "late_evaluations": 0, "dataset_options.apart": True, "dataset_options.length": 32,
  "local.optimizer": "adam", "local.steps": 4, "local.batch_size": 10, "local.weight_decay": 0.0,
  "local.lr_decay": 1.0,
}  # fmt: skip
MINILM: dict[str, dict[str, Any]] = {
  "mqp_frozen_0.001": {"model.frozen": "encoder", "local.lr": 0.001},
  "mqp_lora_8": {"lora": {"rank": 8}, "local.lr": 0.001},
}
ROLES = {
  "config": "configs/quickstart.py:algorithm=fedavg", "dataset": "shakespeare", "dataset_options.stride": 20,
  "partition": {"name": "natural", "sample": 30}, "num_clients": None, "test_fraction": None,
  "valid_fraction": 0.0, "cohort_size": 10, "eval_every": 5, "local.optimizer": "adam", "local.steps": 10,
  "model": {"name": "gpt", "width": 64, "layers": 2, "positions": "last"},
}  # fmt: skip
FIRST = {"rounds": 40, "local.lr": 0.003}  # trains the decoder from which the others start
DECODER: dict[str, dict[str, Any]] = {
  "roles_full": {"rounds": 15, "seed": 1, "local.lr": 0.001},
  "roles_lora_4": {"rounds": 15, "seed": 1, "local.lr": 0.003, "lora": {"rank": 4}},
}


def run(folder: Path, given: dict[str, Any]) -> dict[str, Any]:
  """Trains a configuration in a folder unless it is there, and returns its row of the raw file."""
  if not (folder / "summary.json").exists():
    config = given["config"]
    flags = [f"--config.{name}={value}" for name, value in given.items() if name != "config"]
    command = [sys.executable, "-m", "fedjax_het.run", f"--config={config}", *flags, f"--workdir={folder}"]
    subprocess.run(command, cwd=ROOT, check=True)
  summary = read_record(folder / "summary.json")
  assert summary is not None, folder
  uploads = summary["rounds"] * summary["cohort_size"]
  with np.load(folder / "model.npz") as model:
    trained = sum(model[name].size for name in model.files)
  row = figures(Workdir(folder), summary)
  row.pop("seconds")  # other programs ran beside
  return {"trained": trained, "bytes_up": summary["bytes"]["up"] / uploads, **row}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--runs", type=Path, required=True)
  parser.add_argument("--weights", type=Path)
  parser.add_argument("--vocabulary", type=Path)
  parser.add_argument("--out", type=Path, default=PAGES)
  args = parser.parse_args()
  runs: dict[str, dict[str, Any]] = {}
  if args.weights:
    files = {"model.weights": args.weights, "dataset_options.vocabulary_file": args.vocabulary}
    runs |= {name: MQP | files | own for name, own in MINILM.items()}
  first = args.runs.resolve() / "roles_first"
  start = {"model": ROLES["model"] | {"weights": str(first / "model.npz")}}
  runs |= {"roles_first": ROLES | FIRST} | {name: ROLES | start | own for name, own in DECODER.items()}
  rows = {name: run(args.runs.resolve() / name, given) for name, given in runs.items()}
  lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
  place(args.out, "lora.json").write_text(f'{{\n "runs": {{\n{lines}\n }}\n}}\n')


if __name__ == "__main__":
  main()
