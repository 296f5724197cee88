"""Flower's niid_bench: FedAvg, FedProx, SCAFFOLD and FedNova under five divisions of the labels.

    python -m fedjax_het.reproduce --table=configs/peers_niid_bench.py --where='dataset=mnist,split=c2' \
      --seeds=0,1,2 --data_dir=DATA

The figures beside this file are those of Flower's page (baselines/niid_bench/README.md), which repeats
NIID-Bench (Li et al., Federated Learning on Non-IID Data Silos, ICDE 2022): mean and standard deviation of
three seeds of the best of 50 rounds on the official test set, which is optimistic. Ten clients, all in every
round, ten epochs, B = 64, SGD at 0.01 with momentum 0.9 and weight decay 1e-5, LeNet (6, 16, 120, 84); crops
and flips on CIFAR-10. Clients have no test parts: all rows train. `split` is iid, dir (Dirichlet(0.5)), c1,
c2 or c3 (`label_quantity`). FedProx's μ was tuned over 0.001, 0.01, 0.1 and 1 there; here it is 0.01, and
--cell=mu=0.1 sets another.

Flower closes a client of the Dirichlet split between two classes once it has N/K rows; here no client is
closed. Its crops reflect images at their edges, ours have zeros there.
"""

from ml_collections import ConfigDict, FieldReference

from fedjax_het.config.cell import check_algorithm, optional, parse_cell
from fedjax_het.errors import check_choice

DATASETS = ("mnist", "fashion_mnist", "cifar10")
SPLITS = {
  "iid": {"name": "iid"},
  "dir": {"name": "dirichlet", "alpha": 0.5},
  **{f"c{k}": {"name": "label_quantity", "classes_per_client": k} for k in (1, 2, 3)},
}
ALGORITHMS, MIXINGS = ("fedavg", "fedprox", "scaffold"), ("static", "fednova")
DEFAULTS = {
  "dataset": "mnist", "split": "dir", "algorithm": "fedavg", "mixing": "static", "mu": 0.01, "seed": 0,
}  # fmt: skip
FIGURES = {"best": ("official.best.value", 100.0)}


def get_config(cell: str = "") -> ConfigDict:
  """Returns the configuration of a cell such as "dataset=cifar10,split=c2,mixing=fednova"."""
  chosen = parse_cell(cell, DEFAULTS)
  known = {"dataset": DATASETS, "split": SPLITS, "mixing": MIXINGS}
  for key, names in known.items():
    check_choice(key, chosen[key], names)
  check_algorithm(chosen["algorithm"], ALGORITHMS)
  algorithm = {"name": chosen["algorithm"]}
  if chosen["algorithm"] == "fedprox":
    algorithm["mu"] = chosen["mu"]
  augmented = {"crop": 4, "flip": True} if chosen["dataset"] == "cifar10" else {}
  rounds = FieldReference(50)
  return ConfigDict(
    {
      "dataset": chosen["dataset"],
      "data_dir": "",
      "dataset_options": {},
      "task": {},
      "num_clients": optional(10),
      "partition": SPLITS[chosen["split"]],
      "test_fraction": optional(0.0),
      "valid_fraction": 0.0,
      "model": {"name": "lenet"},
      "algorithm": algorithm,
      "local": {
        "epochs": 10, "batch_size": 64, "lr": 0.01, "momentum": 0.9, "weight_decay": 1e-5, **augmented,
      },
      "mixing": {"name": chosen["mixing"]},
      "server": {"name": "sgd"},
      "rounds": rounds,
      "cohort_size": 10,
      "seed": chosen["seed"],
      "eval_every": 1,
      "record_official": True,
    }
  )  # fmt: skip
