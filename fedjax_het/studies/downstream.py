"""Evaluates synthetic examples by a classifier trained on them alone and by within-class diversity."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_het import models
from fedjax_het.data.container import FederatedData
from fedjax_het.data.files import Source
from fedjax_het.data.scale import as_read
from fedjax_het.errors import (
  SettingError,
  check_choice,
  check_given,
  check_range,
  check_section,
  check_whole,
  near,
)
from fedjax_het.models import Model
from fedjax_het.modes import promoting
from fedjax_het.settings import check_settings
from fedjax_het.studies.features import in_blocks
from fedjax_het.studies.inception import read_weights
from fedjax_het.tasks import mean_loss

PyTree = Any
Images = tuple[np.ndarray, np.ndarray]  # x [N, ...] in [0, 1], y [N]
CLASSIFIER = "two_nn"  # the classifier's default
FOLLOW = ("model", "steps", "lr", "seeds")
STEPS, LR = 1000, 1e-3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Judged:
  """How synthetic examples are judged: the section `downstream` of a configuration.

  Args:
    model: `name` and options of the classifier.
    seeds: number of trainings, each from fresh parameters.
    steps: maximum number of training steps of the classifier.
    lr: Adam's learning rate.
    features: what distances to real examples are taken in: 'classifier', one that has learnt from real
      examples, or a file of InceptionV3's weights; '' for none.
    follow: True: a classifier learns from the examples at every evaluation; a dict: with these other than at
      the end.
  """

  model: Mapping[str, Any] | None = None
  seeds: int = 1
  steps: int = STEPS
  lr: float = LR
  features: str = ""
  follow: bool | dict[str, Any] = False


class Judge:
  """Trains a classifier on given examples alone and evaluates it on the clients' real test examples.

  Args:
    key: typed PRNG key of the classifier's parameters.
    source: the data set.
    data: the clients' data.
    model: `name` and options of the classifier.
    seeds: number of trainings, each from fresh parameters.
    settings: other settings of a configuration's `downstream`, see `downstream`.

  Attributes:
    key, model, seeds: as given.
  """

  def __init__(
    self, key: jax.Array, source: Source, data: FederatedData, *, model: Mapping[str, Any] | None = None,
    seeds: int = 1, **settings: Any,
  ):  # fmt: skip
    made = classifier(model, source)
    self.key, self.model, self.seeds = key, made, seeds
    self._sizes, rows = data.test.size, data.test.rows()
    self._test = np.asarray(data.x)[rows], np.asarray(data.y)[rows], data.scale
    self._official = source.x_test, source.y_test, source.scale
    self._learn = jax.jit(lambda key, x, y: downstream(key, made, x, y, **settings))
    self._apply = jax.jit(made.apply)

  def __call__(self, sets: Sequence[Images]) -> dict[str, Any]:
    """Trains the classifier once per set and returns the mean results, with single trials under `seeds`.

    Returns:
      loss: the last training loss.
      local: top-1 over the clients' test parts, {mean, std}.
      balanced: mean over classes of the accuracy on a class's examples, pooled over all clients' test parts:
        1/C for a classifier that always predicts one class, however common that class is. `local` and
        `balanced` are NaN if no client has test examples.
      official: top-1 on the official test set; None if there is none.
    """
    found = [self._trial(jax.random.fold_in(self.key, seed), *own) for seed, own in enumerate(sets)]
    return jax.tree.map(lambda *values: float(np.mean(values)), *found) | {"seeds": found}

  def _trial(self, key: jax.Array, x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    params, loss = self._learn(key, x, y)

    def right(x: np.ndarray, y: np.ndarray, scale: float | None) -> np.ndarray:
      if not len(y):
        return np.zeros(0, bool)
      logits = in_blocks(lambda x: self._apply(params, as_read(x, scale)))(x)
      return (logits.argmax(1) if logits.shape[1] > 1 else logits[:, 0] > 0) == y

    hits = right(*self._test)
    local = [own.mean() for own in np.split(hits, np.cumsum(self._sizes)[:-1]) if len(own)]
    classes = [hits[self._test[1] == label].mean() for label in np.unique(self._test[1])]
    return {
      "loss": float(loss),
      "local": {"mean": _mean(local), "std": float(np.std(local)) if local else np.nan},
      "balanced": _mean(classes),
      "official": float(right(*self._official).mean()) if len(self._official[1]) else None,
    }


def _mean(values: Sequence[float]) -> float:
  return float(np.mean(values)) if len(values) else np.nan


def classifier(given: Mapping[str, Any] | None, source: Source) -> Model:
  """Builds the classifier that a section's `model` names; raises `SettingError` if it is invalid."""
  options = dict(given or {"name": CLASSIFIER})
  made = models.make(options.pop("name"), source.x.shape[1:], source.num_classes, **options)
  assert isinstance(made, Model)
  return made


def to_follow(settings: Mapping[str, Any]) -> dict[str, Any] | None:
  """Returns the settings of the classifier that is trained at every evaluation; None if none is.

  They come from `downstream.follow`, which is True, or a section with the settings that differ from those at
  the end, such as fewer `steps`; `seeds` is 1 unless it says otherwise.
  """
  follow = settings.get("follow", False)
  if follow is False:
    return None
  own = {name: value for name, value in settings.items() if name in FOLLOW}
  return {**own, "seeds": 1, **(follow if isinstance(follow, Mapping) else {})}


def check_downstream(settings: Mapping[str, Any], section: str = "downstream") -> None:
  """Raises `SettingError` or `DataError` for an invalid field of a configuration's `downstream`."""
  for field in settings:
    known = Judged.__annotations__ if section == "downstream" else FOLLOW
    if field not in known:
      raise SettingError(f"{section}.{field}", settings[field], f"unknown to {section}", near(field, known))
  given = settings.get("model", {"name": CLASSIFIER})
  check_section(f"{section}.model", given)
  model = dict(given)
  check_given(f"{section}.model", model, {"shape": "the data set", "num_classes": "the data set"})
  name = model.pop("name", None)
  check_choice(f"{section}.model.name", name, models.MODELS)
  options = models.options_of(name)
  for option in {*model} - options:
    raise SettingError(
      f"{section}.model.{option}", model[option], f"unknown to {name}", near(option, options)
    )
  own = {option: value for option, value in model.items() if option not in (*models.COMMON, "weights")}
  check_settings(f"to {name}", models.MODELS[name], own, ("shape", "num_classes"), f"{section}.model")
  check_whole(f"{section}.seeds", settings.get("seeds", 1), 1)
  learning = {name: value for name, value in settings.items() if name in ("steps", "lr")}
  check_settings(f"to {section}", downstream, learning, place=section)
  check_whole(f"{section}.steps", settings.get("steps", 1), 1)
  check_range(f"{section}.lr", settings.get("lr", 1.0), above=0.0, below=np.inf)
  features, follow = settings.get("features", ""), settings.get("follow", False)
  if features not in ("", "classifier"):
    if not isinstance(features, str) or not Path(features).is_file():
      raise SettingError(
        f"{section}.features", features, "no such file",
        "Name an .npz of InceptionV3's weights, or 'classifier', or leave it empty for no Fréchet distance.",
      )  # fmt: skip
    read_weights(features, names_only=True)
  if isinstance(follow, Mapping):
    check_downstream(follow, f"{section}.follow")
  elif not isinstance(follow, bool):
    raise SettingError(
      f"{section}.follow", follow, "of the wrong type",
      f"Set it to True, or to settings that differ from those at the end: {', '.join(FOLLOW)}.",
    )  # fmt: skip


def downstream(
  key: jax.Array, model: Model, x: jax.Array, y: jax.Array, *, steps: int = STEPS, lr: float = LR,
  tolerance: float = 0.01,
) -> tuple[PyTree, jax.Array]:  # fmt: skip
  """Trains a fresh classifier on a synthetic set to convergence and returns (parameters, final mean loss).

  It runs full-batch Adam until the mean loss is at most `tolerance`, or for `steps` steps. It is a pure
  function, safe under jit and vmap.

  Args:
    key: typed PRNG key of the initial parameters.
    model: the classifier.
    x: synthetic examples, float32 [M, ...].
    y: their labels, int32 [M].
    steps: maximum number of training steps of the classifier.
    lr: Adam's learning rate.
    tolerance: the loss that counts as converged.
  """
  optimizer = promoting(optax.adam(lr))
  params = model.init(key)

  def loss(params):
    return mean_loss(model.task, model.apply(params, x), y, jnp.ones(len(y)))

  def unfinished(carry):
    _, _, value, step = carry
    return (value > tolerance) & (step < steps)

  def step(carry):
    params, state, _, count = carry
    value, gradient = jax.value_and_grad(loss)(params)
    updates, state = optimizer.update(gradient, state)
    return optax.apply_updates(params, updates), state, value, count + 1

  start = params, optimizer.init(params), jnp.float32(jnp.inf), jnp.int32(0)
  params, _, value, _ = jax.lax.while_loop(unfinished, step, start)
  return params, value


def within_class_distance(x: jax.Array, y: jax.Array, num_classes: int) -> jax.Array:
  """Mean Euclidean distance between two examples of a class, float32 [C]; NaN if it has fewer than two.

  Compared with the value of as many real examples, it shows whether synthetic ones are near-copies of one
  another.

  Args:
    x: examples, float32 [M, ...].
    y: labels, int32 [M].
    num_classes: C, the number of classes.
  """
  flat = jnp.asarray(x).reshape(len(x), -1)
  distance = jax.lax.map(lambda own: jnp.sqrt(((flat - own) ** 2).sum(-1)), flat)
  member = jax.nn.one_hot(y, num_classes)
  count = member.sum(0)
  return jnp.einsum("ic,ij,jc->c", member, distance, member) / (count * (count - 1.0))
