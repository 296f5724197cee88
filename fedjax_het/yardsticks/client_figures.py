"""What clients report of their own: the named figures of `Info`, over the cohort and the rounds."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_het.engine.round import RoundInfo
from fedjax_het.yardsticks.yardstick import Curve, Moment, Yardstick, series


class ClientFigures(Yardstick):
  """`clients` of every line, for a client part that reports figures: name -> mean since the line before.

  Each is the mean over the rounds of its means over their cohorts, as `train_loss` is.
  """

  name = "client_figures"

  def books(self) -> dict[str, list[float]]:
    """The means of the rounds since the last evaluation."""
    return self._means

  def resume(self, rounds_done: int, books: Mapping[str, list[float]] | None) -> None:
    """Goes on with them."""
    self._means = {name: list(means) for name, means in (books or {}).items()}

  def watch(self, infos: RoundInfo, now: Moment) -> dict[str, Any]:
    """{"clients": name -> mean}."""
    for name, values in dict(infos.clients.figures).items():
      with np.errstate(over="ignore", invalid="ignore"):
        self._means.setdefault(name, []).extend(values.mean(axis=1).tolist())
    if now.evaluations is None or not self._means:
      return {}
    means, self._means = self._means, {}
    return {"clients": {name: float(np.mean(own)) for name, own in means.items()}}

  def curves(self, lines: Sequence[Mapping[str, Any]]) -> list[Curve]:
    """A panel a figure."""
    names = dict.fromkeys(name for line in lines for name in line.get("clients", {}))
    return [Curve(name, "cohort", series(lines, "clients", name)) for name in names]
