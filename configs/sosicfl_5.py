"""Table 5 of SosicFL: how many times sooner a baseline's best accuracy is reached, in rounds and in seconds.

    python -m fedjax_het.reproduce --table=configs/sosicfl_5.py --where='dataset=cifar10,model=simple_cnn' \
      --seeds=0,1,2 --workdir=runs/sosicfl_2 --data_dir=DATA

The runs are those of sosicfl_2.py and sosicfl_3.py: in such a table's folder they are not run again. A
figure is the round in which the baseline first has its best accuracy over that in which the method first
has as much, as far as evaluations tell; SosicFL beside FedAvg, SosicFL+ beside Ditto, of the same seed.
None where the method does not get there, which the table says of each seed. The seconds, of training alone,
are beside it: the paper has none, and they tell something only of runs that had the same machine to
themselves; a sweep's member has its share of the sweep's. Of one run alone, to a level of one's own:
--config.to_accuracy=0.689.
"""

import functools
import runpy
from pathlib import Path

from ml_collections import ConfigDict

from fedjax_het.experiment.cell import parse_cell
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
  """The configuration of a cell such as "dataset=cifar10,model=squeezenet,split=dir,algorithm=sosicfl"."""
  model = parse_cell(cell, TABLES[0]["DEFAULTS"])["model"]
  table = next((own for own in TABLES if model in own["LOCAL"]), TABLES[0])
  return table["get_config"](cell)
