"""Counts the papers' printed figures that have one of ours beside them, and writes docs/results/coverage.md.

    python benchmarks/papers/coverage.py [--out PAGE]

The printed figures are the lines with a mean in configs/*.csv, and those of printed_in_prose.csv: table 3.3
and the figures that stand in no table. One of ours is beside a printed figure if a file of docs/results/raw
has a figure of that cell and metric, at the paper's size or scaled; coverage_readers.py finds them. The hours
for what is left are estimates: runs times client steps times the measured time of a step.
"""

import argparse
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from benchmarks.papers.coverage_readers import OTHER_TABLES, READERS, keys_of
from benchmarks.papers.shortened import read_rows
from benchmarks.provenance import PAGES, ROOT
from fedjax_het.tables.paper import Table, read_table

PROSE = Path(__file__).with_name("printed_in_prose.csv")
PAGE = PAGES / "coverage.md"


class Figure(NamedTuple):
  """A printed figure: the place where it stands, and the keys and the metric that identify it there."""

  table: str
  keys: frozenset[tuple[str, str]]
  metric: str


def tables() -> dict[str, Table]:
  """The papers' tables that have a configuration, by name."""
  tables = sorted(path for path in (ROOT / "configs").glob("*.csv") if not path.stem.startswith("peers_"))
  return {path.stem: read_table(path.with_suffix(".py")) for path in tables}


def printed(known: Mapping[str, Table]) -> list[Figure]:
  """All printed figures, in the order of their files."""
  found = [
    Figure(name, keys_of(method=cell.method, **cell.keys), metric)
    for name, table in known.items()
    for cell in table.cells
    for metric, figure in cell.paper.items()
    if figure.mean is not None
  ]
  for row in read_rows(PROSE):
    place = row["place"]
    table = OTHER_TABLES[0 if place == "table 3.3" else 2 if place.startswith("SosicFL") else 1]
    keys = {name: row[name] for name in ("method", "dataset", "setting")}
    found.append(Figure(table, keys_of(**keys), row["metric"]))
  return found


def beside(figures: list[Figure], known: Mapping[str, Table]) -> dict[Figure, bool]:
  """The printed figures that have ours beside them -> whether at the paper's size."""
  by_place = defaultdict(list)
  for figure in figures:
    by_place[figure.table, figure.metric].append(figure)
  found: dict[Figure, bool] = {}
  for read in READERS:
    for own in read(known):
      for figure in by_place[own.table, own.metric]:
        if own.keys <= figure.keys:
          found[figure] = found.get(figure, False) or own.full
  return found


class Left(NamedTuple):
  """What a part of a table would take: runs are counted, the two numbers are of the named measurement.

  Attributes:
    table: the table.
    where: keys of its cells in this part.
    steps: client steps of a run in thousands, as FedAvg takes them.
    seconds: seconds that a thousand of them took; 0.0 where no step was timed.
    basis: what was measured, or why there is nothing to go by.
  """

  table: str
  where: Mapping[str, str]
  steps: float
  seconds: float
  basis: str


ONE_CORE = "table_2_3_cifar10.json: four runs of T = 500 on one core"
MODELS = "models.md, EPYC, both cores, batches of ten"
WEIGHTS = "weights of ImageNet are needed"
LEFT = [
  Left("table_2_3", {"dataset": "cifar10", "clients": "50"}, 1600, 7.8, ONE_CORE),
  Left("table_2_3", {"dataset": "cifar10", "clients": "100"}, 5000, 7.8, f"{ONE_CORE}; pFedMe: five steps"),
  Left("table_2_3", {"dataset": "cifar10", "clients": "500"}, 175, 7.8, ONE_CORE),
  Left("table_2_4", {"dataset": "cifar100"}, 250, 16.2, f"{MODELS}: resnet9"),
  Left("table_2_4", {"dataset": "tiny_imagenet"}, 250, 49.5, "natural.json: FedAvg on one core"),
  Left("table_2_5", {"dataset": "femnist"}, 315, 30.4, "natural.json: FedAvg on one core"),
  Left("table_2_5", {"dataset": "shakespeare"}, 1065, 477.0, "shakespeare.json: one window in 8, one core"),
  Left("table_2_6", {"dataset": "cifar10"}, 1000, 7.8, ONE_CORE),
  Left("table_3_3", {}, 0, 0.0, "seconds: nothing is trained"),
  Left("table_3_8", {"dataset": "isic2019"}, 0, 0.0, "no run was timed"),
  Left("table_3_9", {"dataset": "celeba"}, 0, 0.0, "no run was timed"),
  Left("table_3_9", {"dataset": "reddit"}, 0, 0.0, "no run was timed"),
  Left("table_3_9", {"dataset": "speech_commands"}, 0, 0.0, "no run of the 2,005 speakers was timed"),
  Left("table_3_10", {"dataset": "tiny_imagenet"}, 40, 17.7, f"{MODELS}: mobilevit"),
  Left(
    "table_4_2", {"algorithm": "fedevg"}, 0, 0.0, "K = 10: 34 minutes of a GPU a run, by eight steps (gpu.md)"
  ),
  Left("table_4_2", {"algorithm": "fedcgan"}, 0, 0.0, "no run of the thesis's size was timed"),
  Left("table_4_2", {"algorithm": "fedcvae"}, 375, 73.5, "table_4_2.json: MNIST, K = 100, on one core"),
  Left("table_4_3", {}, 0, 0.0, "no run of the thesis's size was timed"),
  Left("table_4_4", {}, 0, 0.0, "the runs of table 4.2, with InceptionV3's weights"),
  Left("table_4_5", {}, 0, 0.0, "the runs of table 4.3, with InceptionV3's weights"),
  Left("prose of chapter III", {"dataset": "berka"}, 0, 0.0, "minutes: two mixings of fair_silo.md's kind"),
  Left("prose of chapter III", {"dataset": "reddit"}, 0, 0.0, "no run was timed"),
  Left("sosicfl_2", {"dataset": "tiny_imagenet"}, 175, 23.8, f"{MODELS}: mobilenet_v2"),
  Left("sosicfl_3", {"dataset": "cifar10"}, 65, 20.4, f"{MODELS}: squeezenet; {WEIGHTS}"),
  Left("sosicfl_3", {"dataset": "tiny_imagenet"}, 130, 42.4, f"{MODELS}: resnet18; {WEIGHTS}"),
  Left("sosicfl_5", {}, 0, 0.0, "the runs of SosicFL's tables 2 and 3"),
  Left("prose of SosicFL", {}, 65, 20.4, f"{MODELS}: squeezenet; {WEIGHTS}"),
]
HEAD = """# The papers' printed figures that have ours beside them

A printed figure has ours beside it if [results/raw](raw) has a figure of the same cell and metric, of any
number of seeds. It is at the paper's size if its rounds and clients are the paper's and no other change
shortens the run; the others are scaled. `python benchmarks/papers/coverage.py` writes this page from the CSV
files of `configs/`, from `benchmarks/papers/printed_in_prose.csv` and from the raw files. Whether a figure
agrees with the paper's is said on the [tables' pages](../results.md).

| table | printed | beside | at the paper's size | scaled |
|---|---|---|---|---|
"""
REST = """
## What the rest would take

The hours are estimates: runs of one seed, times the client steps that FedAvg takes in a run of the paper's
size, times the seconds that a step took in the named measurement, on its processor. Methods with more steps
or several models take longer, evaluations are not counted, and batches of another size differ. A run gives
all metrics of its cell. Figures that are there at a smaller size are not in this table. A run of table 2.3's
CIFAR-10 takes [1 to 4 minutes of a GPU](gpu.md#a-table-cifar-10) (pFedMe's, of five times the steps, ten,
with three other runs beside it), and two to four hours of one core.

| table | part | figures | runs | hours | by |
|---|---|---|---|---|---|
"""


def hours(part: Left, missing: list[Figure]) -> str:
  """A line of the second table; "" where nothing is left."""
  own = [figure for figure in missing if figure.table == part.table]
  own = [figure for figure in own if {*part.where.items()} <= figure.keys]
  runs = len({figure.keys for figure in own})
  where = ", ".join(f"{key} = {value}" for key, value in part.where.items())
  time = f"{runs * part.steps * part.seconds / 3600:.0f}" if part.seconds else "–"
  return f"| {title(part.table)} | {where} | {len(own)} | {runs} | {time} | {part.basis} |" if own else ""


def order(figure: Figure) -> tuple[bool, list[str]]:
  """Sort key of figures: the thesis's tables by number, its prose, then SosicFL's."""
  return "sosicfl" in figure.table.lower(), re.findall(r"\d+", figure.table) or ["9"]


def title(table: str) -> str:
  """A table's name for a reader."""
  kind, _, number = table.partition("_")
  if kind == "sosicfl":
    return f"SosicFL, table {number}"
  return f"table {number.replace('_', '.')}" if kind == "table" else table


def page() -> str:
  """The page docs/results/coverage.md."""
  known = tables()
  figures = sorted(printed(known), key=order)
  found = beside(figures, known)
  missing = [figure for figure in figures if figure not in found]
  lines = []
  for table in dict.fromkeys(figure.table for figure in figures):
    own = [figure for figure in figures if figure.table == table]
    there = [found[figure] for figure in own if figure in found]
    counts = len(own), len(there), sum(there), len(there) - sum(there)
    lines.append(f"| {title(table)} | {' | '.join(map(str, counts))} |\n")
  rest = [f"{line}\n" for line in (hours(part, missing) for part in LEFT) if line]
  total = f"\ntotal: {len(found)} of {len(figures)} beside, {sum(found.values())} at the paper's size\n"
  return "".join([HEAD, *lines, REST, *rest, total])


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--out", type=Path, default=PAGE)
  args = parser.parse_args()
  args.out.write_text(page(), encoding="utf-8")
  print(page().rstrip().splitlines()[-1])


if __name__ == "__main__":
  main()
