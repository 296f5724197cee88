"""Study of class prototypes over the rounds: whether they stay, and how far they are apart."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import logging
from matplotlib.figure import Figure
from numpy.typing import ArrayLike
from rich.console import RenderableType
from rich.text import Text

from fedjax_het.engine.round import RoundInfo
from fedjax_het.studies.plots import GREY, colours_of, save
from fedjax_het.studies.stored import arrays_of, write_arrays
from fedjax_het.studies.study import Curve, Moment, Study, Watched, series
from fedjax_het.studies.text import rounded

FILE, PICTURE = "prototypes.npz", "prototypes.png"


class Prototypes(Study):
  """Study that adds `prototypes` to metrics.jsonl and to the summary, and prototypes.npz and .png.

  prototypes.npz holds `rounds`, [R], of the evaluations, the prototypes `mean`, float32 [R, C, d], and
  `known`, bool [R, C].
  """

  name = "prototypes"

  def __init__(self, run: Watched):
    super().__init__(run)
    self._rounds: list[int] = []
    self._mean: list[np.ndarray] = []
    self._known: list[np.ndarray] = []

  @classmethod
  def fits(cls, run: Watched) -> bool:
    """Returns whether the client part has prototypes."""
    return run.algorithm.client.studies.prototypes is not None

  def resume(self, rounds_done: int, checkpoint_state: Any) -> None:
    """Reads what prototypes.npz has of the finished rounds; a damaged file begins anew, with a warning."""
    path = self.run.folder / FILE
    if not rounds_done or not path.exists():
      return
    file = arrays_of(path)
    if {"rounds", "mean", "known"} <= {*file}:
      count = int((file["rounds"] <= rounds_done).sum())
      self._rounds = file["rounds"][:count].tolist()
      self._mean, self._known = [*file["mean"][:count]], [*file["known"][:count]]
    else:
      logging.warning("%s is damaged, and will hold only evaluations after round %d.", path, rounds_done)

  def watch(self, infos: RoundInfo, now: Moment) -> dict[str, Any]:
    """Writes an evaluation's prototypes, and returns {"prototypes": report}."""
    if now.evaluations is None or now.diverged:
      return {}
    mean, known = self._now(now)
    found = report(mean, known)
    if self._mean:
      both = known & self._known[-1]
      found["moved"] = (
        float(np.linalg.norm(mean - self._mean[-1], axis=1)[both].mean()) if both.any() else 0.0
      )
    self._rounds.append(now.round)
    self._mean.append(mean)
    self._known.append(known)
    if self.run.writes:
      path = self.run.folder / FILE
      mean, known = np.stack(self._mean), np.stack(self._known)
      write_arrays(path, rounds=np.array(self._rounds), mean=mean, known=known)
    return {"prototypes": found}

  def section(self, now: Moment) -> dict[str, Any]:
    """Returns {"prototypes": report} for the finished run."""
    return {} if now.diverged else {"prototypes": report(*self._now(now))}

  def _now(self, now: Moment) -> tuple[np.ndarray, np.ndarray]:
    """Returns the prototypes, float32 [C, d], and which classes have one, bool [C]."""
    prototypes = self.run.algorithm.client.studies.prototypes
    assert prototypes is not None
    mean, known = prototypes(jax.tree.map(np.asarray, now.broadcast()))
    return np.asarray(mean, np.float32), np.asarray(known) > 0

  @classmethod
  def rows(cls, summary: Mapping[str, Any]) -> RenderableType | None:
    """Returns a terminal line with the number of prototypes and how far the nearest two are apart."""
    found = summary.get("prototypes")
    if not found:
      return None
    apart = rounded(found["apart"], ".3g")
    return Text(f"prototypes of {found['known']} classes, the nearest two {apart} apart")

  def curves(self, lines: Sequence[Mapping[str, Any]]) -> list[Curve]:
    """Returns the curves of how far prototypes are apart and how far they moved, in one panel."""
    return [
      Curve("distance of prototypes", name, series(lines, "prototypes", name)) for name in ("apart", "moved")
    ]

  def draw(self, lines: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> None:
    """Draws prototypes.png from prototypes.npz."""
    path = self.run.folder / FILE
    if "prototypes" in summary and path.exists():
      with np.load(path) as file:
        plot_prototypes(file["mean"], file["known"], self.run.figures / PICTURE, title=self.run.title)


def report(mean: ArrayLike, known: ArrayLike) -> dict[str, Any]:
  """Describes prototypes: `known`, how many classes have one; `apart`, the least distance of two; `norm`.

  `norm` is their mean length; NaN where no class has one, as `apart` is for fewer than two.

  Args:
    mean: the prototypes, [C, d].
    known: which classes have one, bool [C].
  """
  there = np.asarray(mean, np.float64)[np.asarray(known)]
  away = np.linalg.norm(there[:, None] - there, axis=-1)[~np.eye(len(there), dtype=bool)]
  norms = np.linalg.norm(there, axis=-1)
  return {
    "known": len(there), "apart": float(away.min()) if len(away) else float("nan"),
    "norm": float(norms.mean()) if len(norms) else float("nan"),
  }  # fmt: skip


def plot_prototypes(
  mean: ArrayLike, known: ArrayLike, path: str | os.PathLike[str], *, title: str = ""
) -> Path:
  """Draws the last prototypes' cosines, and all prototypes' ways over the rounds, in the plane of the last.

  The plane is that of the two largest principal components of the last prototypes.

  Args:
    mean: prototypes at each evaluation, [R, C, d].
    known: which classes had one, bool [R, C].
    path: the PNG to write, which is returned; its folder is created if missing.
    title: the figure's title.
  """
  ways, there = np.asarray(mean, np.float64), np.asarray(known)
  num_classes, last = ways.shape[1], ways[-1]
  norms = np.linalg.norm(last, axis=1, keepdims=True)
  unit = last / np.where(norms > 0, norms, 1.0)
  cosines = np.where(there[-1][:, None] & there[-1], unit @ unit.T, np.nan)
  figure = Figure(figsize=(10.4, 4.6), layout="constrained")
  figure.suptitle(f"{title}: prototypes", fontsize=11, fontweight="bold")
  left, right = figure.subplots(1, 2, width_ratios=(1.0, 1.15))
  image = left.imshow(cosines, cmap="RdBu_r", vmin=-1.0, vmax=1.0, interpolation="nearest")
  figure.colorbar(image, ax=left, label="cosine of two prototypes after the last evaluation")
  left.set(xlabel="class", ylabel="class")
  center = last[there[-1]].mean(0) if there[-1].any() else np.zeros(ways.shape[2])
  plane = np.linalg.svd(last[there[-1]] - center, full_matrices=False)[2][:2]
  at = (ways - center) @ plane.T
  if at.shape[2] == 1:  # of a single class, or a single feature
    at = np.concatenate([at, np.zeros_like(at)], axis=2)
  palette = colours_of(num_classes)
  for c in range(num_classes):
    seen = there[:, c]
    if seen.any() and at.shape[2]:
      right.plot(*at[seen, c].T, color=palette[c], linewidth=1.0, alpha=0.7)
      right.scatter(*at[seen, c][-1], color=[palette[c]], s=22)
      right.annotate(str(c), at[seen, c][-1], (4, 4), textcoords="offset points", fontsize=9, color=GREY)
  right.set(xlabel="first principal component", ylabel="second", title="ways over the rounds, dot: the last")
  right.title.set_fontsize(9)
  right.spines[["top", "right"]].set_visible(False)
  return save(figure, path)
