"""Range of the means over the clients in a run's last fifth, of which the last round's figures are a draw."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedjax_het.engine.run import judged as figures_of
from fedjax_het.metrics.late import MARK, late, unsettled
from fedjax_het.studies.study import Moment, Study
from fedjax_het.studies.text import number

WHAT = (
  f"{MARK} not settled: in the judged rounds of the last fifth the mean over the clients lay between these "
  "two, with a std over the rounds above half a point and above a standard error over the clients (losses "
  "have no such mark)"
)


class Late(Study):
  """Study that adds `late` to the summary, see `fedjax_het.metrics.late.late`.

  It counts every judged round of the last fifth, whether `eval_every` or `late_evaluations` had it judged.
  """

  name = "late"

  def checkpoint_state(self) -> list[list[Any]]:
    """Returns [round, model -> metric -> {"mean"}] of all judged rounds, as T may become less or more."""
    return self._judged

  def resume(self, rounds_done: int, checkpoint_state: Sequence[Sequence[Any]] | None) -> None:
    """Restores the judged rounds."""
    self._judged = [[*own] for own in checkpoint_state or ()]

  def watch(self, infos, now: Moment) -> dict[str, Any]:
    """Keeps the means of a judged round of the last fifth; returns the fields of a late evaluation."""
    judged = now.evaluations or now.late
    if judged is None:
      return {}
    figures = figures_of(judged)
    means = {
      model: {metric: {"mean": own["mean"]} for metric, own in metrics.items()}
      for model, metrics in figures["metrics"].items()
    }
    self._judged.append([now.round, means])
    return {} if now.late is None else {**figures}

  def section(self, now: Moment) -> dict[str, Any]:
    """Returns {"late": model -> metric -> {count, min, max, std}}."""
    found = late(((done, means) for done, means in self._judged), self.run.config.rounds)
    return {"late": found} if found else {}


def range_of(own: Mapping[str, Any], metric: str) -> str:
  """Formats a range of `unsettled`, such as "87.70 to 96.60"."""
  return f"{number(own['min'], metric)} to {number(own['max'], metric)}"


def marked(summary: Mapping[str, Any], model: str, metric: str) -> str:
  """Returns the mark and the range of a mean that has not settled, such as "* 87.70 to 96.60"; else ""."""
  own = unsettled(summary, model, metric)
  return f"{MARK} {range_of(own, metric)}" if own else ""
