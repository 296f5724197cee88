"""FL-Simulator's table: methods of one global model on CIFAR-10 with ResNet-18 and group norm.

    python -m fedjax_het.reproduce --table=configs/peers_fl_simulator.py --where='clients=100,split=dir0.6' \
      --data_dir=DATA

The figures beside this file are those of FL-Simulator's page (README.md): the global model on the official
test set after 1,000 rounds, of one run each as far as the page says. 100 clients, a tenth of them in each
round, B = 50; or 200 clients, a twentieth, B = 25. Five epochs, SGD at 0.1, times 0.998 a round, weight decay
1e-3, gradients clipped at 10; crops and flips. `split` is iid or dir0.6, dir0.3, dir0.1. Clients have no test
parts: all rows train. The methods' own settings are the code's defaults as far as they are known: FedProx μ =
0.1, FedDyn and FedSpeed α = 0.1, FedCM and MoFedSAM α = 0.1, radius 0.1 for sharpness-aware steps, FedAdam's
β = 0.9 and 0.99, ε = 0.01; its rate is not known, and is 0.1 here. A later page has FedSpeed at 87.31, 86.33,
85.39 and 82.26 with 100 clients.
"""

from ml_collections import ConfigDict, FieldReference

from fedjax_het.config.cell import check_algorithm, optional, parse_cell
from fedjax_het.errors import SettingError, check_choice

COHORTS = {100: (10, 50), 200: (10, 25)}  # clients -> cohort, B
SPLITS = {"iid": {"name": "iid"}} | {
  f"dir{alpha}": {"name": "dirichlet", "alpha": alpha} for alpha in (0.6, 0.3, 0.1)
}
ALGORITHMS = {
  "fedavg": {}, "fedprox": {"mu": 0.1}, "scaffold": {}, "feddyn": {"alpha": 0.1}, "fedcm": {"alpha": 0.1},
  "mofedsam": {"alpha": 0.1, "rho": 0.1}, "fedspeed": {"lam": 0.1, "rho": 0.1},
}  # fmt: skip
SERVERS = {"sgd": {}, "adam": {"lr": 0.1, "b1": 0.9, "b2": 0.99, "tau": 0.01}}
DEFAULTS = {"clients": 100, "split": "dir0.6", "algorithm": "fedavg", "server": "sgd", "seed": 0}
FIGURES = {"official": ("official.metrics.top1", 100.0)}


def get_config(cell: str = "") -> ConfigDict:
  """Returns the configuration of a cell such as "clients=200,split=dir0.1,algorithm=fedspeed"."""
  chosen = parse_cell(cell, DEFAULTS)
  for key, known in (("split", SPLITS), ("server", SERVERS)):
    check_choice(key, chosen[key], known)
  check_algorithm(chosen["algorithm"], ALGORITHMS)
  if chosen["clients"] not in COHORTS:
    raise SettingError("clients", chosen["clients"], "is in no column of the table", "Use 100 or 200.")
  cohort, batch = COHORTS[chosen["clients"]]
  rounds = FieldReference(1000)
  return ConfigDict(
    {
      "dataset": "cifar10",
      "data_dir": "",
      "dataset_options": {},
      "task": {},
      "num_clients": optional(chosen["clients"]),
      "partition": SPLITS[chosen["split"]],
      "test_fraction": optional(0.0),
      "valid_fraction": 0.0,
      "model": {"name": "resnet18", "stem": "cifar", "norm": "group"},
      "algorithm": {"name": chosen["algorithm"], **ALGORITHMS.get(chosen["algorithm"], {})},
      "local": {
        "epochs": 5, "batch_size": batch, "lr": 0.1, "lr_decay": 0.998, "weight_decay": 1e-3,
        "clip_norm": 10.0, "crop": 4, "flip": True,
      },
      "mixing": {"name": "static"},
      "server": {"name": chosen["server"], **SERVERS[chosen["server"]]},
      "rounds": rounds,
      "cohort_size": cohort,
      "seed": chosen["seed"],
      "eval_every": (rounds + 19) // 20,
    }
  )  # fmt: skip
