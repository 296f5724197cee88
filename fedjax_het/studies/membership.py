"""Study of membership inference: what the models' losses tell of who was trained on, and LiRA over seeds."""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike
from rich.console import RenderableType
from rich.table import Table

from fedjax_het.data.container import FederatedData
from fedjax_het.data.untrusted import read_arrays
from fedjax_het.engine.batched_runs import Members
from fedjax_het.engine.evaluate import Evaluation
from fedjax_het.errors import DataError, SettingError
from fedjax_het.parts import Algorithm, ClientUpdate
from fedjax_het.privacy.membership import Observed, attack_figures, confidence, lira
from fedjax_het.settings import Choice, checked
from fedjax_het.studies.stored import write_arrays
from fedjax_het.studies.study import Moment, Options, Study, Watched
from fedjax_het.studies.text import percent
from fedjax_het.tasks.task import or_one

FILE = "membership.npz"
MOST = 2**32  # bytes of that file


@checked
def of_section(
  *, nonmembers: Annotated[str, Choice(("test", "valid"))] = "test", keep: bool = False
) -> dict[str, Any]:
  """Returns the settings of `Membership`.

  Args:
    nonmembers: the part of the clients' data that was not trained on: "test" or "valid".
    keep: write membership.npz, which `lira_of` compares between the members of a sweep over seeds.
  """
  return {"nonmembers": nonmembers, "keep": keep}


class Scores(NamedTuple):
  """What an attacker computes of all clients' examples of one part, client after client.

  Attributes:
    loss: ℓ, float [N].
    confidence: φ of classes, float [N]; NaN for other tasks.
  """

  loss: np.ndarray
  confidence: np.ndarray


class Membership(Study):
  """Study that adds `membership` to the summary: attacks by loss on the global and the personalised models.

  Members are the clients' training examples, and others those of a part that nobody trained on. The
  personalised model is the client's own; where a method has a line of them, that of the largest λ. It runs
  only if configured: `"--config.membership={'nonmembers': 'test'}"`.
  """

  name = "membership"
  options: ClassVar[Options | None] = Options("membership", of_section, on_request=True, silent=True)

  @classmethod
  def check(cls, given: Mapping[str, Any], client: ClientUpdate, validates: bool) -> None:
    """Raises `SettingError` for a bad setting, or validation parts that there are none of."""
    settings = of_section(**given)
    if settings["nonmembers"] == "valid" and not validates:
      raise SettingError(
        "membership.nonmembers", "valid", "no client has a validation part", "Set valid_fraction."
      )

  @classmethod
  def fits(cls, run: Watched) -> bool:
    """Returns whether the configuration asks for it."""
    return bool(run.config.studies.get("membership"))

  def section(self, now: Moment) -> dict[str, Any]:
    """Returns {"membership": {"global": figures, "personalized": figures, "members", "others"}}."""
    if now.diverged:
      return {}
    settings, run = self.settings, self.run
    parts = {
      part: scores_of(now.evaluate(by_example, part), getattr(run.data, part).size)
      for part in ("train", settings["nonmembers"])
    }
    inside, outside = parts.values()
    found: dict[str, Any] = {
      model: attack_figures(-inside[model].loss, -outside[model].loss) for model in inside
    }
    sizes = {part: int(np.asarray(getattr(run.data, part).size).sum()) for part in parts}
    if settings["keep"] and run.writes:
      write(run.folder / FILE, run.data, parts)
    return {"membership": found | {"members": sizes["train"], "others": sizes[settings["nonmembers"]]}}

  @classmethod
  def rows(cls, summary: Mapping[str, Any]) -> RenderableType | None:
    """Returns a table of the attacks."""
    found = summary.get("membership")
    if not found:
      return None
    table = Table("membership by loss", "AUC", "TPR at 1 % FPR", "TPR at 0.1 % FPR", box=None)
    for model in ("global", "personalized"):
      if model in found:
        table.add_row(model, *(percent(found[model][name]) for name in ("auc", "tpr_1", "tpr_01")))
    return table


def by_example(client: ClientUpdate) -> ClientUpdate:
  """Returns a client part with metrics of each row, [limit]: `loss` and `confidence`, NaN for padding."""

  def scores(outputs: jax.Array, y: jax.Array) -> dict[str, jax.Array]:
    losses, weight = client.task.losses(outputs, y)
    losses = losses if weight is None else losses / or_one(weight)
    phi = confidence(outputs, y) if client.task.classes else jnp.full_like(losses, jnp.nan)
    return {"loss": losses, "confidence": phi}

  def metrics(scores: dict[str, jax.Array], y: jax.Array, mask: jax.Array) -> dict[str, jax.Array]:
    return {name: jnp.where(mask, own, jnp.nan) for name, own in scores.items()}

  own_end = client.studies._replace(lambdas=(max(client.studies.lambdas),))
  return client._replace(studies=own_end, task=client.task._replace(scores=scores, metrics=metrics))


def scores_of(found: Evaluation, sizes: ArrayLike) -> dict[str, Scores]:
  """Returns an attacker's scores of all clients' examples, model -> `Scores`.

  Args:
    found: the evaluation `by_example`, [K, limit] for the global and [K, 1, limit] for personalised models.
    sizes: the clients' numbers of examples, int [K].
  """
  each = {"personalized": {name: own[:, 0] for name, own in found.personalized.items()}}
  if found.global_:
    each = {"global": found.global_, **each}
  limit = each["personalized"]["loss"].shape[1]
  there = np.arange(limit) < np.asarray(sizes)[:, None]
  return {name: Scores(own["loss"][there], own["confidence"][there]) for name, own in each.items()}


def digests(data: FederatedData, part: str) -> np.ndarray:
  """Returns what identifies each example of a part by its content, uint64 [N]; equal ones are alike."""
  rows = getattr(data, part).rows()
  rows = rows if data.rows is None else np.asarray(data.rows)[rows]
  leaves = [np.asarray(leaf)[rows] for leaf in (*jax.tree.leaves(data.x), data.y)]
  each = (
    hashlib.blake2b(b"".join(leaf[n].tobytes() for leaf in leaves), digest_size=8) for n in range(len(rows))
  )
  return np.array([int.from_bytes(own.digest(), "little") for own in each], np.uint64)


def write(path: Path, data: FederatedData, parts: Mapping[str, Mapping[str, Scores]]) -> None:
  """Writes a run's scores to an .npz: `ids`, `member`, and each model's `MODEL/loss`, `MODEL/confidence`."""
  arrays = {"ids": np.concatenate([digests(data, part) for part in parts])}
  first = next(len(own["personalized"].loss) for own in parts.values())
  arrays["member"] = np.arange(len(arrays["ids"])) < first
  for model in next(iter(parts.values())):
    for name in Scores._fields:
      arrays[f"{model}/{name}"] = np.concatenate([getattr(own[model], name) for own in parts.values()])
  write_arrays(path, **arrays)


def lira_of(folder: str | os.PathLike[str]) -> dict[str, Any]:
  """Attacks each member of a sweep with the others as shadows: model -> figures of `privacy.membership.lira`.

  The members are runs of one configuration with seeds of their own, so that who trains on a row differs, and
  with `membership.keep`.

  Raises:
    DataError: fewer than five members, or none, have kept their scores, or a file is damaged.
  """
  paths = sorted(Path(folder).glob(f"**/{FILE}"))
  if len(paths) < 5:
    raise DataError(
      f"{folder} has {len(paths)} files {FILE}. Sweep five seeds or more with membership.keep=True."
    )
  found: dict[str, list[Observed]] = {}
  for path in paths:
    arrays = read_arrays(path, MOST)
    for name in [own for own in arrays if own.endswith("/confidence")]:
      run = Observed(arrays["ids"], arrays["member"], arrays[name])
      ids, at = np.unique(run.ids, return_index=True)  # of examples that are there twice, the first
      found.setdefault(name.partition("/")[0], []).append(Observed(ids, run.member[at], run.score[at]))
  return {model: lira(runs) for model, runs in found.items()}


def shadows(
  make_algorithm: Callable[..., Algorithm],
  data: Sequence[FederatedData],
  keys: jax.Array,
  *,
  rounds: int,
  cohort_size: int,
  settings: Mapping[str, Any] | None = None,
  devices: int | None = None,
) -> list[dict[str, Observed]]:
  """Trains a run on each of several data sets in one program; returns each run's φ, model -> `Observed`.

  For LiRA the data sets divide each client's rows into training and test parts otherwise, as
  `fh.federate(..., key=)` does with keys of their own, so that a row is a member in about half of them.

  Args:
    make_algorithm: (**settings) -> algorithm.
    data: the clients' data of each run, with equal numbers of clients.
    keys: typed PRNG keys, [M].
    rounds: T.
    cohort_size: S.
    settings: name -> numbers [M], such as noise multipliers; by default none.
    devices: number of devices to use; by default all.
  """
  given = {} if settings is None else dict(settings)
  engine = Members(make_algorithm, data, given, len(data), cohort_size, devices=devices)
  state, _ = engine.advance(engine.init(keys), rounds)
  parts = {part: engine.split(engine.evaluate(state, part, by_example)) for part in ("train", "test")}
  found = []
  for m, own in enumerate(data):
    each = [scores_of(parts[part][m], getattr(own, part).size) for part in parts]
    ids = np.concatenate([digests(own, part) for part in parts])
    ids, first = np.unique(ids, return_index=True)
    count, scores = len(each[0]["personalized"].loss), {}
    for model in each[0]:
      phi = np.concatenate([side[model].confidence for side in each])
      scores[model] = Observed(ids, first < count, phi[first])
    found.append(scores)
  return found
