"""The papers' figures beside the configurations: every cell of a CSV is one that its configuration takes."""

import csv
import runpy
from pathlib import Path

import pytest

from fedjax_het.config.plan import plan
from fedjax_het.tables.compare import columns, counterpart, entries, printed
from fedjax_het.tables.paper import chosen, read_table
from fedjax_het.tables.reproduce import wanted

CONFIGS = Path(__file__).parents[2] / "configs"
METRICS = {
  "table_2_3": ({"top1"}, 66),
  "table_2_4": ({"top5"}, 66),
  "table_2_5": ({"top1", "top5"}, 44),
  "table_2_6": ({"top1", "ece", "mce"}, 264),
  "table_2_7": ({"top1", "loss", "least_loss"}, 30),
  "table_3_8": ({"auroc_gap", "top5_gap"}, 21),
  "table_3_9": ({"top1_gap", "top5_gap"}, 18),
  "table_3_10": ({"avg", "worst", "top5", "top5_worst10"}, 40),
  "table_4_2": ({"top1", "official"}, 32),
  "table_4_3": ({"top1", "official"}, 32),
  "table_4_4": ({"fid"}, 24),
  "table_4_5": ({"fid"}, 24),
  "sosicfl_2": ({"global", "local"}, 150),
  "sosicfl_3": ({"global", "local"}, 60),
  "peers_niid_bench": ({"best"}, 60),
  "peers_moon": ({"official"}, 2),
  "peers_fl_simulator": ({"official"}, 64),
  "peers_pfllib": ({"global", "personalized"}, 76),
  "sosicfl_5": ({"global", "local", "global, in seconds", "local, in seconds"}, 336),
}
COLUMNS = {  # beside the data set
  "table_2_3": ["clients"], "table_2_4": ["alpha"], "table_2_6": ["noise", "ratio"], "sosicfl_2": ["split"],
  "peers_niid_bench": ["split"], "peers_pfllib": ["split"], "sosicfl_3": ["split"],
  "sosicfl_5": ["model", "split"],
  **{name: ["alpha", "clients"] for name in ("table_4_2", "table_4_3", "table_4_4", "table_4_5")},
}  # fmt: skip
PRINTED = {
  "sosicfl_2": 52,
  "sosicfl_3": 52,
  "sosicfl_5": 40,
  "table_2_7": 20,
  "table_4_2": 24,
  "table_4_3": 24,
}  # figures, where the paper has not all
HEADLINES = {"berka": "auroc", "mqp": "auroc", "heart": "auroc", "isic2019": "top5", "tiny_imagenet": "top5",
             "celeba": "top1", "reddit": "top1", "speech_commands": "top5"}  # fmt: skip


def test_every_table_is_here():
  assert {path.stem for path in CONFIGS.glob("*.csv")} == {*METRICS}


@pytest.mark.parametrize("name", METRICS)
def test_the_cells_of_a_paper_s_table_are_its_configuration_s(name):
  with (CONFIGS / f"{name}.csv").open(newline="") as file:
    rows = list(csv.DictReader(file))
  metrics, count = METRICS[name]
  keys = [key for key in rows[0] if key not in ("method", "metric", "mean", "std")]
  assert list(rows[0]) == ["method", *keys, "metric", "mean", "std"]
  assert len(rows) == count and {row["metric"] for row in rows} == metrics
  cells = {",".join(f"{key}={row[key]}" for key in keys): row for row in rows}
  figures = {
    (cell, row["metric"]) for row in rows for cell in [",".join(f"{key}={row[key]}" for key in keys)]
  }
  assert len(figures) == count  # each figure once
  table = runpy.run_path(str(CONFIGS / f"{name}.py"))
  assert {*table["FIGURES"]} == metrics
  for row in rows if name.startswith("table_3") else ():
    path, factor = table["FIGURES"][row["metric"]]
    assert path.split(".")[2] == HEADLINES[row["dataset"]] and factor == 100
  for cell, row in cells.items():
    config = table["get_config"](cell)
    plan(config)
    assert config.dataset == row.get("dataset", config.dataset)
    assert config.algorithm.name == row.get("algorithm", "fedavg")
    assert config.mixing.name == row.get("mixing", "static")
    if "noise" in row:
      assert config.label_noise.to_dict() == {"name": row["noise"], "ratio": float(row["ratio"])}
  for row in rows:
    most = {"ece": 1, "mce": 1, "loss": 10, "fid": 1000}.get(row["metric"], 100)
    assert not row["mean"] or 0 < float(row["mean"]) <= most
    assert not row["std"] or 0 <= float(row["std"]) < 0.6 * most
  assert sum(bool(row["mean"]) for row in rows) == PRINTED.get(name, count)


@pytest.mark.parametrize("name", METRICS)
def test_columns_are_what_a_method_is_run_on(name):
  """And not a part of the method, as the mixing is in table 3.10."""
  cells = read_table(CONFIGS / f"{name}.py").cells
  own = {"table_2_7": ["start"], "peers_moon": [], "peers_fl_simulator": ["clients", "split"]}
  assert sorted(columns(cells)) == sorted(own.get(name, ["dataset", *COLUMNS.get(name, [])]))


def test_a_method_with_another_mixing_is_beside_the_one_without():
  table = read_table(CONFIGS / "table_3_10.py")
  cells = chosen(table.cells, {"dataset": ["heart"]})
  found = entries(table, wanted(table, cells, [0], lambda config: None), {})
  assert len(found) == 20 and {entry.metric for entry in found} == {"avg", "worst"}
  other = counterpart(found[2], found, "FedAvg", columns(table.cells))
  assert found[2].cell.method == "FedAvg+AAggFF" and other is found[0]


def test_figures_that_no_method_has_on_a_data_set_are_left_out():
  table = read_table(CONFIGS / "table_3_8.py")
  shown = printed(table.cells, [*table.figures])
  assert shown["dataset=mqp,mixing=static"] == ["auroc_gap"]
  assert shown["dataset=isic2019,mixing=aaggff_s"] == ["top5_gap"]
  assert set(map(tuple, printed(table.cells, ["of_our_own", *table.figures]).values())) == {
    ("of_our_own", "auroc_gap"), ("of_our_own", "top5_gap"),
  }  # fmt: skip


def test_the_number_of_sosicfl_s_clusters_may_be_left_to_the_data():
  config = read_table(CONFIGS / "sosicfl_2.py").get_config("dataset=digits,split=5fold")
  config.algorithm.clusters = None
  assert plan(config).parts["algorithm"]["clusters"] is None
