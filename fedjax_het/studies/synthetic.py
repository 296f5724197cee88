"""Study of synthetic examples: stores them at every evaluation, evaluates and draws them."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedjax_het.data.container import FederatedData
from fedjax_het.data.files import Source
from fedjax_het.data.scale import as_read, scale_of
from fedjax_het.data.untrusted import read_arrays
from fedjax_het.errors import SettingError, reading
from fedjax_het.parts import ClientUpdate
from fedjax_het.studies.downstream import (
  Images,
  Judge,
  Judged,
  check_downstream,
  classifier,
  to_follow,
  within_class_distance,
)
from fedjax_het.studies.features import Features, classifier_features, read_inception
from fedjax_het.studies.frechet import frechet_distance, kernel_distance
from fedjax_het.studies.samples import animate, plot_samples, sample_files
from fedjax_het.studies.stored import write_arrays
from fedjax_het.studies.study import Curve, Moment, Options, Study, Watched, series
from fedjax_het.studies.text import number, rounded, spread


class Synthetic(Study):
  """Study that adds `synthetic` to the summary and writes samples/, samples.png and samples.gif.

  The folder samples/ has a file per evaluation. If configured (`to_follow`), every line has a `synthetic`
  too: top-1 of a classifier trained on that round's examples alone.
  """

  name = "synthetic"
  options = Options("downstream", Judged)

  def __init__(self, run: Watched):
    super().__init__(run)
    self._folder, self._key = run.folder / "samples", np.asarray(jax.random.key_data(run.key))
    synthesize = run.algorithm.client.studies.synthesize
    assert synthesize is not None
    self._synthesize = jax.jit(lambda key, broadcast: synthesize(jax.random.wrap_key_data(key), broadcast))
    follow = to_follow(self.settings)
    self._judge = judge_of(follow, run.source, run.data, run.key) if follow else None

  @classmethod
  def check(cls, given: Mapping[str, Any], client: ClientUpdate, validates: bool) -> None:
    """Raises `SettingError` or `DataError` for an invalid section, or one that `client` has no use for."""
    check_downstream(given)
    if given and client.studies.synthesize is None:
      problem = f"{client.name} synthesises nothing that could be judged"
      raise SettingError("downstream", dict(given), problem, "Leave it out.")

  @classmethod
  def check_run(cls, given: Mapping[str, Any], run: Watched) -> None:
    """Raises `SettingError` if the data cannot be judged as the section says."""
    if run.algorithm.client.studies.synthesize is None:
      return
    for judge in (given, to_follow(given) or {}):
      classifier(judge.get("model"), run.source)
    tests = len(run.source.y_test) or int(np.sum(run.data.test.size))
    if given.get("features") and tests < 2:
      raise SettingError(
        "downstream.features", given["features"],
        f"distances are to real test examples, of which there are {tests}",
        "Hold some out, as by test_fraction = 0.2, or leave it out.",
      )  # fmt: skip

  @classmethod
  def fits(cls, run: Watched) -> bool:
    """Returns whether the server can synthesise examples."""
    return run.algorithm.client.studies.synthesize is not None

  def resume(self, rounds_done: int, checkpoint_state: Any) -> None:
    """Deletes the examples of rounds after `rounds_done`."""
    if self.run.writes:
      for path in self._paths():
        if int(path.stem) > rounds_done:
          path.unlink()
      for partial in self._folder.glob(".*.npz"):  # left by a start that was killed
        partial.unlink()

  def watch(self, infos, now: Moment) -> dict[str, Any]:
    """Stores the examples of an evaluation; generators start from the same noise in every round."""
    if now.evaluations is None or now.diverged:
      return {}
    broadcast = jax.tree.map(np.asarray, now.broadcast())
    if not self.run.writes:
      return {}
    x, y = map(np.asarray, self._synthesize(self._key, broadcast))
    self._folder.mkdir(exist_ok=True)
    write_arrays(self._folder / f"{now.round:06d}.npz", x=x, y=y)
    if self._judge is None:
      return {}
    source = self.run.source
    found = self._judge([(in_range(x, source.x, source.scale), y)] * self._judge.seeds)
    return {
      "synthetic": {"downstream": {name: found[name] for name in ("loss", "local", "balanced", "official")}}
    }

  def section(self, now: Moment) -> dict[str, Any]:
    """Returns {"synthetic": the report of `worth` on the newest examples}."""
    if now.diverged or not self.run.writes:
      return {}
    run, newest = self.run, self._read(self._paths()[-1])
    begun = time.perf_counter()

    def tell(step: str) -> None:
      print(f"Judging the synthetic examples, {time.perf_counter() - begun:.0f} s: {step} ...", flush=True)

    return {"synthetic": worth(self.settings, run.source, run.data, run.key, *newest, tell=tell)}

  @classmethod
  def rows(cls, summary: Mapping[str, Any]) -> RenderableType | None:
    """Returns a table of what the examples are worth, compared with as many real ones."""
    return synthetic_table(summary["synthetic"]) if summary.get("synthetic") else None

  @classmethod
  def judged(cls, summary: Mapping[str, Any]) -> dict[str, Any]:
    """Returns {"synthetic": figures of the classifier trained on a run's synthetic examples alone}, or {}."""
    found = summary.get("synthetic")
    return {"synthetic": {"top1": found["downstream"]["local"]}} if found else {}

  def curves(self, lines: Sequence[Mapping[str, Any]]) -> list[Curve]:
    """Returns a curve of downstream accuracy on the clients' test parts, if it is followed."""
    values = series(lines, "synthetic", "downstream", "local", "mean")
    return [Curve("top1", "trained on synthetic examples alone", values)] if self._judge else []

  def draw(self, lines: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> None:
    """Draws the newest examples and, with a frame per file, all of them; for images only."""
    frames = [(int(path.stem), self._read(path)) for path in self._paths()]
    if frames and frames[0][1][0].ndim == 4:
      figures, num_classes = self.run.figures, self.run.data.num_classes
      plot_samples(*frames[-1][1], num_classes, figures / "samples.png", title=f"round {frames[-1][0]}")
      animate([(f"round {done}", *images) for done, images in frames], num_classes, figures / "samples.gif")

  def _paths(self) -> list[Path]:
    return sample_files(self._folder)

  @staticmethod
  def _read(path: Path) -> Images:
    file = read_arrays(path)
    with reading(path):
      return file["x"], file["y"]


def worth(
  settings: Mapping[str, Any], source: Source, data: FederatedData, key: jax.Array, x: np.ndarray,
  y: np.ndarray, tell: Callable[[str], None] = lambda step: None,
) -> dict[str, Any]:  # fmt: skip
  """Evaluates synthetic examples against as many real training examples.

  All measures use the same examples, clipped by `in_range`. A classifier is trained on them alone, `seeds`
  times (once by default), each time from fresh parameters, and likewise on real examples, drawn anew each
  time.

  Args:
    settings: a configuration's `downstream`.
    source: the data set.
    data: the clients' data.
    key: the run's key.
    x: synthetic examples, [M, ...].
    y: their labels, [M].
    tell: is called with the name of each step as it begins.

  Returns:
    examples: M, their number.
    absent: labels of which no client has a training example, so that no data has shaped these examples.
    downstream: top-1 of the classifier: over all clients' test parts {mean, std}, balanced over their
      classes, and on the official test set if there is one; its last training loss; each a mean over the
      seeds, with each seed's values under `seeds` (see `downstream.Judge`); its model's name.
    within_class_distance: value for the synthetic examples, and for as many real ones.
    real: {examples, downstream, frechet, kernel} for as many real examples, or for all of a class that has
      fewer.
    frechet, kernel, features: distances to real test examples, and the features used; if configured.
  """
  wanted = settings.get("features", "")
  judge = judge_of(settings, source, data, key)

  def read(x: np.ndarray) -> np.ndarray:
    return as_read(x, data.scale)

  test, train = (
    (np.asarray(data.x)[rows], np.asarray(data.y)[rows]) for rows in (data.test.rows(), data.train.rows())
  )
  x = in_range(x, source.x, source.scale)
  drawn = (as_many(np.random.default_rng(seed), train, y) for seed in range(judge.seeds))
  real = [(read(own), labels) for own, labels in drawn]
  times = f"{judge.model.name}, {judge.seeds} time{'s' * (judge.seeds > 1)}"
  tell(f"{times}, learns from them alone")
  learnt = judge([(x, y)] * judge.seeds)
  tell(f"{times}, learns from as many real ones")
  report: dict[str, Any] = {
    "examples": len(y),
    "absent": np.setdiff1d(y, train[1]).tolist(),
    "downstream": {"model": judge.model.name} | learnt,
    "within_class_distance": {
      "synthetic": distance(x, y, source.num_classes),
      "real": distance(*real[0], source.num_classes),
    },
    "real": {"examples": len(real[0][1]), "downstream": judge(real)},
  }
  if wanted:
    tell("features for the distances")
    features = (
      classifier_features(judge.key, read, *train, source.num_classes) if wanted == "classifier"
      else read_inception(wanted)
    )  # fmt: skip
    unseen = as_read(source.x_test, source.scale) if len(source.y_test) else read(test[0])
    report |= distances(features, x, unseen)
    report["real"] |= distances(features, real[0][0], unseen)
  return report


def judge_of(settings: Mapping[str, Any], source: Source, data: FederatedData, key: jax.Array) -> Judge:
  """Builds the classifier that `settings`, a configuration's `downstream`, describes."""
  own = {name: settings[name] for name in settings if name not in ("features", "follow")}
  return Judge(jax.random.fold_in(key, 1_000_003), source, data, **own)


def synthetic_table(found: Mapping[str, Any]) -> RenderableType:
  """Returns a table of what the synthetic examples are worth, from the report of `worth`."""
  table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
  learner, distance, real = found["downstream"], found["within_class_distance"], found["real"]
  known = real["downstream"]
  count = real.get("examples", found["examples"])
  table.add_row("", "synthetic", "as many real" if count == found["examples"] else f"{count} real")
  table.add_row(
    "top-1 on the clients' test parts (%)", spread(learner["local"]), spread(known["local"]), style="bold"
  )
  if "balanced" in learner:
    figures = (number(own["balanced"], "top1") for own in (learner, known))
    table.add_row("  mean over classes (%)", *figures)
  if learner.get("official") is not None:
    figures = (number(own["official"], "top1") for own in (learner, known))
    table.add_row("top-1 on the official test set (%)", *figures)
  apart = (rounded(distance[name], ".3g") for name in ("synthetic", "real"))
  table.add_row("distance within a class", *apart)
  if "frechet" in found:
    figures = (f"{rounded(own['frechet'], '.2f')}, {rounded(own['kernel'], '.4f')}" for own in (found, real))
    table.add_row("Fréchet, kernel distance", *figures)
    table.add_row("  in the features of", found["features"])
  text = f"\n{found['examples']} synthetic examples, and a {learner['model']} trained on them alone"
  if len(learner["seeds"]) > 1:
    text += f", {len(learner['seeds'])} times"
  if found.get("absent"):
    text += f"; no client has an example of class {', '.join(map(str, found['absent']))}"
  return Group(Text(text), table)


def distances(features: Features, x: np.ndarray, real: np.ndarray) -> dict[str, Any]:
  """Computes the Fréchet and kernel distances between synthetic and real examples."""
  own, theirs = features.of(x), features.of(real)
  return {
    "features": features.name,
    "frechet": frechet_distance(own, theirs),
    "kernel": kernel_distance(own, theirs),
  }


def distance(x: np.ndarray, y: np.ndarray, num_classes: int) -> float:
  """Averages `within_class_distance` over the classes."""
  return float(np.nanmean(within_class_distance(jnp.asarray(x), jnp.asarray(y), num_classes)))


def as_many(rng: np.random.Generator, real: Images, y: np.ndarray) -> Images:
  """Draws random real examples, as many of each class as `y` has (or as exist), sorted by class."""
  own = [np.flatnonzero(real[1] == c) for c in np.unique(y)]
  counts = np.unique(y, return_counts=True)[1]
  rows = np.concatenate([rng.permutation(rows)[:count] for rows, count in zip(own, counts)])
  return real[0][rows], real[1][rows]


def in_range(x: np.ndarray, real: np.ndarray, scale: float | None = None) -> np.ndarray:
  """Clips synthetic examples to the range of pixels: of stored bytes, or [0, 1] if all real values are in it.

  Args:
    x: synthetic examples, float32 [M, ...].
    real: the data set's examples, as stored.
    scale: the data set's scale, see `data.scale`.
  """
  if real.dtype in (np.uint8, np.uint16):
    return np.clip(x, 0.0, np.iinfo(real.dtype).max * (scale_of(real, scale) or 1.0))
  return np.clip(x, 0.0, 1.0) if real.min() >= 0.0 and real.max() <= 1.0 else x
