"""Puts finished runs of table 4.2 at the thesis's rounds, clients and widths beside its figures.

    python -m fedjax_het.run --config=configs/table_4_2.py:CELL --config.data_dir=DATA --workdir=RUNS/CELL
    python benchmarks/papers/table_4_2.py [RUNS]

CELL is for example dataset=mnist,alpha=1.0,clients=100,algorithm=fedcvae,protocol=thesis, and is the name of
the run's folder too: it says what a row is of. The rows of the runs that are complete in RUNS replace their
own in docs/results/raw/table_4_2.json, their newest synthetic examples go to docs/results/images, and the
tables of docs/results/table_4_2.md are made of that file and of fedcvae_deal.json; without RUNS that is all
that is done.
"""

import argparse
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.papers.coverage_readers import cell_of
from benchmarks.papers.why_low import late
from benchmarks.provenance import PAGES, RAW, ROOT, made, place, write_tables
from benchmarks.tables.run_figures import collect
from configs.table_4_2 import DEFAULTS
from fedjax_het.config.cell import parse_cell
from fedjax_het.tables.paper import Table, read_table

PAGE, KEPT, DEALS = PAGES / "table_4_2.md", RAW / "table_4_2.json", RAW / "fedcvae_deal.json"
COLUMNS = (
  "data", "α", "K", "T", "method", "clients' test parts (std over clients)", "each training",
  "thesis (std over seeds)", "official images", "as many real ones", "Fréchet", "within a class (real)",
  "hours of training",
)  # fmt: skip
OF_DEALS = (
  "deal", "seeds", "clients", "rows of a client", "distinct rows", "classes of a client", "nearest",
  "official images", "as many real ones",
)  # fmt: skip


def picture(cell: str) -> str:
  """The file name of a run's synthetic examples, of the values in its cell."""
  return "_".join(["table_4_2", *(word.partition("=")[2] for word in cell.split(","))]) + ".png"


def percent(figure: Mapping[str, float]) -> str:
  """A mean over the clients and its standard deviation, in percent."""
  return f"{100 * figure['mean']:.2f} ({100 * figure['std']:.2f})"


def row(table: Table, text: str, own: Mapping[str, Any]) -> list[str]:
  """A run's line of the page's table."""
  keys = parse_cell(text, DEFAULTS)
  cell = cell_of(table, {name: str(value) for name, value in keys.items()})
  assert cell is not None, f"{text} is no cell of table 4.2"
  judged, real, paper = own["synthetic"], own["synthetic"]["real"], cell.paper["top1"]
  learnt, apart = judged["downstream"], judged["within_class_distance"]
  return [
    keys["dataset"], f"{keys['alpha']}", f"{keys['clients']}", f"{own['rounds']}", cell.method,
    percent(learnt["local"]), ", ".join(f"{100 * seed['local']['mean']:.1f}" for seed in learnt["seeds"]),
    f"{paper.mean:.2f} ({paper.std:.2f})", f"{100 * learnt['official']:.2f}",
    f"{100 * real['downstream']['local']['mean']:.1f}", f"{judged['frechet']:.0f}",
    f"{apart['synthetic']:.2f} ({apart['real']:.2f})", f"{own['seconds']['train'] / 3600:.1f}",
  ]  # fmt: skip


def tables(rows: Mapping[str, Any]) -> Iterator[str]:
  """The page's table."""
  table = read_table(ROOT / "configs" / "table_4_2.py")
  yield f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}"
  for text, own in rows.items():
    yield f"| {' | '.join(row(table, text, own))} |"
  by = [{"by": start} for own in rows.values() for start in own["starts"]]
  yield "\n" + made("python benchmarks/papers/table_4_2.py RUNS", by)


def tables_of_deals(rows: Mapping[str, Any]) -> Iterator[str]:
  """The table of fedcvae_deal.py's rows, of which those of several seeds are one line."""
  yield f"\n| {' | '.join(OF_DEALS)} |\n|{'---|' * len(OF_DEALS)}"
  for what in dict.fromkeys(name.partition(", seed")[0] for name in rows):
    own = [found for name, found in rows.items() if name.partition(", seed")[0] == what]
    nearest = [100 * float(late(np.array(found["nearest"]))[:, 1].mean()) for found in own]
    judged = [100 * found["worth"]["downstream"]["official"] for found in own]
    real = [100 * found["worth"]["real"]["downstream"]["official"] for found in own]
    cells = [
      what, f"{len(own)}", each(own, "clients"), each(own, "rows of a client"), each(own, "distinct rows"),
      each(own, "classes of a client"),
      *(", ".join(f"{value:.1f}" for value in values) for values in (nearest, judged, real)),
    ]  # fmt: skip
    yield f"| {' | '.join(cells)} |"
  yield "\n" + made("python benchmarks/papers/fedcvae_deal.py --data DATA", rows.values())


def each(rows: Sequence[Mapping[str, Any]], name: str) -> str:
  """A count of each row, or smallest, largest and median; once where all rows have the same."""
  values = [row[name] if isinstance(row[name], list) else [row[name]] for row in rows]
  texts = [[f"{value:,.0f}" for value in own] for own in values]
  shown = [f"{own[0]} to {own[2]}, {own[1]}" if own[1:] else own[0] for own in texts]
  return shown[0] if len(set(shown)) == 1 else "; ".join(shown)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("runs", type=Path, nargs="?")
  args = parser.parse_args()
  if args.runs is not None:
    about = "configs/table_4_2.py at the thesis's rounds, clients and widths; a row is named by its cell"
    for cell in collect(args.runs, KEPT, about):
      if (drawn := args.runs / cell / "figures" / "samples.png").exists():
        shutil.copy(drawn, place(PAGES, picture(cell)))
  write_tables(PAGE, page_tables())


def page_tables() -> str:
  """All tables of the page, and the pictures."""
  rows, deals = json.loads(KEPT.read_text())["runs"], json.loads(DEALS.read_text())
  drawn = [f"\n{cell}, a class a row:\n\n![{cell}](images/{picture(cell)})" for cell in rows]
  return "\n".join([*tables(rows), *tables_of_deals(deals), *drawn])


if __name__ == "__main__":
  main()
