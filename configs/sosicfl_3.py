"""Table 3 of SosicFL: best accuracy over the rounds, global and local, of pretrained networks.

    python -m fedjax_het.run --config=configs/sosicfl_3.py:split=5fold,algorithm=sosicfl \
      --config.model.weights=FILE --config.data_dir=DATA --workdir=DIR

SqueezeNet on CIFAR-10: T = 500, 10 of 100 clients a round, E = 1, B = 32, SGD with lr 0.001 and momentum
0.9, no weight decay, FedProx's μ = 0.1, Dirichlet(0.1). ResNet-18 on TinyImageNet: T = 200 (table 4; the
appendix's text says 100), evaluated every ten, E = 5, lr 0.01, weight decay 1e-4, μ = 1e-3, Dirichlet(0.3).
FILE has weights trained on ImageNet; without it the network is initialised at random, unlike in the table.
Such weights expect standardised pixels, for torchvision's "--config.model.mean=(0.485,0.456,0.406)"
"--config.model.std=(0.229,0.224,0.225)". All other settings are those of sosicfl_2.py.
"""

import runpy
from pathlib import Path

from ml_collections import ConfigDict

from fedjax_het.config.cell import parse_cell
from fedjax_het.errors import check_choice

TABLE_2 = runpy.run_path(str(Path(__file__).with_name("sosicfl_2.py")))

MODELS = {"cifar10": "squeezenet", "tiny_imagenet": "resnet18"}
LOCAL = {
  "squeezenet": {"epochs": 1, "batch_size": 32, "lr": 0.001, "momentum": 0.9, "weight_decay": 0.0},
  "resnet18": {"epochs": 5, "batch_size": 32, "lr": 0.01, "momentum": 0.9, "weight_decay": 1e-4},
}
RUN = {
  "squeezenet": {"mu": 0.1, "beta": 0.1},
  "resnet18": {"rounds": 200, "mu": 1e-3, "beta": 0.3, "evaluations": 20},
}
FIGURES = TABLE_2["FIGURES"]


def get_config(cell: str = "") -> ConfigDict:
  """Returns the configuration of a cell such as "dataset=cifar10,split=dir,algorithm=sosicfl"."""
  chosen = parse_cell(cell, TABLE_2["DEFAULTS"])
  check_choice("dataset", chosen["dataset"], MODELS)
  name = chosen["model"] or MODELS[chosen["dataset"]]
  check_choice("model", name, LOCAL)
  model = {"name": name, "weights": ""}
  return TABLE_2["config_of"](chosen, model, LOCAL[name], **RUN[name])
