"""Study of the global model on the official test set, which belongs to no client."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import RenderableType
from rich.text import Text

from fedjax_het.data.scale import as_read
from fedjax_het.engine.round import RoundInfo
from fedjax_het.errors import SettingError
from fedjax_het.metrics.catalogue import METRICS
from fedjax_het.parts import ClientUpdate
from fedjax_het.studies.best import best
from fedjax_het.studies.study import Moment, Options, Study, Watched
from fedjax_het.studies.text import named, number

BATCH = 256  # examples put through the model at once


def at_evaluations(*, record_official: bool = False) -> bool:
  """Returns the setting of `OfficialTest`.

  Args:
    record_official: judge the global model on the official test set at every evaluation, not only at the end:
      `official` of metrics.jsonl, and `official.best` of summary.json.
  """
  return record_official


class OfficialTest(Study):
  """Study that adds `official` to the summary: the global model's metrics on the official test set.

  With `record_official` every line of metrics.jsonl of an evaluation has them too, and `official.best` is the
  headline metric's first best value, {value, round, seconds}. SosicFL's "global" accuracy is this one
  (section 4.1, N_test examples).
  """

  name = "official_test"
  options = Options("record_official", at_evaluations, single=True)

  @classmethod
  def check(cls, given: bool, client: ClientUpdate, validates: bool = True) -> None:
    """Raises `SettingError` if the method has no global model that classifies."""
    if given and (client.global_model is None or client.studies.synthesize is not None):
      raise SettingError(
        "record_official", given, f"{client.name} has no global model that classifies", "Leave it out."
      )

  @classmethod
  def check_run(cls, given: bool, run: Watched) -> None:
    """Raises `SettingError` if the data set has no official test set."""
    if given and not cls.fits(run):
      problem = f"{run.config.dataset} has no official test set that the model reads"
      raise SettingError("record_official", given, problem, "Leave it out.")

  def __init__(self, run: Watched):
    super().__init__(run)
    self.resume(0, None)

  def checkpoint_state(self) -> dict[str, Any] | None:
    """Returns the headline's name and course so far, for the checkpoint; None if none is recorded."""
    return {"metric": self._metric, "course": self._course} if self.settings else None

  def resume(self, rounds_done: int, checkpoint_state: Mapping[str, Any] | None) -> None:
    """Restores the headline's course from a checkpoint."""
    found = checkpoint_state or {"metric": None, "course": {}}
    self._metric: str | None = found["metric"]
    self._course: dict[str, list[Any]] = {name: list(own) for name, own in found["course"].items()}

  def watch(self, infos: RoundInfo, now: Moment) -> dict[str, Any]:
    """Returns {"official": metrics} for an evaluation, if the configuration asks for it."""
    if not self.settings or now.evaluations is None:
      return {}
    found = self._metrics(now)
    self._metric = next(name for name in self.run.algorithm.client.task.headline if name in found)
    values = {"rounds": now.round, "seconds": now.seconds.get("train", 0.0), "global": found[self._metric]}
    for name, value in values.items():
      self._course.setdefault(name, []).append(value)
    return {"official": found}

  @classmethod
  def fits(cls, run: Watched) -> bool:
    """Returns whether the data set has a test set, and the run a global model that reads its examples."""
    client, source = run.algorithm.client, run.source
    trains = client.global_model is not None and client.studies.synthesize is None
    return bool(len(source.y_test)) and trains and not source.standardize

  def section(self, now: Moment) -> dict[str, Any]:
    """Returns {"official": the number of `examples`, and `metrics`, each over all examples together}."""
    if now.diverged:
      return {}
    found: dict[str, Any] = {"examples": len(self.run.source.y_test), "metrics": self._metrics(now)}
    if self._metric is not None:
      found["best"] = best(self._course, "global", self._metric)
    return {"official": found}

  def _metrics(self, now: Moment) -> dict[str, float]:
    """Evaluates the global model on the official test set."""
    client, source = self.run.algorithm.client, self.run.source
    global_model = client.global_model
    assert global_model is not None
    y = np.asarray(source.y_test).astype(client.task.dtype)
    model = jax.jit(global_model)(jax.tree.map(np.asarray, now.broadcast()))

    @jax.jit
    def scores(model, x, y):
      return client.task.scores(client.apply(model, as_read(x, source.scale)), y)

    found = []
    for first in range(0, len(y), BATCH):
      rows = np.minimum(np.arange(first, first + BATCH), len(y) - 1)  # the last batch repeats an example
      x = jax.tree.map(lambda leaf: np.asarray(leaf)[rows], source.x_test)  # noqa: B023
      real = min(BATCH, len(y) - first)
      found.append(jax.tree.map(lambda own: np.asarray(own)[:real], scores(model, x, y[rows])))  # noqa: B023
    every = jax.tree.map(lambda *parts: np.concatenate(parts), *found)
    metrics = jax.jit(client.task.metrics)(every, y, jnp.ones(len(y), bool))
    return {name: float(value) for name, value in metrics.items()}

  @classmethod
  def rows(cls, summary: Mapping[str, Any]) -> RenderableType | None:
    """Returns a terminal line with the headline metric on the official test set."""
    found = summary.get("official")
    if not found:
      return None
    names = [name for name in METRICS if name in found["metrics"] and name not in ("ece", "mce", "top5")]
    told = ", ".join(f"{named(name)} {number(found['metrics'][name], name)}" for name in names)
    return Text(f"global model on the {found['examples']:,} official test examples: {told}")
