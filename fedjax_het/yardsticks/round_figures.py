"""What a mixing part reports of whole rounds: the named figures of `Mixing.figures`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_het.engine.round import RoundInfo
from fedjax_het.yardsticks.yardstick import Curve, Moment, Yardstick, series


class RoundFigures(Yardstick):
  """`cohort` of every line, for a mixing part that reports figures: name -> mean since the line before."""

  name = "round_figures"

  def books(self) -> dict[str, list[float]]:
    """Those of the rounds since the last evaluation."""
    return self._values

  def resume(self, rounds_done: int, books: Mapping[str, list[float]] | None) -> None:
    """Goes on with them."""
    self._values = {name: list(own) for name, own in (books or {}).items()}

  def watch(self, infos: RoundInfo, now: Moment) -> dict[str, Any]:
    """{"cohort": name -> mean}."""
    for name, values in dict(infos.figures).items():
      self._values.setdefault(name, []).extend(values.tolist())
    if now.evaluations is None or not self._values:
      return {}
    values, self._values = self._values, {}
    return {"cohort": {name: float(np.mean(own)) for name, own in values.items()}}

  def curves(self, lines: Sequence[Mapping[str, Any]]) -> list[Curve]:
    """A panel a figure."""
    names = dict.fromkeys(name for line in lines for name in line.get("cohort", {}))
    return [Curve(name, "cohort", series(lines, "cohort", name)) for name in names]
