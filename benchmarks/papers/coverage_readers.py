"""The figures of docs/results/raw that stand beside the papers' printed ones, for coverage.py.

A reader yields the figures of one file, each with the keys of its cells and whether it is at the paper's
size. It is if its rounds and clients are the paper's and `SCALED` names no other change. A new file needs a
line in `READERS`.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from benchmarks.papers.shortened import GROUPS, read_rows
from benchmarks.provenance import RAW
from fedjax_het.tables.compare import at
from fedjax_het.tables.paper import Cell, Table

CLIENTS = {  # K of the papers, where the configuration leaves it to the files
  "femnist": 730, "shakespeare": 660, "celeba": 9343, "reddit": 817, "speech_commands": 2005,
}  # fmt: skip
SCALED = {  # (table, data set) -> what differs besides the rounds and the clients, which are read
  ("table_3_8", "mqp"): "a small text model in the place of DistilBERT",
}
PROTOCOLS = {"table_4_2": ("", ",protocol=thesis")}  # the authors' commands and the thesis differ in T
OTHER_TABLES = ("table_3_3", "prose of chapter III", "prose of SosicFL")


class Ours(NamedTuple):
  """One of our figures, for the cells that have its `keys`, and whether it is at the paper's size."""

  table: str
  keys: frozenset[tuple[str, str]]
  metric: str
  full: bool


def keys_of(**keys: Any) -> frozenset[tuple[str, str]]:
  """Keys of a cell as the CSVs write them."""
  return frozenset((name, str(value)) for name, value in keys.items())


def of_table(name: str, table: Table) -> Iterator[Ours]:
  """Figures of a table.csv that `reproduce` wrote, at the paper's size where no setting was changed."""
  for row in read_rows(RAW / name):
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
  configs = [table.get_config(cell.text + more) for more in PROTOCOLS.get(table.name, ("",))]
  config, rounds = configs[0], {own.rounds for own in configs}
  clients = config.num_clients or CLIENTS.get(config.dataset)
  there = row.get("num_clients", row.get("clients"))
  full = row["rounds"] in rounds and there == clients and (table.name, config.dataset) not in SCALED
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
  for row in read_rows(RAW / "table_3_3.csv"):
    keys = {"method": row["cdf"].capitalize(), "setting": f"loss={float(row['loss']):.2f}"}
    yield Ours(OTHER_TABLES[0], keys_of(**keys), "response", bool(row["ours"]))


def of_figure_3_1() -> Iterator[Ours]:
  """Figures of figure_3_1.json: AAggFF-S on Berka as the paper counts its transactions."""
  found = json.loads((RAW / "figure_3_1.json").read_text())["berka, leaky as in the paper"]
  for cdf in ("normal", "weibull"):
    for metric, source in {"auroc avg": "average", "auroc worst": "worst"}.items():
      keys = keys_of(method="AAggFF-S", dataset="berka", setting=f"cdf={cdf}")
      yield Ours(OTHER_TABLES[1], keys, metric, bool(found[cdf][source]))


def of_shortened(known: Mapping[str, Table]) -> Iterator[Ours]:
  """Figures of shortened.py; SosicFL's section 4.3 prints two numbers of clusters of a cell of table 3."""
  for name, group in GROUPS.items():
    file = f"shortened/{name}.csv"
    yield from of_table(file, known[group.table])
    clusters = {"sosicfl_3_cifar10": 10, "sosicfl_3_clusters": 5}.get(name)
    for row in read_rows(RAW / file) if clusters else []:
      if (row["split"], row["method"], row["metric"]) == ("dir", "SosicFL", "local") and row["ours"]:
        keys = keys_of(method="SosicFL", dataset="cifar10", setting=f"clusters={clusters};rho=0.4")
        yield Ours(OTHER_TABLES[2], keys, "top1 local", False)


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
  lambda known: of_runs("table_4_2.json", known["table_4_2"]),
  lambda known: of_runs("sosicfl_cifar10.json", known["sosicfl_2"]),
  of_shortened,
  lambda known: (own for table in known.values() for own in of_queue(table)),
]


def of_queue(table: Table) -> Iterator[Ours]:
  """Figures of the runs of gpu_queue.py."""
  if (RAW / "gpu_queue.json").exists():
    yield from of_runs("gpu_queue.json", table, f"{table.name}/")
