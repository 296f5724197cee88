"""The papers' figures beside the configurations: every cell of a CSV is one that its configuration takes."""

import csv
import runpy
from pathlib import Path

import pytest

from fedjax_het.experiment.build import check_config

CONFIGS = Path(__file__).parents[1] / "configs"
METRICS = {
  "table_2_3": ({"top1"}, 66),
  "table_2_6": ({"top1", "ece", "mce"}, 264),
  "table_2_7": ({"top1", "loss"}, 20),
  "table_3_10": ({"avg", "worst"}, 20),
  "table_4_2": ({"top1"}, 48),
  "sosicfl_2": ({"global", "local"}, 120),
  "sosicfl_5": ({"global", "local"}, 96),
}
PRINTED = {"sosicfl_2": 26, "sosicfl_5": 10}  # figures, where the paper has not all


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
  assert len(cells) * len(metrics) == count  # each figure once
  configuration = runpy.run_path(str(CONFIGS / f"{name}.py"))["get_config"]
  for cell, row in cells.items():
    config = configuration(cell)
    check_config(config)
    assert config.dataset == row.get("dataset", config.dataset) and config.algorithm.name == row["algorithm"]
    if "noise" in row:
      assert config.label_noise.to_dict() == {"name": row["noise"], "ratio": float(row["ratio"])}
  for row in rows:
    most = {"ece": 1, "mce": 1, "loss": 10}.get(row["metric"], 100)
    assert not row["mean"] or 0 < float(row["mean"]) <= most
    assert not row["std"] or 0 <= float(row["std"]) < 0.6 * most
  assert sum(bool(row["mean"]) for row in rows) == PRINTED.get(name, count)
