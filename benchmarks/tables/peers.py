"""Our runs of Flower's niid_bench beside its published figures: page, picture and raw figures.

    python -m fedjax_het.reproduce --table=configs/peers_niid_bench.py --seeds=0 --data_dir=DATA --runs=RUNS \
      --where='dataset=mnist,split=dir,algorithm=fedavg,mixing=static'
    python benchmarks/tables/peers.py [RUNS]

RUNS has the runs of reproduce; the figures of those that have ended are added to
docs/results/raw/peers_niid_bench.json. Without RUNS the page and the picture are made of that file alone.
"""

import argparse
import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from benchmarks.provenance import PAGES, RAW, ROOT, made, place, write_tables
from fedjax_het.studies.plots import COLORS, decorate, save
from fedjax_het.workdir.folder import Workdir, read_json_lines, read_record, read_starts

TABLE, PAGE, FILE = (
  ROOT / "configs" / "peers_niid_bench.csv",
  PAGES / "peers.md",
  RAW / "peers_niid_bench.json",
)
CELL = ("dataset", "split", "algorithm", "mixing")
COMMAND = "python -m fedjax_het.reproduce --table=configs/peers_niid_bench.py --runs=RUNS --data_dir=DATA"


def of_run(folder: Path, summary: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the raw figures of a run."""
  run, start = Workdir(folder), read_starts(folder)[-1]
  return {
    "best": summary["official"]["best"]["value"],
    "course": [round(row["official"]["top1"], 6) for row in read_json_lines(run.metrics_path)],
    "client_steps": summary["client_steps"],
    "seconds": {name: round(own, 1) for name, own in summary["seconds"].items()},
    "by": {name: start.get(name) for name in ("commit", "date", "machine", "jax")},
  }  # fmt: skip


def published() -> dict[tuple[str, ...], dict[str, str]]:
  """Returns the peer's figures: cell -> its line of the table."""
  with TABLE.open(encoding="utf-8") as file:
    return {tuple(line[name] for name in CELL): line for line in csv.DictReader(file)}


def cells_of(known: Mapping[str, Any]) -> dict[tuple[str, ...], dict[int, dict[str, Any]]]:
  """Returns our runs by cell and seed."""
  found: dict[tuple[str, ...], dict[int, dict[str, Any]]] = {}
  for name, own in known.items():
    values = dict(part.split("=") for part in name.split(","))
    found.setdefault(tuple(values[one] for one in CELL), {})[int(values["seed"])] = own
  return found


def tables(known: Mapping[str, Any]) -> str:
  """Returns the page's table."""
  theirs, ours = published(), cells_of(known)
  lines = ["| data, split | method | theirs | ours | difference | in their standard deviations |"]
  lines.append("|---|---|---|---|---|---|")
  for cell, line in theirs.items():
    if cell not in ours:
      continue
    mean, std = float(line["mean"]), float(line["std"])
    best = [100 * own["best"] for own in ours[cell].values()]
    difference = float(np.mean(best)) - mean
    own = f"{np.mean(best):.2f}" + (f" ± {np.std(best, ddof=1):.2f}" if len(best) > 1 else " (one seed)")
    ratio = f"{difference / std:+.1f}" if std else "–"
    beside = f"{mean:.2f} ± {std:.2f} | {own} | {difference:+.2f} | {ratio}"
    lines.append(f"| {line['dataset']}, {line['split']} | {line['method']} | {beside} |")
  lines += ["", f"{len(ours)} of {len(theirs)} cells.", "", made(COMMAND, list(known.values()))]
  return "\n".join(lines)


def draw(known: Mapping[str, Any], path: Path) -> None:
  """Draws accuracy on the official test images against rounds, beside the published best ± their spread."""
  theirs, ours = published(), cells_of(known)
  figure = Figure(figsize=(7.0, 4.2), layout="constrained")
  ax, lowest = figure.subplots(), 1.0
  there = [(line, ours[cell]) for cell, line in theirs.items() if cell in ours]
  for color, (line, seeds) in zip(COLORS * 3, there):
    label = f"{line['method']}, {line['dataset']} {line['split']}"
    for own in seeds.values():
      rounds = np.arange(1, len(own["course"]) + 1)
      ax.plot(rounds, 100 * np.array(own["course"]), color=color, linewidth=1.5, label=label)
      lowest, label = min(lowest, *own["course"][4:]), None
    mean, std = float(line["mean"]), float(line["std"])
    lowest = min(lowest, (mean - std) / 100)
    ax.axhspan(mean - std, mean + std, color=color, alpha=0.15, linewidth=0)
    ax.axhline(mean, color=color, linestyle=":", linewidth=1.2)
  decorate(ax, "top-1 (%) on the official test images")
  ax.set_ylim(100 * lowest - 0.1, None)
  ax.set_xlabel("round")
  ax.xaxis.set_major_locator(MaxNLocator(integer=True))
  ax.legend(frameon=False, fontsize=9, title="dotted: published best round, mean ± std of 3 seeds")
  save(figure, path)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("runs", type=Path, nargs="?")
  args = parser.parse_args()
  known = json.loads(FILE.read_text()) if FILE.exists() else {}
  for folder in sorted(args.runs.glob("dataset=*")) if args.runs else []:
    if summary := read_record(Workdir(folder).summary_path):
      known[folder.name] = of_run(folder, summary)
  FILE.write_text(json.dumps(dict(sorted(known.items()))) + "\n")
  write_tables(PAGE, tables(known))
  draw(known, place(PAGES, "peers_niid_bench.png"))


if __name__ == "__main__":
  main()
