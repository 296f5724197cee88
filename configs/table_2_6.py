"""Table 2.6 of the thesis: calibration and top-1 accuracy where training labels are noisy.

    python -m fedjax_het.run \
      --config=configs/table_2_6.py:dataset=mnist,noise=pair,ratio=0.4,algorithm=superfed_mm --workdir=DIR

The clients' training labels have pair noise with a ratio of 0.1 or 0.4, or symmetric noise with 0.2 or 0.6;
test labels are clean. K = 100 clients by Dirichlet(α) with α = 10, by the thesis's text and caption; the
SuPerFed paper's caption and all of the authors' commands have 100: `alpha=100.0`. All other settings are
those of table 2.3: T, the cohort, E, B, lr, decay, momentum, weight decay and model by the thesis's table
2.2, and μ, ν and L / T (0.4 for MM, 0.6 for LM) by the authors' commands. table_2_6.csv has the paper's
figures.
"""

import runpy
from pathlib import Path

from ml_collections import ConfigDict

from fedjax_het.config.cell import parse_cell

TABLE_2_3 = runpy.run_path(str(Path(__file__).with_name("table_2_3.py")))
DEFAULTS = {
  "dataset": "mnist", "noise": "pair", "ratio": 0.1, "algorithm": "superfed_mm", "alpha": 10.0, "seed": 0,
}  # fmt: skip
FIGURES = {
  "top1": ("metrics.personalized.top1", 100.0),
  "ece": ("metrics.personalized.ece", 1.0),
  "mce": ("metrics.personalized.mce", 1.0),
}


def get_config(cell: str = "") -> ConfigDict:
  """Returns the configuration of a cell such as "dataset=mnist,noise=symmetric,ratio=0.2,algorithm=ditto"."""
  chosen = parse_cell(cell, DEFAULTS)
  same = ",".join(f"{key}={chosen[key]}" for key in ("dataset", "algorithm", "seed"))
  config = TABLE_2_3["get_config"](f"{same},clients=100")
  config.partition = ConfigDict({"name": "dirichlet", "alpha": chosen["alpha"]})
  config.label_noise = ConfigDict({"name": chosen["noise"], "ratio": chosen["ratio"]})
  return config
