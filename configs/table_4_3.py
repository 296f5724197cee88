"""Table 4.3 of the thesis: accuracy of a classifier that learnt from synthetic medical images.

    python -m fedjax_het.run \
      --config=configs/table_4_3.py:dataset=dermamnist,alpha=0.01,clients=10,algorithm=fedevg --workdir=DIR

Runs and keys of a cell are table 4.2's; one run gives the figures of both kinds of table.
"""

import runpy
from pathlib import Path

from ml_collections import ConfigDict

from fedjax_het.errors import check_choice
from fedjax_het.experiment.cell import parse_cell

TABLE_4_2 = runpy.run_path(str(Path(__file__).with_name("table_4_2.py")))
DATASETS = ("dermamnist", "organcmnist", "bloodmnist")
FIGURES = {"top1": ("synthetic.downstream.official", 100.0)}


def get_config(cell: str = "") -> ConfigDict:
  """The configuration of a cell such as "dataset=dermamnist,alpha=1.0,clients=100,algorithm=fedcvae"."""
  chosen = parse_cell(cell, TABLE_4_2["DEFAULTS"] | {"dataset": "dermamnist"})
  check_choice("dataset", chosen["dataset"], DATASETS)
  return TABLE_4_2["get_config"](",".join(f"{key}={value}" for key, value in chosen.items()))
