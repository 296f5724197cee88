"""Early stopping: a run ends when its validation metric has not improved for some evaluations."""

from collections.abc import Mapping
from typing import Annotated, Any

from fedjax_het.engine.judged import PARTICIPANTS, EvalClients
from fedjax_het.engine.lambda_selection import Evaluations, headline, pick
from fedjax_het.engine.run import on_validation
from fedjax_het.errors import SettingError
from fedjax_het.metrics.catalogue import METRICS
from fedjax_het.settings import Choice, Count, NonNegative, checked

MODELS = ("personalized", "global")


class Stopping:
  """Follows the task's headline metric: its mean over the clients' validation parts.

  Attributes:
    settings: the arguments.
    state: what a checkpoint keeps: `metric`, `best` value and its `round`, the index `column` of its λ, and
      `waited`, the evaluations since then.
  """

  @checked
  def __init__(
    self,
    *,
    patience: Count,
    least: NonNegative = 0.0,
    model: Annotated[str, Choice(MODELS)] = "personalized",
    keep_best: bool = False,
  ):
    """Makes it.

    Args:
      patience: evaluations without improvement after which the run ends.
      least: what counts as an improvement: a difference to the best value above this, in the metric's unit
        (0.01 is a point of an accuracy).
      model: "personalized" or "global", whose metric decides.
      keep_best: whether the model of the best round is kept too, in best/model.npz.
    """
    self.patience, self.least, self.model, self.keep_best = patience, least, model, keep_best
    self.state: dict[str, Any] = {}

  def watch(self, round: int, evaluations: Evaluations) -> bool:
    """Takes note of an evaluation; returns whether it is the best one so far."""
    found = on_validation(evaluations)[self.model]
    metric = headline(found)
    value, sign = found[metric]["mean"], 1.0 if METRICS[metric].higher_is_better else -1.0
    better = bool(self.state) and sign * (value - self.state["best"]) > self.least
    if better or (not self.state and value == value):
      column = pick(evaluations).column
      self.state = {"metric": metric, "best": value, "round": round, "column": column, "waited": 0}
      return True
    if self.state:
      self.state["waited"] += 1
    return False

  @property
  def why(self) -> str:
    """Returns why the run ends now, in a sentence; "" if it goes on."""
    own = self.state
    if not own or own["waited"] < self.patience:
      return ""
    best = f"{own['best']:.6g} of round {own['round']}"
    return (
      f"The {self.model} {own['metric']} on the validation parts has not improved on {best} in "
      f"{own['waited']} evaluations."
    )


def check_stopping(
  given: Mapping[str, Any], valid_fraction: float, eval_every: int | None, eval_clients: EvalClients = None
) -> None:
  """Raises `SettingError` for a section that cannot stop a run; {} is none."""
  if not given:
    return
  if "patience" not in given:
    raise SettingError("stopping.patience", None, "is missing", "Give a number of evaluations, such as 5.")
  if not valid_fraction:
    remedy = "Set --config.valid_fraction=0.1, or leave stopping out."
    raise SettingError("stopping", dict(given), "there are no validation parts to go by", remedy)
  if eval_every is None:
    remedy = "Set --config.eval_every, or leave stopping out."
    raise SettingError("stopping", dict(given), "only the last round is evaluated", remedy)
  if eval_clients == PARTICIPANTS:
    problem = "stopping compares evaluations, and each would be of other clients"
    raise SettingError("eval_clients", eval_clients, problem, "Give a number, whose sample stays the same.")
