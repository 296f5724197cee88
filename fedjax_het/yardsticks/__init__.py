"""Studies (yardsticks) of a launched run, one module per study; see `yardstick.py`."""

from fedjax_het.yardsticks.best import Best
from fedjax_het.yardsticks.client_metrics import ClientMetrics
from fedjax_het.yardsticks.lambda_line import LambdaLine
from fedjax_het.yardsticks.landscape import Landscape
from fedjax_het.yardsticks.mixture import Mixture
from fedjax_het.yardsticks.official import OfficialTest
from fedjax_het.yardsticks.partition import Partition
from fedjax_het.yardsticks.reported import ClientFigures, RoundFigures
from fedjax_het.yardsticks.simplex import SimplexMap
from fedjax_het.yardsticks.synthetic import Synthetic
from fedjax_het.yardsticks.unseen import Unseen
from fedjax_het.yardsticks.yardstick import Curve, Moment, Watched, Yardstick, series

# The order is that of the terminal's table.
YARDSTICKS: tuple[type[Yardstick], ...] = (
  ClientMetrics,
  OfficialTest,
  Best,
  LambdaLine,
  SimplexMap,
  Mixture,
  Partition,
  Synthetic,
  Unseen,
  Landscape,
  ClientFigures,
  RoundFigures,
)

__all__ = ["YARDSTICKS", "Curve", "Moment", "Watched", "Yardstick", "series"]
