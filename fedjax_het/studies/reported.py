"""Studies that record the figures which parts report (`Info.figures`, `Mixing.figures`) over the rounds."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import numpy as np
from rich.text import Text

from fedjax_het.clients.heads import layers_of_head
from fedjax_het.engine.round import RoundInfo, of_rounds, over_rounds
from fedjax_het.errors import SettingError
from fedjax_het.mixing import with_variance
from fedjax_het.models import Generative, Model
from fedjax_het.parts import Mixing
from fedjax_het.studies.study import Curve, Moment, Options, Study, Watched, series

_ALL = "rounds, without uploads and all"  # of a checkpoint's figures


def with_layers(mixing: Mixing, model: Model | Generative, *, record_variance: bool = False) -> Mixing:
  """Returns a mixing part that also reports the variance of the last layer's updates, if asked to.

  Args:
    mixing: any mixing part.
    model: the model that clients train.
    record_variance: how far a cohort's updates of the last layer are apart: `cohort` of metrics.jsonl.
  """
  return with_variance(mixing, layers_of_head(model)) if record_variance else mixing


class RoundFigures(Study):
  """Study that adds `cohort` to metrics.jsonl: name -> mean of mixing figures since the last line."""

  name = "round_figures"
  options: ClassVar[Options | None] = Options("record_variance", with_layers, single=True, silent=True)
  field = "cohort"

  @classmethod
  def check_run(cls, given: bool, run: Watched) -> None:
    """Raises `SettingError` if the variance of a last layer is asked for that no client sends."""
    client, model = run.algorithm.client, run.model
    sent = jax.eval_shape(client.init_broadcast, jax.random.key(0)).params if given else None
    if given and model and not (client.needs.uploads_model and layers_of_head(model)(sent)):
      raise SettingError(
        "record_variance", True, f"{client.name} sends no last layer of {model.name}", "Leave it out."
      )

  @classmethod
  def observed(cls, given: bool, mixing: Mixing, model: Model | Generative) -> Mixing:
    """Returns the mixing part, made to report the variance if the configuration asks for it."""
    return with_layers(mixing, model, record_variance=given)

  def of(self, infos: RoundInfo) -> dict[str, list[float]]:
    """Returns the mixing part's figures, name -> one value per round that has one."""
    return {name: own.tolist() for name, own in dict(infos.figures).items()}

  def checkpoint_state(self) -> dict[str, Any]:
    """Returns the values of the rounds since the last evaluation, for the checkpoint."""
    return self._values

  def resume(self, rounds_done: int, checkpoint_state: Mapping[str, Any] | None) -> None:
    """Restores the values of the rounds since the last evaluation."""
    self._values = {name: list(own) for name, own in (checkpoint_state or {}).items()}

  def watch(self, infos: RoundInfo, now: Moment) -> dict[str, Any]:
    """Collects a chunk's figures; at an evaluation returns their means, {`field`: name -> mean}."""
    for name, rounds in self.of(infos).items():
      self._values.setdefault(name, []).extend(rounds)
    if now.evaluations is None or not self._values:
      return {}
    values, self._values = self._values, {}
    return {self.field: {name: over_rounds(own) for name, own in values.items()}}

  def curves(self, lines: Sequence[Mapping[str, Any]]) -> list[Curve]:
    """Returns a curve, with a separate panel, per figure."""
    names = dict.fromkeys(name for line in lines for name in line.get(self.field, {}))
    there = {name: np.array([name in line.get(self.field, {}) for line in lines]) for name in names}
    return [Curve(name, "cohort", series(lines, self.field, name), there=there[name]) for name in names]


class ClientFigures(RoundFigures):
  """Study that adds `clients` to metrics.jsonl: name -> mean of client figures since the last line.

  Each is the mean over the rounds of its means over their cohorts, as `train_loss` is.
  """

  name = "client_figures"
  options = None
  field = "clients"

  def of(self, infos: RoundInfo) -> dict[str, list[float]]:
    """Returns the client part's figures, name -> means over the cohort of each round with uploads."""
    with np.errstate(over="ignore", invalid="ignore"):
      return {name: of_rounds(infos, own) for name, own in dict(infos.clients.figures).items()}


class Attacked(RoundFigures):
  """Study that adds `attack` to metrics.jsonl, if some clients are dishonest."""

  name = "attacked"
  options = None
  field = "attack"

  def of(self, infos: RoundInfo) -> dict[str, list[float]]:
    """Returns how many `attackers` arrive in a round, and the mean `attackers_loss` of their training."""
    if isinstance(infos.dishonest, tuple):
      return {}
    with np.errstate(over="ignore", invalid="ignore"):
      loss = of_rounds(infos, infos.clients.loss, dishonest=True)
    here = infos.dishonest if isinstance(infos.present, tuple) else infos.dishonest & infos.present
    return {"attackers": here.sum(axis=1).tolist(), "attackers_loss": loss}


class Arrivals(RoundFigures):
  """Study that adds `participation` to metrics.jsonl, if not all clients of every cohort arrive."""

  name = "arrivals"
  options = None
  field = "participation"

  def __init__(self, run: Watched):
    """See the class."""
    super().__init__(run)
    self._rounds: list[int] | None = [0, 0]  # without an upload, and all; None if a checkpoint lacks them

  def of(self, infos: RoundInfo) -> dict[str, list[float]]:
    """Returns how many uploads `arrived`, whether a round was `empty`, how many had no row, `beyond`."""
    if isinstance(infos.present, tuple):
      return {}
    count = infos.present.sum(axis=1)
    if self._rounds:
      self._rounds = [self._rounds[0] + int((count == 0).sum()), self._rounds[1] + len(count)]
    found = {"arrived": count.tolist(), "empty": (count == 0).astype(np.float32).tolist()}
    return found if isinstance(infos.beyond, tuple) else found | {"beyond": infos.beyond.tolist()}

  def checkpoint_state(self) -> dict[str, Any]:
    """See `RoundFigures`; with the numbers of rounds without an upload and of all rounds."""
    counted = {_ALL: self._rounds} if self._rounds and self._rounds[1] else {}
    return {**super().checkpoint_state(), **counted}

  def resume(self, rounds_done: int, checkpoint_state: Mapping[str, Any] | None) -> None:
    """See `RoundFigures`; a checkpoint of an earlier version does not know how many rounds were empty."""
    kept = {**(checkpoint_state or {})}
    counted = kept.pop(_ALL, None if rounds_done else [0, 0])
    self._rounds = counted and [int(count) for count in counted]
    super().resume(rounds_done, kept)

  def section(self, now: Moment) -> dict[str, Any]:
    """Returns {"participation": {"empty": the share of all rounds in which no upload arrived}}."""
    empty, rounds = self._rounds or (0, 0)
    return {self.field: {"empty": empty / rounds}} if rounds else {}

  @classmethod
  def rows(cls, summary: Mapping[str, Any]) -> Text | None:
    """Returns a sentence on the rounds in which no upload arrived, if there were some."""
    share = (summary.get(cls.field) or {}).get("empty") or 0.0
    if not share:
      return None
    if share == 1:
      return Text("No round had an upload: nothing was learnt from any client.", style="bold yellow")
    return Text(f"{100 * share:.1f} % of the rounds had no upload.")
