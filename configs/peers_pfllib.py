"""PFLlib's benchmark page: personalised methods on Fashion-MNIST and CIFAR-100.

    python -m fedjax_het.reproduce --table=configs/peers_pfllib.py --where='dataset=fashion_mnist,split=dir' \
      --data_dir=DATA

The figures beside this file are those of the page (docs/benchmark.html of PFLlib): mean and standard
deviation of three runs of the best of 2,000 rounds on the clients' test parts, which is optimistic; of the
global model for FedAvg, FedProx and FedGen, of the personalised ones for all others. Twenty clients, all in
every round, one epoch, B = 10, SGD without momentum. The page does not say the rate; 0.005 is the code's
default. The network is `lenet` (32, 64, 512). `split` is path (two classes a client, ten on CIFAR-100) or dir
(Dirichlet(0.1)). A method's own settings are its defaults here, not those of the page's runs,
but for FedDBE's κ = 50 and FedCP's λ = 5.

There a client's test part is a quarter of its rows of the training and the official test set together; here
it is a quarter of its rows of the training set. There a pathological class is shared out unevenly, here
evenly. Every hundredth round is evaluated and the best of these counts, where the page's has all rounds.
"""

from ml_collections import ConfigDict, FieldReference

from fedjax_het.config.cell import optional, parse_cell
from fedjax_het.errors import check_choice
from fedjax_het.methods import CLIENTS

CLASSES = {"fashion_mnist": 2, "cifar100": 10}  # a client of the pathological split
OWN = {
  "fedprox": {"mu": 0.01}, "ditto": {"local_epochs": 1}, "fedrep": {"body_epochs": 1},
  "feddbe": {"kappa": 50.0}, "fedcp": {"lam": 5.0},
}  # fmt: skip
DEFAULTS = {"dataset": "fashion_mnist", "split": "dir", "algorithm": "fedavg", "seed": 0}
FIGURES = {"global": ("best.global.value", 100.0), "personalized": ("best.personalized.value", 100.0)}


def get_config(cell: str = "") -> ConfigDict:
  """Returns the configuration of a cell such as "dataset=cifar100,split=path,algorithm=fedrep"."""
  chosen = parse_cell(cell, DEFAULTS)
  check_choice("dataset", chosen["dataset"], CLASSES)
  check_choice("split", chosen["split"], ("path", "dir"))
  check_choice("algorithm", chosen["algorithm"], CLIENTS)
  path = {"name": "label_quantity", "classes_per_client": CLASSES[chosen["dataset"]]}
  rounds = FieldReference(2000)
  return ConfigDict(
    {
      "dataset": chosen["dataset"],
      "data_dir": "",
      "dataset_options": {},
      "task": {},
      "num_clients": optional(20),
      "partition": path if chosen["split"] == "path" else {"name": "dirichlet", "alpha": 0.1},
      "test_fraction": optional(0.25),
      "valid_fraction": 0.0,
      "model": {"name": "lenet", "hidden": 32, "second": 64, "dense": 512, "last": optional(None)},
      "algorithm": {"name": chosen["algorithm"], **OWN.get(chosen["algorithm"], {})},
      "local": {"epochs": 1, "batch_size": 10, "lr": 0.005},
      "mixing": {"name": "static"},
      "server": {"name": "sgd"},
      "rounds": rounds,
      "cohort_size": 20,
      "seed": chosen["seed"],
      "eval_every": (rounds + 19) // 20,
    }
  )
