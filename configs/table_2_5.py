"""Table 2.5 of the thesis: top-1 and top-5 accuracy of clients as they come, writers and speaking roles.

    python -m fedjax_het.run --config=configs/table_2_5.py:dataset=femnist,algorithm=superfed_mm --workdir=DIR

FEMNIST: VGG-9, E = 10, B = 10, lr 0.01; a fifth of each writer's rows is for testing, so writers with fewer
than five rows are left out. Shakespeare: StackedLSTM, E = 5, B = 50, lr 0.8; LEAF's split is kept, because
windows overlap. T = 500, 5 clients a round. μ, ν, L / T and pFedMe's λ are those of the authors' commands;
all other settings are those of table 2.3. There are as many clients as the files have: the thesis has 730
writers of LEAF's small sample and 660 roles.
"""

import runpy
from pathlib import Path

from ml_collections import ConfigDict

from fedjax_het.config.cell import parse_cell
from fedjax_het.errors import check_choice

TABLE_2_3 = runpy.run_path(str(Path(__file__).with_name("table_2_3.py")))
CELLS = {
  "femnist": {
    "model": {"name": "vgg9"},
    "partition": {"name": "natural", "min_size": 5},
    "test_fraction": 0.2,
    "local": {"epochs": 10, "batch_size": 10, "lr": 0.01},
    "superfed_mm": {"start": 0.25, "nu": 2.0},
    "superfed_lm": {"start": 0.45, "nu": 3.0},
    "pfedme": {"lam": 5.0},
  },
  "shakespeare": {
    "model": {"name": "stacked_lstm"},
    "partition": {"name": "natural"},
    "test_fraction": None,
    "local": {"epochs": 5, "batch_size": 50, "lr": 0.8},
    "superfed_mm": {"start": 0.45, "nu": 1.5},
    "superfed_lm": {"start": 0.35, "nu": 2.0},
    "pfedme": {"lam": 0.1},
  },
}
FIGURES = {"top1": ("metrics.personalized.top1", 100.0), "top5": ("metrics.personalized.top5", 100.0)}


def get_config(cell: str = "") -> ConfigDict:
  """Returns the configuration of a cell such as "dataset=shakespeare,algorithm=fedavg"."""
  chosen = parse_cell(cell, {"dataset": "femnist", "algorithm": "superfed_mm", "seed": 0})
  check_choice("dataset", chosen["dataset"], CELLS)
  setting = CELLS[chosen["dataset"]]
  config = TABLE_2_3["get_config"](
    f"dataset=mnist,clients=100,algorithm={chosen['algorithm']},seed={chosen['seed']}"
  )
  config.update(dataset=chosen["dataset"], num_clients=None, test_fraction=setting["test_fraction"])
  config.model, config.partition = ConfigDict(setting["model"]), ConfigDict(setting["partition"])
  config.local.update(setting["local"])
  config.algorithm.update(setting.get(chosen["algorithm"], {}))
  return config
