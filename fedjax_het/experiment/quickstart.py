"""The embedded default: SuPerFed-MM on scikit-learn's digits, twenty clients, Dirichlet(0.1)."""

from ml_collections import ConfigDict

from fedjax_het.experiment.cell import parse_cell

ALGORITHMS = {
  "fedavg": {},
  "fedprox": {"mu": 0.01},
  "superfed_mm": {"mu": 0.01, "nu": 1.0, "start_round": 40},
  "superfed_lm": {"mu": 0.01, "nu": 2.0, "start_round": 40},
}


def get_config(cell: str = "") -> ConfigDict:
  """All fields that a configuration has, at the quickstart's values; `cell` as in "algorithm=fedavg"."""
  name = parse_cell(cell, {"algorithm": "superfed_mm"})["algorithm"]
  return ConfigDict(
    {
      "dataset": "digits",
      "data_dir": "",
      "num_clients": 20,
      "partition": {"name": "dirichlet", "alpha": 0.1},
      "test_fraction": 0.2,
      "valid_fraction": 0.1,
      "model": {"name": "two_nn", "hidden": 64},
      "algorithm": {"name": name, **ALGORITHMS.get(name, {})},
      "local": {
        "epochs": 5,
        "batch_size": 10,
        "lr": 0.05,
        "lr_decay": 0.99,
        "momentum": 0.9,
        "weight_decay": 1e-4,
      },
      "mixing": {"name": "static"},
      "server": {"name": "sgd", "lr": 1.0},
      "rounds": 100,
      "cohort_size": 5,
      "seed": 0,
      "eval_every": 10,
    }
  )
