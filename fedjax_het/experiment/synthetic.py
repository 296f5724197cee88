"""What a launched run keeps of its synthetic examples, and what they are worth at its end."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from fedjax_het import models
from fedjax_het.data.scale import as_read, scale_of
from fedjax_het.experiment.build import CLASSIFIER, Experiment
from fedjax_het.federated import Message
from fedjax_het.models import Model
from fedjax_het.yardsticks.downstream import downstream, within_class_distance
from fedjax_het.yardsticks.features import Features, classifier_features, in_blocks, read_inception
from fedjax_het.yardsticks.frechet import frechet_distance, kernel_distance
from fedjax_het.yardsticks.samples import animate, plot_samples

Images = tuple[np.ndarray, np.ndarray]  # x [N, ...] in [0, 1], y [N]


class Samples:
  """The examples of every evaluation, as compressed .npz files in a folder.

  Args:
    folder: where; made with the first file.
    synthesize: the client part's.
    key: the run's key; the noise that generators start from is the same in every round.
  """

  def __init__(self, folder: Path, synthesize: Callable, key: jax.Array):
    """See the class."""
    self.folder, self._key = folder, np.asarray(jax.random.key_data(key))
    self._synthesize = jax.jit(lambda key, broadcast: synthesize(jax.random.wrap_key_data(key), broadcast))

  def add(self, done: int, broadcast: Message) -> None:
    """Keeps the examples after round `done`."""
    self.folder.mkdir(exist_ok=True)
    x, y = map(np.asarray, self._synthesize(self._key, jax.tree.map(np.asarray, broadcast)))
    partial = self.folder / f".{done:06d}.npz"
    np.savez_compressed(partial, x=x, y=y)
    partial.replace(self.folder / f"{done:06d}.npz")

  def truncate(self, rounds_done: int) -> None:
    """Forgets what came after round `rounds_done`."""
    for path in self._paths():
      if int(path.stem) > rounds_done:
        path.unlink()

  def last(self) -> Images:
    """The newest (x, y)."""
    return self._read(self._paths()[-1])

  def draw(self, figures: Path, num_classes: int) -> None:
    """The newest examples as figures/samples.png, and all of them, a frame a file, as figures/samples.gif."""
    frames = [(int(path.stem), self._read(path)) for path in self._paths()]
    if frames and frames[0][1][0].ndim == 4:
      plot_samples(*frames[-1][1], num_classes, figures / "samples.png", title=f"round {frames[-1][0]}")
      animate([(f"round {done}", *images) for done, images in frames], num_classes, figures / "samples.gif")

  def _paths(self) -> list[Path]:
    return sorted(self.folder.glob("[0-9]*.npz"))

  @staticmethod
  def _read(path: Path) -> Images:
    with np.load(path) as file:
      return file["x"], file["y"]


def yardsticks(config: ConfigDict, experiment: Experiment, x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
  """What synthetic examples are worth, beside as many real training examples.

  All yardsticks see the same examples, `in_range`. The classifier learns from them alone, `downstream.seeds`
  times (once by default), each time from fresh parameters, and from other real examples.

  Returns:
    examples: their number M.
    downstream: top-1 of the classifier: over all clients' test parts {mean, std}, and on the official test
      set where there is one; its last training loss; each a mean over the seeds, and each seed's under
      `seeds`; its model's name.
    within_class_distance: of the synthetic examples, and of as many real ones.
    real: {downstream, frechet, kernel} of as many real examples.
    frechet, kernel, features: distances to real test examples, and in which features; where asked for.
  """
  given = dict(config.get("downstream", {}))
  options = dict(given.pop("model", {"name": CLASSIFIER}))
  wanted, seeds = given.pop("features", ""), given.pop("seeds", 1)
  source, data = experiment.source, experiment.data

  def read(x: np.ndarray) -> np.ndarray:
    return as_read(x, source.scale)

  name = options.pop("name")
  model = models.make(name, source.x.shape[1:], source.num_classes, **options)
  assert isinstance(model, Model)
  key = jax.random.fold_in(experiment.key, 1_000_003)
  test, train = (
    (np.asarray(data.x)[rows], np.asarray(data.y)[rows]) for rows in (data.test.rows(), data.train.rows())
  )
  trained = jax.jit(lambda key, x, y: downstream(key, model, x, y, **given))
  apply = jax.jit(model.apply)

  def trial(key: jax.Array, x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    params, loss = trained(key, x, y)
    logits_of = in_blocks(lambda x: apply(params, read(x)))

    def right(x: np.ndarray, y: np.ndarray) -> np.ndarray:
      logits = logits_of(x)
      return (logits.argmax(1) if logits.shape[1] > 1 else logits[:, 0] > 0) == y

    by_client = np.split(right(*test), np.cumsum(data.test.size)[:-1])
    local = [own.mean() for own in by_client if len(own)]
    official = float(right(source.x_test, source.y_test).mean()) if len(source.y_test) else None
    return {
      "loss": float(loss),
      "local": {"mean": float(np.mean(local)), "std": float(np.std(local))},
      "official": official,
    }

  def trials(sets: list[Images]) -> dict[str, Any]:
    found = [trial(jax.random.fold_in(key, seed), *own) for seed, own in enumerate(sets)]
    return jax.tree.map(lambda *values: float(np.mean(values)), *found) | {"seeds": found}

  x = in_range(x, source.x, source.scale)
  drawn = (as_many(np.random.default_rng(seed), train, y) for seed in range(seeds))
  real = [(read(own), labels) for own, labels in drawn]
  report: dict[str, Any] = {
    "examples": len(y),
    "downstream": {"model": model.name} | trials([(x, y)] * seeds),
    "within_class_distance": {
      "synthetic": distance(x, y, source.num_classes),
      "real": distance(*real[0], source.num_classes),
    },
    "real": {"downstream": trials(real)},
  }
  if wanted:
    features = (
      classifier_features(key, read, *train, source.num_classes) if wanted == "classifier"
      else read_inception(wanted)
    )  # fmt: skip
    unseen = read(source.x_test if len(source.y_test) else test[0])
    report |= distances(features, x, unseen)
    report["real"] |= distances(features, real[0][0], unseen)
  return report


def distances(features: Features, x: np.ndarray, real: np.ndarray) -> dict[str, Any]:
  """Fréchet and kernel distance of synthetic and real examples."""
  own, theirs = features.of(x), features.of(real)
  return {
    "features": features.name,
    "frechet": frechet_distance(own, theirs),
    "kernel": kernel_distance(own, theirs),
  }


def distance(x: np.ndarray, y: np.ndarray, num_classes: int) -> float:
  """Mean over the classes of `within_class_distance`."""
  return float(np.nanmean(within_class_distance(jnp.asarray(x), jnp.asarray(y), num_classes)))


def as_many(rng: np.random.Generator, real: Images, y: np.ndarray) -> Images:
  """Random real examples, of each class as many as `y` has (or as there are), class after class."""
  own = [np.flatnonzero(real[1] == c) for c in np.unique(y)]
  counts = np.unique(y, return_counts=True)[1]
  rows = np.concatenate([rng.permutation(rows)[:count] for rows, count in zip(own, counts)])
  return real[0][rows], real[1][rows]


def in_range(x: np.ndarray, real: np.ndarray, scale: float | None = None) -> np.ndarray:
  """Synthetic examples in the range of pixels: of bytes as they are read, or [0, 1] where all real ones are.

  Args:
    x: synthetic examples, float32 [M, ...].
    real: the data set's, as stored.
    scale: the data set's own, see `data.scale`.
  """
  if real.dtype == np.uint8:
    return np.clip(x, 0.0, 255 * (scale_of(real, scale) or 1.0))
  return np.clip(x, 0.0, 1.0) if real.min() >= 0.0 and real.max() <= 1.0 else x
