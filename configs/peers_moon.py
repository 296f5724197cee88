"""Flower's MOON baseline on CIFAR-10: MOON and FedProx, Dirichlet(0.5).

    python -m fedjax_het.reproduce --table=configs/peers_moon.py --data_dir=DATA

The figures beside this file are those of Flower's page (baselines/moon/README.md): one run, the global model
on the official test set after round 100. Ten clients, all in every round, ten epochs, B = 64, SGD at 0.01
with momentum 0.9 and weight decay 1e-5, μ = 1, temperature 0.5, LeNet (6, 16, 120, 84). There all methods'
networks have a projection head of two layers before the last one, here none has. FedProx's μ is not on the
page; here it is 0.01. The page's CIFAR-100 needs a ResNet-50, which the zoo does not have.
"""

import runpy
from pathlib import Path

from ml_collections import ConfigDict

from fedjax_het.config.cell import check_algorithm, parse_cell

BENCH = runpy.run_path(str(Path(__file__).with_name("peers_niid_bench.py")))
ALGORITHMS = {
  "fedavg": {}, "moon": {"mu": 1.0, "temperature": 0.5}, "fedprox": {"mu": 0.01}
}  # fmt: skip
DEFAULTS = {"dataset": "cifar10", "algorithm": "moon", "seed": 0}
FIGURES = {"official": ("official.metrics.top1", 100.0)}


def get_config(cell: str = "") -> ConfigDict:
  """Returns the configuration of a cell such as "algorithm=moon"."""
  chosen = parse_cell(cell, DEFAULTS)
  check_algorithm(chosen["algorithm"], ALGORITHMS)
  config = BENCH["get_config"](f"dataset={chosen['dataset']},split=dir,seed={chosen['seed']}")
  config.algorithm = ConfigDict({"name": chosen["algorithm"], **ALGORITHMS.get(chosen["algorithm"], {})})
  config.rounds, config.eval_every = 100, 10
  return config
