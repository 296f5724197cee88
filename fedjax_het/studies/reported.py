"""Studies that record the figures which parts report (`Info.figures`, `Mixing.figures`) over the rounds."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_het.engine.round import RoundInfo
from fedjax_het.studies.study import Curve, Moment, Study, series


class RoundFigures(Study):
  """Study that adds `cohort` to metrics.jsonl: name -> mean of mixing figures since the last line."""

  name = "round_figures"
  field = "cohort"

  def of(self, infos: RoundInfo) -> dict[str, np.ndarray]:
    """Returns the mixing part's figures, name -> one value per round, [rounds]."""
    return dict(infos.figures)

  def checkpoint_state(self) -> dict[str, list[float]]:
    """Returns the values of the rounds since the last evaluation, for the checkpoint."""
    return self._values

  def resume(self, rounds_done: int, checkpoint_state: Mapping[str, list[float]] | None) -> None:
    """Restores the values of the rounds since the last evaluation."""
    self._values = {name: list(own) for name, own in (checkpoint_state or {}).items()}

  def watch(self, infos: RoundInfo, now: Moment) -> dict[str, Any]:
    """Collects a chunk's figures; at an evaluation returns their means, {`field`: name -> mean}."""
    for name, rounds in self.of(infos).items():
      self._values.setdefault(name, []).extend(rounds.tolist())
    if now.evaluations is None or not self._values:
      return {}
    values, self._values = self._values, {}
    return {self.field: {name: float(np.mean(own)) for name, own in values.items()}}

  def curves(self, lines: Sequence[Mapping[str, Any]]) -> list[Curve]:
    """Returns a curve, with a separate panel, per figure."""
    names = dict.fromkeys(name for line in lines for name in line.get(self.field, {}))
    return [Curve(name, "cohort", series(lines, self.field, name)) for name in names]


class ClientFigures(RoundFigures):
  """Study that adds `clients` to metrics.jsonl: name -> mean of client figures since the last line.

  Each is the mean over the rounds of its means over their cohorts, as `train_loss` is.
  """

  name = "client_figures"
  field = "clients"

  def of(self, infos: RoundInfo) -> dict[str, np.ndarray]:
    """Returns the client part's figures, name -> means over each round's cohort, [rounds]."""
    with np.errstate(over="ignore", invalid="ignore"):
      return {name: values.mean(axis=1) for name, values in dict(infos.clients.figures).items()}
