"""The smoke table: every method has a cell, and the page says which have run and which learn too little."""

import runpy
from pathlib import Path

import pytest

from benchmarks.tables import smoke
from fedjax_het.config.plan import plan
from fedjax_het.methods import CLIENTS

ROOT = Path(__file__).parents[2]
SMOKE = runpy.run_path(str(ROOT / "configs" / "smoke.py"))
SETTINGS = "shards", "rotated"


def cell(**chosen):
  return plan(SMOKE["get_config"](",".join(f"{name}={value}" for name, value in chosen.items())))


@pytest.mark.parametrize("name", ["ifca", "fedevg", "superfed_mm"])
def test_a_method_is_run_by_its_name_alone(name):
  assert {*SMOKE["SETTINGS"]} == {*SETTINGS, "plain"}
  made = cell(setting="rotated", algorithm=name, dataset="digits")
  assert made.feature_shift == {"name": "rotation", "clusters": 4} and made.num_clients == made.cohort_size
  assert set(made.parts["algorithm"]) == {"name"}


@pytest.mark.slow
@pytest.mark.parametrize("name", CLIENTS)
def test_every_method_has_a_cell(name):
  for setting in SETTINGS:
    cell(setting=setting, algorithm=name)


def test_the_page_is_written_from_the_raw_figures():
  def row(top1, seconds, **more):
    return {
      "top1": top1, "seconds": {"train": seconds}, "bytes": {"up": 1000.0, "down": 2500.0}, "commit": "abc",
      "date": "today", "machine": "a machine",
    } | more  # fmt: skip

  rows = {
    "shards/fedavg": row({"personalized": 0.8, "global": 0.7}, 2.0),
    "rotated/fedavg": row({"personalized": 0.6, "global": 0.6}, 4.0),
    "rotated/ifca": row({"personalized": 0.9}, 10.0, clusters={"purity": 0.75}),
    "shards/ifca": row({"personalized": 0.2}, 3.0),
    "shards/fedevg": row({"generated": 0.5, "personalized": None}, 3.0),
  }  # fmt: skip
  rows["rotated/fedlc"], rows["plain/fedlc"] = row({"global": 0.25}, 1.0), row({"global": 0.75}, 1.0)
  page = "\n".join(smoke.page(rows))
  assert (
    "- `fedlc`, rotated: 25.0 %. Without the rotations (`setting=plain`) the same run has 75.0 %." in page
  )
  assert "| `fedavg` | 80.0 | 70.0 | 1.0 | 1.0 | 2.5 | 60.0 | 60.0 | 1.0 | – |" in page
  assert "| `ifca` | 20.0 | – | 1.5 | 1.0 | 2.5 | 90.0 | – | 2.5 | 75.0 |" in page
  assert "| `fedevg` | 50.0 (generated) | – | 1.5 |" in page
  assert "- `ifca`, shards: 20.0 %." in page and "- `ifca`, rotated" not in page
  assert "fedevg (rotated)" in page and "- commit abc, today, a machine" in page
