"""The section `tracking`: where a run's figures are sent, in addition to its folder."""

from collections.abc import Mapping
from typing import Annotated, Any, TypedDict

from fedjax_het.errors import SettingError
from fedjax_het.settings import Choice, Default

TRACKERS = ("mlflow", "wandb")


class TrackingSettings(TypedDict, total=False):
  """Experiment trackers of a run. They say where its figures go, and are no part of what the run is.

  Attributes:
    mlflow: MLflow's tracking URI, such as "http://localhost:5000" or "sqlite:///mlflow.db"; "" for none.
    wandb: Weights & Biases: "online" or "offline", in the run's folder; "" for none.
    project: the experiment of MLflow and the project of W&B.
    name: the run's name there; "" for that of its folder.
  """

  mlflow: Annotated[str, Default("")]
  wandb: Annotated[Annotated[str, Choice(("", "online", "offline"))], Default("")]
  project: Annotated[str, Default("fedjax_het")]
  name: Annotated[str, Default("")]


def check_tracking(given: Mapping[str, Any]) -> None:
  """Raises `SettingError` for a section that names no tracker; {} is none."""
  if given and not any(given.get(tracker) for tracker in TRACKERS):
    remedy = "Set tracking.mlflow to a URI, or tracking.wandb to online or offline."
    raise SettingError("tracking", dict(given), "names no tracker, and so has no effect", remedy)
