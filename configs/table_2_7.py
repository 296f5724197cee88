"""Table 2.7 of the thesis: SuPerFed's start L as a share of the rounds, with two classes a client.

    python -m fedjax_het.run --config=configs/table_2_7.py:start=0.4,algorithm=superfed_mm --workdir=DIR

or a row of the table as one program, with its picture:

    python -m fedjax_het.run --config=configs/table_2_7.py:algorithm=superfed_mm \
      --sweep.algorithm.start=0,0.2,0.4,0.6,0.8 --workdir=DIR

CIFAR-10, T = 200, ν = 2, μ = 0.01; top-1 and loss. The thesis does not state K, split, E, B and model: K =
100, the pathological split and TwoCNN are those of the authors' commands (whose T is 300 and, for MM, ν = 1);
all other settings are those of table 2.3. With start=0, λ is drawn from the first round on. The loss is that
of the λ with the best top-1; `least_loss` beside it is the loss of the λ where it is least, which the table's
caption may mean.
"""

import runpy
from pathlib import Path

from ml_collections import ConfigDict

from fedjax_het.config.cell import check_algorithm, parse_cell

TABLE_2_3 = runpy.run_path(str(Path(__file__).with_name("table_2_3.py")))

FIGURES = {
  "top1": ("metrics.personalized.top1", 100.0),
  "loss": ("metrics.personalized.loss", 1.0),
  "least_loss": ("lambda.least_loss", 1.0),
}


def get_config(cell: str = "") -> ConfigDict:
  """Returns the configuration of a cell such as "start=0.4,algorithm=superfed_lm"."""
  chosen = parse_cell(cell, {"start": 0.4, "algorithm": "superfed_mm", "seed": 0})
  check_algorithm(chosen["algorithm"], TABLE_2_3["START"], others=False)
  config = TABLE_2_3["get_config"](
    f"dataset=cifar10,clients=100,algorithm={chosen['algorithm']},seed={chosen['seed']}"
  )
  config.rounds = 200
  config.algorithm.start, config.algorithm.nu = chosen["start"], 2.0
  return config
