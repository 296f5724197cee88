"""A paper's table of a few seconds, and its files."""

from ml_collections import ConfigDict

from fedjax_het.tables.compare import Entry
from fedjax_het.tables.paper import Cell, Figure, read_table

CONFIG = '''"""Two methods on the digits. Not printed anywhere."""

from fedjax_het.config import quickstart
from fedjax_het.config.cell import parse_cell

FIGURES = {"top1": ("metrics.personalized.top1", 100.0), "loss": ("metrics.personalized.loss.mean", 1.0)}


def get_config(cell=""):
  chosen = parse_cell(cell, {"algorithm": "fedavg", "lr": 0.05, "seed": 0})
  config = quickstart.get_config(f"algorithm={chosen['algorithm']}")
  config.model = {"name": "two_nn", "hidden": 4}
  config.rounds, config.eval_every, config.seed = 2, 2, chosen["seed"]
  config.local.lr, config.local.epochs = chosen["lr"], 1
  return config
'''


PRINTED = """method,algorithm,lr,metric,mean,std
FedAvg,fedavg,0.05,top1,80.5,2.5
FedAvg,fedavg,0.05,loss,1.5,
FedAvg,fedavg,0.1,top1,81,2
FedPer,fedper,0.05,top1,90,1
FedPer,fedper,0.1,top1,,
"""


def tiny_table(folder):
  (folder / "tiny.py").write_text(CONFIG)
  (folder / "tiny.csv").write_text(PRINTED)
  return read_table(folder / "tiny.py")


def unchanged(config: ConfigDict) -> None:
  """Nothing else is asked for."""


def made(method, values, printed=(None, None), lr="0.1", std=1.0, failed=None, missing=()):
  cell = Cell(method, {"algorithm": method.lower(), "lr": lr}, {})
  ours = {seed: Figure(value, std) for seed, value in values.items()}
  return Entry(cell, "top1", Figure(*printed), ours, failed or {}, list(missing))


SHOWN = [
  made("A", {0: 90.0, 1: 92.0}, (95.0, 2.0)), made("A", {0: 1.0}, lr="0.2", std=None),
  made("B", {0: 91.0, 1: 94.0}, (93.0, None)), made("B", {}, lr="0.2", failed={0: "diverged in round 3"}),
  made("C", {}, (50.0, 1.0), missing=[0, 1]),
]  # fmt: skip
