"""The named figures that parts report of their own, of `Info` and of `Mixing.figures`, over the rounds."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_het.engine.round import RoundInfo
from fedjax_het.yardsticks.yardstick import Curve, Moment, Yardstick, series


class RoundFigures(Yardstick):
  """`cohort` of every line, for a mixing part that reports figures: name -> mean since the line before."""

  name = "round_figures"
  field = "cohort"

  def of(self, infos: RoundInfo) -> dict[str, np.ndarray]:
    """name -> a value a round, [rounds]."""
    return dict(infos.figures)

  def books(self) -> dict[str, list[float]]:
    """Those of the rounds since the last evaluation."""
    return self._values

  def resume(self, rounds_done: int, books: Mapping[str, list[float]] | None) -> None:
    """Goes on with them."""
    self._values = {name: list(own) for name, own in (books or {}).items()}

  def watch(self, infos: RoundInfo, now: Moment) -> dict[str, Any]:
    """{`field`: name -> mean}."""
    for name, rounds in self.of(infos).items():
      self._values.setdefault(name, []).extend(rounds.tolist())
    if now.evaluations is None or not self._values:
      return {}
    values, self._values = self._values, {}
    return {self.field: {name: float(np.mean(own)) for name, own in values.items()}}

  def curves(self, lines: Sequence[Mapping[str, Any]]) -> list[Curve]:
    """A panel a figure."""
    names = dict.fromkeys(name for line in lines for name in line.get(self.field, {}))
    return [Curve(name, "cohort", series(lines, self.field, name)) for name in names]


class ClientFigures(RoundFigures):
  """`clients` of every line, for a client part that reports figures: name -> mean since the line before.

  Each is the mean over the rounds of its means over their cohorts, as `train_loss` is.
  """

  name = "client_figures"
  field = "clients"

  def of(self, infos: RoundInfo) -> dict[str, np.ndarray]:
    """name -> its mean over each round's cohort, [rounds]."""
    with np.errstate(over="ignore", invalid="ignore"):
      return {name: values.mean(axis=1) for name, values in dict(infos.clients.figures).items()}
