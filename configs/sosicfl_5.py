"""Table 5 of SosicFL: how many times sooner a baseline's best accuracy is reached, in rounds.

    python -m fedjax_het.reproduce --table=configs/sosicfl_5.py --where='dataset=cifar10' --seeds=0,1,2 \
      --runs=runs/sosicfl_2 --config.data_dir=DATA

The runs are sosicfl_2.py's: in that table's folder they are not run again. A figure is the round in which
the baseline first has its best accuracy over that in which the method first has as much, as far as
evaluations tell; SosicFL beside FedAvg, SosicFL+ beside Ditto, of the same seed. None where the method does
not get there. Of one run alone, to a level of one's own: --config.to_accuracy=0.689.
"""

import functools
import runpy
from pathlib import Path

from fedjax_het.tables.paper import Beside
from fedjax_het.yardsticks.best import sooner

TABLE_2 = runpy.run_path(str(Path(__file__).with_name("sosicfl_2.py")))

BASELINES = {"SosicFL": "FedAvg", "SosicFL+": "Ditto"}
FIGURES = {
  "global": Beside("best", functools.partial(sooner, model="global"), BASELINES),
  "local": Beside("best", functools.partial(sooner, model="personalized"), BASELINES),
}

get_config = TABLE_2["get_config"]
