"""Catalogue of metrics: names, units, and whether higher values are better."""

import math
from typing import NamedTuple

from fedjax_het.errors import SettingError


class Metric(NamedTuple):
  """How a metric is displayed and compared.

  Attributes:
    label: short name, without the unit.
    title: long name, without the unit.
    unit: "%" for a fraction that is shown in percent; otherwise its unit, "" for none.
    higher_is_better: whether the worst clients are those with the lowest values.
    note: a line of explanation for its figure; "" if the title suffices.
    in_points: whether it is an accuracy or the like, from 0 to 1, of which a hundredth is called a point.
    bounds: the lowest and the highest value that it can have; 0 and 1 where it is in percent or `in_points`.
    worst_of_runs: whether several runs together have the largest value, and not the mean.
  """

  label: str
  title: str
  unit: str = ""
  higher_is_better: bool = True
  note: str = ""
  in_points: bool = False
  bounds: tuple[float, float] = (-math.inf, math.inf)
  worst_of_runs: bool = False

  @property
  def factor(self) -> float:
    """Returns the factor that displayed values are multiplied by: 100 for percentages, else 1."""
    return 100.0 if self.unit == "%" else 1.0

  @property
  def range(self) -> tuple[float, float]:
    """Returns the lowest and the highest value that the metric can have."""
    return (0.0, 1.0) if self.in_points or self.unit == "%" else self.bounds

  def with_unit(self, name: str) -> str:
    """Appends the metric's unit, if it has one, to a name of it."""
    return f"{name} ({self.unit})" if self.unit else name


# Tables show metrics in this order.
METRICS: dict[str, Metric] = {
  "top1": Metric("top-1", "top-1 accuracy", "%", in_points=True),
  "top5": Metric("top-5", "top-5 accuracy", "%", in_points=True),
  "accuracy": Metric("accuracy", "accuracy over the labels", "%", in_points=True),
  "exact": Metric("exact", "share of examples with all labels right", "%", in_points=True),
  "auroc": Metric("AUROC", "AUROC", in_points=True),
  "f1_macro": Metric("F1 macro", "F1, mean over the labels", in_points=True),
  "f1_micro": Metric("F1 micro", "F1 of all labels together", in_points=True),
  "rmse": Metric("RMSE", "root mean squared error", higher_is_better=False, bounds=(0.0, math.inf)),
  "mse": Metric("MSE", "mean squared error", higher_is_better=False, bounds=(0.0, math.inf)),
  "mae": Metric("MAE", "mean absolute error", higher_is_better=False, bounds=(0.0, math.inf)),
  "r2": Metric("R²", "R²", bounds=(-math.inf, 1.0)),
  "perplexity": Metric("perplexity", "perplexity", higher_is_better=False, bounds=(1.0, math.inf)),
  "loss": Metric("loss", "test loss", higher_is_better=False, bounds=(0.0, math.inf)),
  "ece": Metric("ECE", "expected calibration error", higher_is_better=False, bounds=(0.0, 1.0)),
  "mce": Metric("MCE", "maximum calibration error", higher_is_better=False, bounds=(0.0, 1.0)),
}

# Figures that parts report of their rounds, and the training loss; neither direction counts as better.
FIGURES: dict[str, Metric] = {
  "train_loss": Metric("train loss", "training loss", note="mean over cohorts and rounds"),
  "epsilon": Metric("ε", "ε", note="of all rounds so far", worst_of_runs=True),
  "clip": Metric("clip", "clip", note="the bound of an update's length after a round, mean over the rounds"),
  "cosine": Metric(
    "cosine",
    "cosine",
    note="cos(θf, θl) = ⟨θf, θl⟩ / (‖θf‖ ‖θl‖) after local training, mean over the cohorts",
  ),
  "alpha": Metric("α", "α", note="the share α of a client's own model, mean over the cohorts"),
  "variance": Metric(
    "variance", "variance", note="Σ_k ‖Δ_k - mean Δ‖² of a cohort's updates of the last layer"
  ),
  "disagreement": Metric(
    "disagreement",
    "disagreement",
    note="Σ_k ‖Δ_k - mean Δ‖² / Σ_k ‖Δ_k‖² of a cohort's updates of the last layer",
  ),
}


def known(name: str) -> Metric:
  """Returns the catalogue's metric called `name`.

  Raises:
    SettingError: the catalogue does not have it, so that its direction is unknown.
  """
  if name not in METRICS:
    remedy = f"Set metrics.catalogue.METRICS[{name!r}] = Metric(...)."
    raise SettingError("metric", name, f"is a high {name!r} good or bad", remedy)
  return METRICS[name]


def shown(name: str) -> Metric:
  """Returns the catalogue's entry for a metric or figure; an unknown name becomes an entry of that label."""
  return METRICS.get(name) or FIGURES.get(name) or Metric(name.replace("_", " "), name.replace("_", " "))
