"""Runs the MNIST columns of the thesis's table 2.3 and sets the results beside the paper's.

    python benchmarks/papers/superfed_mnist.py --runs=DIR [--run [CELL ...]] [--data_dir=DATA]
      [--mesh=clients:1]

--run starts the launcher for the named cells, or for all, one after another. Cells whose summary is in DIR
are skipped, and a run that was stopped continues. After each run, and also without --run, the results in DIR
replace those of the same cells in docs/results/raw/superfed_mnist.json, with commit, date and machine, and
the tables of docs/results/superfed_mnist.md are rewritten. --list prints the cells' names and commands. On
one core a cell takes from two minutes (fedavg, K = 500) to an hour (superfed, K = 50).
"""

import argparse
import json
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.provenance import PAGES, place
from benchmarks.table_2_3_runs import launch, printed

PAGE = PAGES / "superfed_mnist.md"
HEADING = "## All methods, seed 0"  # what follows in the page is written by this script
ALGORITHMS = ("fedavg", "fedprox", "superfed_mm", "superfed_lm")
CLIENTS = (50, 100, 500)
STANDARDIZED = ("--config.model.mean=0.1307", "--config.model.std=0.3081")
DECAY = ("--config.local.lr_decay=0.999",)
AUTHORS = ("--config.model.layers=3", "--config.model.bias=False")
VARIANTS = {
  "": (),
  "valid": ("--config.valid_fraction=0.1",),
  "nu2": ("--config.algorithm.nu=2.0",),
  "roundrobin": ("--config.partition.deal=round_robin",),
  "roundrobin_decay999": ("--config.partition.deal=round_robin", *DECAY),
  "author": AUTHORS,
  "author_decay999": (*AUTHORS, *DECAY),
  "author_std_decay999": (*AUTHORS, *STANDARDIZED, *DECAY),
  "decay999": DECAY,
  "std": STANDARDIZED,
  "std_decay999": (*STANDARDIZED, *DECAY),
}


class Cell(NamedTuple):
  """A run: K, method, what it changes, seed."""

  clients: int
  algorithm: str
  variant: str = ""
  seed: int = 0

  @property
  def name(self) -> str:
    """Such as mnist_500_superfed_mm_std_0: the run's folder, and its key in the JSON."""
    return "_".join(filter(None, ("mnist", str(self.clients), self.algorithm, self.variant, str(self.seed))))

  @property
  def command(self) -> list[str]:
    """The launcher's, in a folder RUNS."""
    cell = f"dataset=mnist,clients={self.clients},algorithm={self.algorithm},seed={self.seed}"
    flags = [f"--config=configs/table_2_3.py:{cell}", *VARIANTS[self.variant], f"--workdir=RUNS/{self.name}"]
    return ["python", "-m", "fedjax_het.run", *flags]


MAIN = [Cell(clients, algorithm) for algorithm in ALGORITHMS for clients in CLIENTS]
STUDIED = [
  *(Cell(clients, "fedavg", "roundrobin") for clients in (100, 500)),
  Cell(100, "fedavg", "roundrobin_decay999"),
  Cell(500, "superfed_mm", "roundrobin"),
  *(Cell(clients, "superfed_mm", "", seed) for clients in (50, 100) for seed in (1, 2)),
  *(Cell(clients, "superfed_mm", "valid") for clients in CLIENTS),
  Cell(100, "superfed_mm", "nu2"),
  *(Cell(100, "superfed_mm", variant) for variant in ("decay999", "std")),
  *(Cell(500, "superfed_mm", variant, s) for variant in ("std", "std_decay999") for s in range(3)),
  Cell(500, "superfed_mm", "decay999"),
  *(Cell(clients, "superfed_mm", "author") for clients in CLIENTS),
  Cell(100, "superfed_mm", "author", 1),
  *(Cell(500, "superfed_mm", variant) for variant in ("author_decay999", "author_std_decay999")),
]
CELLS = {cell.name: cell for cell in [*MAIN, *STUDIED]}


def collect(runs: Path, kept: dict[str, Any]) -> None:
  """Puts the summaries that `runs` holds into `kept`."""
  for name in CELLS:
    summary, about = runs / name / "summary.json", runs / f"{name}.json"
    if summary.exists():
      kept[name] = json.loads(about.read_text()) | {"summary": json.loads(summary.read_text())}


def spread(value: dict[str, float] | None) -> str:
  """Mean and std in percent."""
  return "–" if value is None else f"{100 * value['mean']:.2f} ({100 * value['std']:.2f})"


def row(cell: Cell, kept: dict[str, Any]) -> str:
  """A line of the tables."""
  paper, std = printed()[cell.algorithm, cell.clients]
  name = f"{cell.algorithm} {cell.variant}".strip()
  label = f"| {name} | {cell.clients} | {cell.seed} | {paper:.2f} ({std:.2f})"
  if cell.name not in kept:
    return f"{label} | not run | | | | | | |"
  own = kept[cell.name]
  metrics, curve = own["summary"]["metrics"], own["summary"].get("lambda", {})
  top1 = metrics["personalized"]["top1"]
  server = f"{100 * metrics['global']['top1']['mean']:.2f}" if "global" in metrics else "–"
  return (
    f"{label} | {spread(top1)} | {100 * top1['mean'] - paper:+.2f} | {curve.get('common', '–')}"
    f" | {spread(curve.get('validation'))} | {spread(curve.get('per_client_test_optimistic'))} | {server}"
    f" | {own['commit']} |"
  )


def page(kept: dict[str, Any]) -> str:
  """The page, its tables anew."""
  head = (
    "| method | K | seed | paper | ours, common λ | less the paper | λ | λ on validation |"
    " λ per client on its test part | global model | commit |\n|---|---|---|---|---|---|---|---|---|---|---|"
  )
  return "\n".join([
    PAGE.read_text().partition(HEADING)[0] + HEADING, "",
    head, *(row(cell, kept) for cell in MAIN), "",
    "## What moves the figure", "",
    head, *(row(cell, kept) for cell in STUDIED), "",
    "## Commands", "",
    "`python benchmarks/papers/superfed_mnist.py --runs=RUNS --run` runs every cell that RUNS does not hold;",
    "cells may be named behind `--run`. `--list` prints each cell's own command, such as", "",
    "```sh", " ".join(CELLS["mnist_500_superfed_mm_std_decay999_0"].command), "```", "",
    "`--data_dir=DATA` names the folder that holds `mnist/`.", "",
  ])  # fmt: skip


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--runs", type=Path, default=Path("runs/superfed_mnist"))
  parser.add_argument("--run", nargs="*", choices=CELLS, metavar="CELL")
  parser.add_argument("--list", action="store_true")
  parser.add_argument("--data_dir", default="")
  parser.add_argument("--mesh", default="")
  options = parser.parse_args()
  if options.list:
    print("\n".join(f"{name}: {' '.join(cell.command)}" for name, cell in CELLS.items()))
    return
  figures = place(PAGES, "superfed_mnist.json")
  kept = json.loads(figures.read_text())
  wanted = [] if options.run is None else options.run or list(CELLS)
  flags = [f"--config.data_dir={Path(options.data_dir).resolve()}"] if options.data_dir else []
  flags += [f"--mesh={options.mesh}"] if options.mesh else []
  for name in [*wanted, None]:
    if name and not (options.runs / name / "summary.json").exists():
      launch(CELLS[name].command[1:], name, options.runs, flags)
    collect(options.runs, kept)
    figures.write_text(json.dumps({name: kept[name] for name in CELLS if name in kept}, indent=1) + "\n")
    PAGE.write_text(page(kept))


if __name__ == "__main__":
  main()
