"""The default configuration: SuPerFed-MM on scikit-learn's digits, twenty clients, Dirichlet(0.1)."""

from ml_collections import ConfigDict, FieldReference

from fedjax_het.config.cell import optional, parse_cell
from fedjax_het.errors import check_choice
from fedjax_het.methods import CLIENTS

MODEL = {"name": "two_nn", "hidden": 64}
LOCAL = {  # each method gets those that it takes
  "epochs": 5,
  "batch_size": 10,
  "lr": 0.05,
  "lr_decay": 0.99,
  "momentum": 0.9,
  "weight_decay": 1e-4,
}
OWN = {
  "fedprox": {"mu": 0.01},
  "superfed_mm": {"mu": 0.01, "nu": 1.0, "start": 0.4},
  "superfed_lm": {"mu": 0.01, "nu": 2.0, "start": 0.4},
}


def get_config(cell: str = "") -> ConfigDict:
  """Returns the quickstart's configuration with all its fields; `cell` is such as "algorithm=fedavg"."""
  name = parse_cell(cell, {"algorithm": "superfed_mm"})["algorithm"]
  check_choice(
    "algorithm", name, [each for each, method in CLIENTS.items() if MODEL["name"] in method.models]
  )
  algorithm, rounds = {"name": name, **OWN.get(name, {})}, FieldReference(100)
  if "start" in algorithm:  # a share of the rounds, or None if start_round is set
    algorithm["start"] = optional(algorithm["start"])
  return ConfigDict(
    {
      "dataset": "digits",
      "data_dir": "",
      "dataset_options": {},
      "task": {},
      "label_noise": {},
      "unseen": {},
      "num_clients": optional(20),
      "partition": {"name": "dirichlet", "alpha": 0.1},
      "test_fraction": optional(0.2),
      "valid_fraction": 0.1,
      "model": MODEL,
      "algorithm": algorithm,
      "local": {setting: LOCAL[setting] for setting in LOCAL if setting in CLIENTS[name].settings},
      "mixing": {"name": "static"},
      "server": {"name": "sgd", "lr": 1.0},
      "rounds": rounds,
      "cohort_size": 5,
      "seed": 0,
      "eval_every": (rounds + 9) // 10,
    }
  )
