"""Study of the global model on the official test set, which belongs to no client."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import RenderableType
from rich.text import Text

from fedjax_het.data.scale import as_read
from fedjax_het.metrics.catalogue import METRICS
from fedjax_het.studies.study import Moment, Study, Watched
from fedjax_het.studies.text import named, number

BATCH = 256  # examples put through the model at once


class OfficialTest(Study):
  """Study that adds `official` to the summary: the global model's metrics on the official test set."""

  name = "official_test"

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
    values = {name: float(value) for name, value in metrics.items()}
    return {"official": {"examples": len(y), "metrics": values}}

  @classmethod
  def rows(cls, summary: Mapping[str, Any]) -> RenderableType | None:
    """Returns a terminal line with the headline metric on the official test set."""
    found = summary.get("official")
    if not found:
      return None
    names = [name for name in METRICS if name in found["metrics"] and name not in ("ece", "mce", "top5")]
    told = ", ".join(f"{named(name)} {number(found['metrics'][name], name)}" for name in names)
    return Text(f"global model on the {found['examples']:,} official test examples: {told}")
