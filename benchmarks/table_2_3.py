"""Table 2.3 of the thesis, MNIST columns: runs the cells, and sets ours beside the paper's.

    python benchmarks/table_2_3.py --runs=DIR [--run] [--out=docs/results/table_2_3.md]

`--run` starts the launcher for every cell that DIR does not hold yet (hours on two cores); without it the
finished cells are collected.
"""

import argparse
import json
import platform
import subprocess
import sys
import time
from pathlib import Path

import jax

ALGORITHMS = ("fedavg", "fedprox", "superfed_mm", "superfed_lm")
CLIENTS = (50, 100, 500)
PAPER = {  # thesis table 2.3: top-1 (std), percent
  "fedavg": ((95.69, 2.39), (89.78, 11.30), (96.04, 4.74)),
  "fedprox": ((95.13, 2.67), (93.25, 6.12), (96.50, 4.52)),
  "superfed_mm": ((99.45, 0.46), (99.38, 0.93), (99.24, 2.12)),
  "superfed_lm": ((99.48, 0.54), (99.31, 1.09), (98.83, 3.02)),
}
STANDARDIZED = ["--config.model.mean=0.1307", "--config.model.std=0.3081"]
DECAY = ["--config.local.lr_decay=0.999"]
AUTHORS = ["--config.model.layers=3", "--config.model.bias=False"]
VARIANTS = {
  "nu2": ["--config.algorithm.nu=2.0"],
  "valid": ["--config.valid_fraction=0.1"],
  "decay999": DECAY,
  "std": STANDARDIZED,
  "std_decay999": [*STANDARDIZED, *DECAY],
  "author_std_decay999": [*AUTHORS, *STANDARDIZED, *DECAY],
  "roundrobin": ["--config.partition.deal=round_robin"],
}
STUDIED = (
  (50, "valid"), (100, "valid"), (100, "nu2"), (100, "decay999"), (500, "valid"),
  (500, "decay999"), (500, "roundrobin"), (500, "std_decay999"), (500, "author_std_decay999"),
)  # fmt: skip


def cell_name(clients: int, algorithm: str, variant: str = "") -> str:
  return f"mnist_{clients}_{algorithm}" + (f"_{variant}" if variant else "")


def command(clients: int, algorithm: str, variant: str = "") -> list[str]:
  cell = f"dataset=mnist,clients={clients},algorithm={algorithm}"
  return [
    "python", "-m", "fedjax_het.run", f"--config=configs/table_2_3.py:{cell}", *VARIANTS.get(variant, []),
    f"--workdir=RUNS/{cell_name(clients, algorithm, variant)}",
  ]  # fmt: skip


def spread(values: dict | tuple | None) -> str:
  if values is None:
    return "–"
  mean, std = (100 * values["mean"], 100 * values["std"]) if isinstance(values, dict) else values
  return f"{mean:.2f} ({std:.2f})"


def row(runs: Path, clients: int, algorithm: str, variant: str = "") -> str:
  path = runs / cell_name(clients, algorithm, variant) / "summary.json"
  paper = PAPER[algorithm][CLIENTS.index(clients)]
  label = f"{algorithm} {variant}".strip()
  if not path.exists():
    return f"| {label} | {clients} | {spread(paper)} | not run | | | | | |"
  summary = json.loads(path.read_text())
  curve = summary.get("lambda", {})
  top1 = summary["metrics"]["personalized"]["top1"]
  return (
    f"| {label} | {clients} | {spread(paper)} | {spread(top1)} | {100 * top1['mean'] - paper[0]:+.2f} |"
    f" {curve.get('common', '–')} | {spread(curve.get('validation'))} |"
    f" {spread(curve.get('per_client_test_optimistic'))} | {summary['seconds']['train']:.0f} |"
  )


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--runs", type=Path, required=True)
  parser.add_argument("--run", action="store_true")
  parser.add_argument("--out", type=Path, default=Path("docs/results/table_2_3.md"))
  parser.add_argument("--note", type=Path, help="Markdown put between the introduction and the tables")
  options = parser.parse_args()
  cells = [(clients, algorithm, "") for clients in CLIENTS for algorithm in ALGORITHMS]
  cells += [(clients, "superfed_mm", variant) for clients, variant in STUDIED]
  if options.run:
    for cell in cells:
      if not (options.runs / cell_name(*cell) / "summary.json").exists():
        words = [word.replace("RUNS", str(options.runs)) for word in command(*cell)]
        subprocess.run([sys.executable, *words[1:]], check=True)
  head = (
    "| method | K | paper | ours, common λ | less the paper | common λ | ours, λ on validation |"
    " ours, λ per client on its test part | train s |\n|---|---|---|---|---|---|---|---|---|"
  )
  main_rows = [row(options.runs, clients, algorithm) for algorithm in ALGORITHMS for clients in CLIENTS]
  more = [row(options.runs, clients, "superfed_mm", variant) for clients, variant in STUDIED]
  studied = [cell for cell in cells if cell[2]]
  text = [
    "# Table 2.3, MNIST: two shards a client",
    "",
    "Top-1 accuracy in percent on the clients' own test sets: mean (population std) over all K clients;",
    "T = 500, 5 clients a round, E = 10, B = 10, TwoNN, one seed. The paper is the thesis, table 2.3.",
    "",
    options.note.read_text() if options.note else "",
    head, *main_rows, "",
    "## What moves the figure", "",
    head, *more, "",
    "## Commands", "",
    "```sh",
    *(" ".join(command(*cell)) for cell in [*cells[:1], *studied]),
    "```",
    "The other cells are the first command with their own `clients` and `algorithm`.",
    "`--config.data_dir` names the folder that holds `mnist/`. All at once:",
    "`python benchmarks/table_2_3.py --runs=RUNS --run`.",
    "",
    f"Collected {time.strftime('%Y-%m-%d')} on {platform.machine()}, JAX {jax.__version__}.",
    "",
  ]  # fmt: skip
  options.out.parent.mkdir(parents=True, exist_ok=True)
  options.out.write_text("\n".join(text))
  print("\n".join([head, *main_rows, *more]))


if __name__ == "__main__":
  main()
