"""Table 5 of SosicFL: how many times sooner a baseline's best accuracy is reached, in rounds and in seconds.

    python -m fedjax_het.reproduce --table=configs/sosicfl_5.py --where='dataset=cifar10,model=simple_cnn' \
      --seeds=0,1,2 --workdir=runs/sosicfl_2 --data_dir=DATA

The runs are those of sosicfl_2.py and sosicfl_3.py: in the folder of such a table they are not run again. A
figure is the round in which the baseline first reaches its best accuracy, divided by the round in which the
method first reaches the same accuracy, at the resolution of evaluations. SosicFL is compared with FedAvg, and
SosicFL+ with Ditto, for equal seeds. If the method does not reach it there is no figure, which the table says
for each seed. The same ratio of training seconds is added, which the paper does not have; it is meaningful
only for runs that had the same machine to themselves (a member of a sweep has its share of the sweep's
time). For a single run and a level of your own: --config.to_accuracy=0.689.
"""

import functools
import runpy
from pathlib import Path

from ml_collections import ConfigDict

from fedjax_het.config.cell import parse_cell
from fedjax_het.studies.best import sooner
from fedjax_het.tables.paper import Relative

TABLES = [runpy.run_path(str(Path(__file__).with_name(name))) for name in ("sosicfl_2.py", "sosicfl_3.py")]
NEVER = "{}'s best accuracy is not reached"
BASELINES = {"SosicFL": "FedAvg", "SosicFL+": "Ditto"}
FIGURES = {
  f"{name}{end}": Relative("best", functools.partial(sooner, model=model, of=of), BASELINES, NEVER)
  for end, of in (("", "round"), (", in seconds", "seconds"))
  for name, model in (("global", "global"), ("local", "personalized"))
}


def get_config(cell: str = "") -> ConfigDict:
  """Returns the configuration of a cell: "dataset=cifar10,model=squeezenet,split=dir,algorithm=sosicfl"."""
  model = parse_cell(cell, TABLES[0]["DEFAULTS"])["model"]
  table = next((own for own in TABLES if model in own["LOCAL"]), TABLES[0])
  return table["get_config"](cell)
