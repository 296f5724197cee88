"""Counts the papers' printed figures that have one of ours beside them, and writes docs/results/coverage.md.

    python benchmarks/papers/coverage.py [--out PAGE]

The printed figures are the lines with a mean in configs/*.csv, and those of printed_in_prose.csv: table 3.3
and the figures that stand in no table. One of ours is beside a printed figure if a file of docs/results/raw
has a figure of that cell and metric. It is at the paper's size if its rounds and clients are the paper's and
`SCALED` names no other change; otherwise it counts as scaled. A new file of figures needs a line in
`READERS`. The hours for what is left are estimates: runs times client steps times the measured time of a
step.
"""

import argparse
import csv
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.provenance import PAGES, RAW, ROOT
from fedjax_het.tables.compare import at
from fedjax_het.tables.paper import Cell, Table, read_table

PROSE = Path(__file__).with_name("printed_in_prose.csv")
PAGE = PAGES / "coverage.md"
CLIENTS = {  # K of the papers, where the configuration leaves it to the files
  "femnist": 730, "shakespeare": 660, "celeba": 9343, "reddit": 817, "speech_commands": 2005,
}  # fmt: skip
SCALED = {  # (table, data set) -> what differs besides the rounds and the clients, which are read
  ("table_3_8", "mqp"): "a small text model in the place of DistilBERT",
}
OTHER_TABLES = ("table_3_3", "prose of chapter III", "prose of SosicFL")


class Figure(NamedTuple):
  """A printed figure: the place where it stands, and the keys and the metric that identify it there."""

  table: str
  keys: frozenset[tuple[str, str]]
  metric: str


class Ours(NamedTuple):
  """One of our figures, for the cells that have its `keys`, and whether it is at the paper's size."""

  table: str
  keys: frozenset[tuple[str, str]]
  metric: str
  full: bool


def keys_of(**keys: Any) -> frozenset[tuple[str, str]]:
  """Keys of a cell as the CSVs write them."""
  return frozenset((name, str(value)) for name, value in keys.items())


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
  for row in rows(PROSE):
    place = row["place"]
    table = OTHER_TABLES[0 if place == "table 3.3" else 2 if place.startswith("SosicFL") else 1]
    keys = {name: row[name] for name in ("method", "dataset", "setting")}
    found.append(Figure(table, keys_of(**keys), row["metric"]))
  return found


def rows(path: Path) -> list[dict[str, str]]:
  """The lines of a CSV; [] where there is none."""
  if not path.exists():
    return []
  with path.open(newline="", encoding="utf-8") as file:
    return list(csv.DictReader(file))


def of_table(name: str, table: Table) -> Iterator[Ours]:
  """Figures of a table.csv that `reproduce` wrote, at the paper's size where no setting was changed."""
  for row in rows(RAW / name):
    if row["ours"]:
      keys = {key: row[key] for key in ("method", *table.cells[0].keys)}
      yield Ours(table.name, keys_of(**keys), row["metric"], not row["changed"])


def of_runs(name: str, table: Table, only: str = "") -> Iterator[Ours]:
  """Figures of the runs in a file of run_figures.py, or of natural.json, for which `only` is in the name."""
  found = json.loads((RAW / name).read_text())["runs"]
  named = found.items() if isinstance(found, dict) else [(own["cell"], own) for own in found]
  for run, row in named:
    if only in run:
      given = dict(re.findall(r"(\w+)=([^,/ ]+)", run.replace("algorithm.start", "start")))
      given = {"dataset": row.get("dataset", ""), "algorithm": row.get("algorithm", ""), **given}
      yield from of_run(table, {key: value for key, value in given.items() if value}, row)


def of_run(table: Table, given: Mapping[str, str], row: Mapping[str, Any]) -> Iterator[Ours]:
  """Figures of one run for the cell with these keys; none if the table has no such cell."""
  cell = cell_of(table, given)
  if cell is None:
    return
  config = table.get_config(cell.text)
  clients = config.num_clients or CLIENTS.get(config.dataset)
  there = row.get("num_clients", row.get("clients"))
  full = row["rounds"] == config.rounds and there == clients and (table.name, config.dataset) not in SCALED
  for metric, source in table.figures.items():
    if isinstance(source, tuple) and at(row, source[0]) is not None:
      yield Ours(table.name, keys_of(method=cell.method, **cell.keys), metric, full)


def cell_of(table: Table, given: Mapping[str, str]) -> Cell | None:
  """The cell of a table whose keys have the given values, as far as both name them."""
  for cell in table.cells:
    if all(cell.keys[name] == given[name] for name in {*cell.keys} & {*given}):
      return cell
  return None


def of_silos(table: Table) -> Iterator[Ours]:
  """Figures of fair_silo.json: heart for table 3.10, the gaps of Berka and MQP for table 3.8."""
  for section, own in json.loads((RAW / "fair_silo.json").read_text()).items():
    dataset = section.partition(",")[0]
    if table.name == "table_3_10":
      for method, mixings in own.get("table 3.10", {}).items():
        for mixing, figures in mixings.items():
          name = method + "+AAggFF" * (mixing != "static")
          for metric, source in {"avg": "average", "worst": "worst"}.items():
            if figures[source]:
              yield Ours(table.name, keys_of(method=name, dataset=dataset), metric, True)
    else:
      for mixing, figures in own["mixings"].items():
        if figures["gap"]:
          full = (table.name, dataset) not in SCALED
          yield Ours(table.name, keys_of(dataset=dataset, mixing=mixing), "auroc_gap", full)


def of_synthesis(table: Table) -> Iterator[Ours]:
  """Figures of fedevg_mnist.json and fedevg_images.json: classifiers of synthetic examples, K = 10."""
  found = {}
  for name, own in json.loads((RAW / "fedevg_mnist.json").read_text())["results"].items():
    if own_setting := re.fullmatch(r"(fedevg|fedcvae|fedcgan), α = ([\d.]+), seed \d+", name):
      algorithm, alpha = own_setting.groups()
      found["mnist", alpha, algorithm] = own["yardsticks"], own["rounds"]
  for dataset, own in json.loads((RAW / "fedevg_images.json").read_text()).items():
    given = dict(re.findall(r"(\w+)=([\w.]+)", own["command"]))
    if "synthetic" in own:
      found[dataset, given["alpha"], given["algorithm"]] = own["synthetic"], int(given["rounds"])
  for (dataset, alpha, algorithm), (synthetic, rounds) in found.items():
    given = {"dataset": dataset, "alpha": alpha, "clients": "10", "algorithm": algorithm}
    if any(cell.keys["dataset"] == dataset for cell in table.cells):
      yield from of_run(table, given, {"synthetic": synthetic, "rounds": rounds, "num_clients": 10})


def of_responses() -> Iterator[Ours]:
  """Figures of table_3_3.csv."""
  for row in rows(RAW / "table_3_3.csv"):
    keys = {"method": row["cdf"].capitalize(), "setting": f"loss={float(row['loss']):.2f}"}
    yield Ours(OTHER_TABLES[0], keys_of(**keys), "response", bool(row["ours"]))


def of_figure_3_1() -> Iterator[Ours]:
  """Figures of figure_3_1.json: AAggFF-S on Berka as the paper counts its transactions."""
  found = json.loads((RAW / "figure_3_1.json").read_text())["berka, leaky as in the paper"]
  for cdf in ("normal", "weibull"):
    for metric, source in {"auroc avg": "average", "auroc worst": "worst"}.items():
      keys = keys_of(method="AAggFF-S", dataset="berka", setting=f"cdf={cdf}")
      yield Ours(OTHER_TABLES[1], keys, metric, bool(found[cdf][source]))


Reader = Callable[[Mapping[str, Table]], Iterator[Ours]]
READERS: list[Reader] = [
  lambda known: of_table("table_2_3.csv", known["table_2_3"]),
  lambda known: of_runs("table_2_3_cifar10.json", known["table_2_3"]),
  lambda known: of_runs("natural.json", known["table_2_4"], "t24"),
  lambda known: of_runs("natural.json", known["table_2_5"], "t25"),
  lambda known: of_runs("shakespeare.json", known["table_2_5"]),
  lambda known: of_table("table_2_6.csv", known["table_2_6"]),
  lambda known: of_runs("table_2_7.json", known["table_2_7"], "starts/"),
  lambda known: of_responses(),
  lambda known: of_figure_3_1(),
  lambda known: of_silos(known["table_3_8"]),
  lambda known: of_runs("natural.json", known["table_3_9"], "t39"),
  lambda known: of_silos(known["table_3_10"]),
  lambda known: of_synthesis(known["table_4_2"]),
  lambda known: of_runs("sosicfl_cifar10.json", known["sosicfl_2"]),
  lambda known: (own for table in known.values() for own in of_queue(table)),
]


def of_queue(table: Table) -> Iterator[Ours]:
  """Figures of the runs of gpu_queue.py."""
  if (RAW / "gpu_queue.json").exists():
    yield from of_runs("gpu_queue.json", table, f"{table.name}/")


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
  Left("table_4_2", {}, 0, 0.0, "FedEvg, K = 10: 34 minutes of a GPU a run, by eight steps (gpu.md)"),
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
CIFAR-10 takes [1 to 4 minutes of a GPU](gpu.md#a-table-cifar-10), and two to four hours of one core.

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
