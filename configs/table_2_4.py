"""Table 2.4 of the thesis: top-5 accuracy where classes are shared out by Dirichlet(α).

    python -m fedjax_het.run \
      --config=configs/table_2_4.py:dataset=cifar100,alpha=1.0,algorithm=superfed_mm --workdir=DIR

CIFAR-100: K = 100 and ResNet-9; TinyImageNet: K = 200, MobileNet and lr 0.02. T = 500, 5 clients a round, E =
5, B = 20. μ, ν and L / T are those of the authors' commands, where TinyImageNet's L / T grows with α. All
other settings are those of table 2.3. As in the authors' code, only the training sets of CIFAR-100 and
TinyImageNet are divided among the clients.
"""

import runpy
from pathlib import Path

from ml_collections import ConfigDict

from fedjax_het.config.cell import parse_cell
from fedjax_het.errors import check_choice

TABLE_2_3 = runpy.run_path(str(Path(__file__).with_name("table_2_3.py")))
CELLS = {
  "cifar100": {"clients": 100, "model": "resnet9", "lr": 0.01},
  "tiny_imagenet": {"clients": 200, "model": "mobilenet", "lr": 0.02},
}
START = {  # L / T by data set and α
  "superfed_mm": {"cifar100": {}, "tiny_imagenet": {1.0: 0.35, 10.0: 0.45, 100.0: 0.55}},
  "superfed_lm": {"cifar100": {}, "tiny_imagenet": {1.0: 0.45, 10.0: 0.5, 100.0: 0.55}},
}
OF_CIFAR100 = {"superfed_mm": 0.4, "superfed_lm": 0.6}
FIGURES = {"top5": ("metrics.personalized.top5", 100.0)}


def get_config(cell: str = "") -> ConfigDict:
  """Returns the configuration of a cell such as "dataset=tiny_imagenet,alpha=10.0,algorithm=ditto"."""
  chosen = parse_cell(cell, {"dataset": "cifar100", "alpha": 1.0, "algorithm": "superfed_mm", "seed": 0})
  dataset, algorithm = chosen["dataset"], chosen["algorithm"]
  check_choice("dataset", dataset, CELLS)
  setting = CELLS[dataset]
  config = TABLE_2_3["get_config"](
    f"dataset=mnist,clients={setting['clients']},algorithm={algorithm},seed={chosen['seed']}"
  )
  config.dataset, config.model = dataset, ConfigDict({"name": setting["model"]})
  config.partition = ConfigDict({"name": "dirichlet", "alpha": chosen["alpha"]})
  config.local.update(epochs=5, batch_size=20, lr=setting["lr"])
  if algorithm in START:
    config.algorithm.start = START[algorithm][dataset].get(chosen["alpha"], OF_CIFAR100[algorithm])
  return config
