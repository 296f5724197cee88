"""Studies observe a launched run and report on it; one module per study, with the interface in `study.py`."""

from fedjax_het.studies.best import Best
from fedjax_het.studies.ccvr import Calibration
from fedjax_het.studies.client_metrics import ClientMetrics
from fedjax_het.studies.clusters import Clusters
from fedjax_het.studies.feature_shift import FeatureShift
from fedjax_het.studies.graph import Graph
from fedjax_het.studies.inversion import Inversion
from fedjax_het.studies.lambda_line import LambdaLine
from fedjax_het.studies.landscape import Landscape
from fedjax_het.studies.late import Late
from fedjax_het.studies.membership import Membership
from fedjax_het.studies.mixture import Mixture
from fedjax_het.studies.official import OfficialTest
from fedjax_het.studies.partition import Partition
from fedjax_het.studies.privacy import Privacy
from fedjax_het.studies.prototypes import Prototypes
from fedjax_het.studies.record_privacy import RecordPrivacy
from fedjax_het.studies.reported import Arrivals, Attacked, ClientFigures, RoundFigures
from fedjax_het.studies.simplex import SimplexMap
from fedjax_het.studies.study import Curve, Moment, Options, Study, Watched, series
from fedjax_het.studies.synthetic import Synthetic
from fedjax_het.studies.unseen import Unseen

# The terminal's table shows the studies in this order.
STUDIES: tuple[type[Study], ...] = (
  ClientMetrics,
  Late,
  OfficialTest,
  Best,
  LambdaLine,
  SimplexMap,
  Mixture,
  Clusters,
  Graph,
  Prototypes,
  RecordPrivacy,
  Membership,
  Inversion,
  Partition,
  FeatureShift,
  Synthetic,
  Unseen,
  Landscape,
  Calibration,
  ClientFigures,
  RoundFigures,
  Arrivals,
  Attacked,
  Privacy,
)

__all__ = ["STUDIES", "Curve", "Moment", "Options", "Study", "Watched", "series"]
