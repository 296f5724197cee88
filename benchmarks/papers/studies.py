"""Draws the landscapes and lines of models of several methods side by side, for docs/results/studies.md.

    for a in fedavg scaffold apfl ditto superfed_mm superfed_lm; do python -m fedjax_het.run \
      --config=configs/table_2_3.py:dataset=mnist,clients=100,algorithm=$a --config.data_dir=DATA \
      "--config.landscape={'points': 21}" --workdir=RUNS/$a; done
    for a in fedavg scaffold apfl superfed_mm; do python -m fedjax_het.run \
      --config=configs/table_2_3.py:dataset=mnist,clients=100,algorithm=$a --config.data_dir=DATA \
      "--config.unseen={'fraction': 0.2, 'steps': [1, 10, 50]}" --workdir=RUNS/unseen_$a; done
    python benchmarks/papers/studies.py RUNS

The runs are table 2.3's cells on MNIST with K = 100. The script trains nothing. It draws the loss around the
global models on the same two directions (thesis, figure 2.4) and the lines of models between global and local
(figures 2.3 and 2.5), and writes docs/results/raw/studies.json, docs/results/images/studies_landscapes.png
and docs/results/images/studies_lines.png.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from benchmarks.provenance import PAGES, place
from benchmarks.tables.run_figures import rounded, starts
from fedjax_het.methods import CLIENTS
from fedjax_het.studies.landscape import plot_surfaces
from fedjax_het.studies.plots import save
from fedjax_het.workdir.folder import read_json_lines, read_record

SURFACES = ("fedavg", "scaffold", "superfed_mm", "superfed_lm")
LINES = ("apfl", "ditto", "superfed_mm", "superfed_lm")
NAMES = {
  "fedavg": "FedAvg", "scaffold": "SCAFFOLD", "apfl": "APFL", "ditto": "Ditto", "superfed_mm": "SuPerFed-MM",
  "superfed_lm": "SuPerFed-LM",
}  # fmt: skip


def lines(found: dict[str, dict], path: Path) -> None:
  """Top-1 at every λ of each method's line, with its std over the clients as a band."""
  figure = Figure(figsize=(6.4, 4.0), layout="constrained")
  ax = figure.subplots()
  for name in LINES:
    if line := found.get(name):
      grid, mean, std = (np.array(line[part]) for part in ("grid", "mean", "std"))
      (drawn,) = ax.plot(grid, 100 * mean, marker="o", markersize=3, label=NAMES[name])
      ax.fill_between(grid, 100 * (mean - std), 100 * (mean + std), color=drawn.get_color(), alpha=0.1)
  ax.set(xlabel="λ: 0 the global model, 1 the client's own", ylabel="top-1 of the clients' tests, %")
  ax.legend(frameon=False)
  save(figure, path)


def row(folder: Path, summary: dict) -> dict:
  """What a run says of the studies."""
  found = {model: own["top1"] for model, own in summary["metrics"].items()}
  cosine = [
    [own["round"], own["clients"]["cosine"]]
    for own in read_json_lines(folder / "metrics.jsonl")
    if "cosine" in own.get("clients", {})
  ]
  parts = {name: summary[name] for name in ("landscape", "lambda", "unseen") if name in summary}
  return {"top1": found, **parts, **({"cosine": cosine} if cosine else {}), "starts": starts(folder)}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("runs", type=Path)
  args = parser.parse_args()
  rows = {}
  for folder in sorted(path for path in args.runs.iterdir() if path.name.removeprefix("unseen_") in CLIENTS):
    if summary := read_record(folder / "summary.json"):
      rows[folder.name] = rounded(row(folder, summary))
  text = ",\n".join(f" {json.dumps(name)}: {json.dumps(own)}" for name, own in rows.items())
  raw = place(PAGES, "studies.json")
  raw.write_text(f"{{\n{text}\n}}\n")
  surfaces = {NAMES[name]: args.runs / name / "landscape.npz" for name in SURFACES if name in rows}
  plot_surfaces(surfaces, place(PAGES, "studies_landscapes.png"))
  drawn = {name: own["lambda"] for name, own in rows.items() if "lambda" in own}
  lines(drawn, place(PAGES, "studies_lines.png"))
  print(f"{len(rows)} runs in {raw}")


if __name__ == "__main__":
  main()
