"""A board of small tasks on the digits, as configs/leaderboard.py is one."""

from ml_collections import ConfigDict

from fedjax_het.config.cell import parse_cell
from fedjax_het.methods import METHODS

TASKS = {
  "one": {"what": "label skew of six clients; asks for θ", "lr": "0.05:0.5:log"},
  "two": {"what": "the same on an accelerator", "lr": "0.05:0.5:log", "gpu": True},
}
TRIALS = {"one": {"fedavg": 4, "ditto": 5}, "two": {"fedavg": 4}}
LEFT_OUT = {"static": "is `fedavg`"}


def names():
  return ["fedavg", "ditto", "cfl", "qffl", "adam"]


def get_config(cell=""):
  chosen = parse_cell(cell, {"task": "one", "method": "fedavg"})
  parts = {"algorithm": {"name": "fedavg"}, "mixing": {"name": "static"}, "server": {"name": "sgd"}}
  parts[next(own for own, table in METHODS.items() if chosen["method"] in table)] = {"name": chosen["method"]}
  return ConfigDict(
    {
      "dataset": "digits", "data_dir": "", "num_clients": 6, "partition": {"name": "dirichlet", "alpha": 1.0},
      "test_fraction": 0.2, "valid_fraction": 0.2, "model": {"name": "two_nn", "hidden": 4}, **parts,
      "local": {"epochs": 1, "batch_size": 20, "lr": 0.1}, "rounds": 3, "cohort_size": 3, "seed": 0,
      "eval_every": 3,
    }
  )  # fmt: skip
