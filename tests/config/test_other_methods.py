"""Methods that are not in a table: by a cell of its file, and by a flag; they run at the table's settings."""

import runpy
from pathlib import Path

import pytest

from fedjax_het.config.override import change
from fedjax_het.config.plan import plan
from fedjax_het.errors import SettingError

CONFIGS = Path(__file__).parents[2] / "configs"
TABLES = (
  "table_2_3", "table_2_4", "table_2_5", "table_2_6", "table_3_10", "sosicfl_2", "sosicfl_3", "sosicfl_5",
  "peers_moon", "peers_niid_bench", "peers_fl_simulator", "peers_pfllib", "smoke",
)  # fmt: skip
OTHERS = "table_2_7", "table_4_2"  # whose settings are those of their own methods


def config(table: str, cell: str = ""):
  return runpy.run_path(str(CONFIGS / f"{table}.py"))["get_config"](cell)


@pytest.mark.parametrize("table", TABLES)
def test_a_method_of_no_cell_is_run_by_its_name(table):
  if "algorithm=" in (CONFIGS / f"{table}.py").read_text():
    made = plan(config(table, "algorithm=fedntd"))
    assert made.parts["algorithm"] == {"name": "fedntd"}
    with pytest.raises(SettingError, match=r"'fedntt': unknown.*fedntd"):
      plan(config(table, "algorithm=fedntt"))
  changed = config(table)
  change(changed, {"algorithm": {"name": "fedntd"}})
  assert plan(changed).parts["algorithm"] == {"name": "fedntd"}


@pytest.mark.parametrize("table", OTHERS)
def test_a_table_of_other_settings_says_so(table):
  with pytest.raises(SettingError, match=r"algorithm = 'fedntd': cannot be run at .* configs/smoke.py"):
    config(table, "algorithm=fedntd")
  with pytest.raises(SettingError, match=r"algorithm = 'fedntt': unknown"):
    config(table, "algorithm=fedntt")
  config(table)
