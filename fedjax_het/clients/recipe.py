"""`Recipe`: local training as the settings describe it, which every supervised client part follows.

A method says what is its own, such as a proximal term or a second model. The gradient of a mini-batch, the
number and the order of the steps, the learning rate and the optimiser are the recipe's.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import optax

from fedjax_het.clients import objective
from fedjax_het.clients.augmentation import augmented, check_augmentation, mixed
from fedjax_het.clients.calibration import (
  BELOW_ONE,
  LEAVING_OUT,
  calibrated,
  check_classes,
  correlation,
  counts_of,
)
from fedjax_het.clients.gradient_weights import times_counted
from fedjax_het.clients.local_settings import (
  OF_PRIVACY,
  OPTIMIZERS,
  OURS,
  SUMMING,
  LocalSettings,
  optimizer_of,
  unused_settings,
)
from fedjax_het.clients.private import (
  SealedBatch,
  capacity_of,
  check_private,
  noised_gradient,
  opened,
)
from fedjax_het.data.container import Array, ClientData, FederatedData
from fedjax_het.errors import SettingError, check_range, is_one, is_zero
from fedjax_het.local import Batch, batches_of, for_each_batch, for_each_drawn_batch, steps_per_epoch
from fedjax_het.models.features import with_features
from fedjax_het.models.model import Model
from fedjax_het.modes import promoting
from fedjax_het.parts import Context
from fedjax_het.settings import with_defaults

PyTree = Any
EPOCHS = 2**31 - 3  # folded into a round's key for the number of epochs; epochs fold in 0, 1, ...


class Recipe(NamedTuple):
  """Local training of one model; `recipe_of` makes it.

  Attributes:
    model: the model.
    settings: the settings, with their defaults.
    term: (θ, `objective.Seen`) -> a method's own term of a mini-batch's loss, float32 scalar; None for none.
      With mixed examples (`mixup`) the batch's labels are (y, y', λ), see `augmentation.mixed`.
    outputs: (θ, `objective.Seen`) -> the outputs that the loss is of, for a method that makes them of the
      model's features; None for the model's outputs.
    counts: the client's examples of each class, float32 [C]; None unless `fitted` found that they are needed.
  """

  model: Model
  settings: LocalSettings
  term: objective.Term | None = None
  counts: jax.Array | None = None
  outputs: objective.Outputs | None = None

  @property
  def gradients(self) -> int:
    """Returns the number of gradients that a step computes: 2 with sharpness-aware steps, else 1."""
    return 1 if is_zero(self.settings["sam_radius"]) else 2

  def rate(self, round: int | jax.Array) -> jax.Array:
    """Computes η_t, the learning rate of a round t, float32 scalar; see `LocalSettings`."""
    own = self.settings
    rate = objective.decayed(own["lr"], own["lr_decay"], round)
    if own["schedule"] != "constant":
      assert own["schedule_rounds"] is not None
      rate = rate * objective.SCHEDULES[own["schedule"]](
        jnp.asarray(round, jnp.float32) / own["schedule_rounds"]
      )
    if not is_zero(own["warmup"]):
      rate = rate * jnp.minimum(
        1.0, (jnp.asarray(round, jnp.float32) + 1.0) / jnp.maximum(own["warmup"], 1.0)
      )
    return rate

  def optimizer(self, context: Context) -> optax.GradientTransformation:
    """Returns the optimiser at the learning rate of the context's round."""
    own = self.settings
    chosen = own["optimizer"]
    make = OPTIMIZERS[chosen](own) if isinstance(chosen, str) else cast(objective.Optimizer, chosen)
    steps = make(self.rate(context.round))
    if own["clip_norm"] is not None:
      steps = optax.chain(optax.clip_by_global_norm(cast(float, own["clip_norm"])), steps)
    return promoting(steps)

  def gradient(
    self, params: PyTree, stats: PyTree, batch: Batch, at: Callable[[PyTree], PyTree] | None = None,
    release: int = 0,
  ) -> tuple[jax.Array, PyTree, PyTree]:  # fmt: skip
    """Returns (loss at θ, the gradient to step along, updated statistics) of a mini-batch.

    It is `objective.loss_gradient`, or with `sam_radius` = ρ > 0 the gradient at θ + ε, where

        ε = ρ g / ‖g‖,  or with `sam_adaptive`  ε = ρ θ² g / ‖θ g‖,    g = ∇L(θ).

    Args:
      params: θ.
      stats: the model's running statistics, which only the pass at θ updates.
      batch: the mini-batch.
      at: (θ) -> the model's parameters, see `objective.loss_gradient`.
      release: the number, from 0, of this gradient among those of one step and key: with `dp_clip` each has
        noise of its own.
    """
    own = self.settings
    batch = batch if self.private else augmented(batch, own)
    loss, gradient, stats_after = self._plain_gradient(params, stats, batch, at, 2 * release)
    if is_zero(own["sam_radius"]):
      return loss, gradient, stats_after
    scaled = jax.tree.map(lambda g, p: g * p, gradient, params) if own["sam_adaptive"] else gradient
    factor = own["sam_radius"] / (optax.tree.norm(scaled) + 1e-12)
    if own["sam_adaptive"]:
      scaled = jax.tree.map(lambda g, p: g * p, scaled, params)
    higher = jax.tree.map(lambda p, g: p + factor * g, params, scaled)
    return loss, self._plain_gradient(higher, stats, batch, at, 2 * release + 1)[1], stats_after

  def _plain_gradient(
    self, params: PyTree, stats: PyTree, batch: Any, at: Callable[[PyTree], PyTree] | None, release: int
  ) -> tuple[jax.Array, PyTree, PyTree]:
    """Returns `objective.loss_gradient`, or with `dp_clip` the noised gradient of `private`."""
    model, more = self.trained, (at, self._terms, self.outputs)

    def found(own: Batch) -> tuple[jax.Array, PyTree, PyTree]:
      return objective.loss_gradient(model, params, stats, own, *more)

    if not self.private:
      return found(batch)
    change = lambda own: augmented(own, self.settings)  # noqa: E731
    noisy = noised_gradient(lambda own: found(own)[:2], batch, self.settings, release, change)
    return *noisy, stats

  @property
  def private(self) -> bool:
    """Returns whether training has record-level differential privacy."""
    return self.settings["dp_clip"] is not None

  @property
  def trained(self) -> Model:
    """Returns the model with the loss that training minimises, see `label_smoothing` and `mixup`."""
    model, share, rule = self.model, self.settings["label_smoothing"], self.settings["calibration"]
    task = model.task
    there = None
    if rule != "none":
      if self.counts is None:
        problem = "goes by the client's label counts, and this local training was not given its examples"
        raise SettingError("calibration", rule, problem, "Train by recipe.fitted(data).")
      task = calibrated(task, rule, self.settings["calibration_strength"], self.counts)
      there = self.counts > 0 if rule in LEAVING_OUT else None
    task = task if is_zero(share) else objective.smoothed(task, share, there)
    task = task if is_zero(self.settings["mixup"]) else mixed(task)
    model = model if task is model.task else model._replace(task=task)
    return model if self._terms is None and self.outputs is None else with_features(model)

  @property
  def _terms(self) -> objective.Term | None:
    """Returns the sum of the method's own term and of `decorrelate`; None if there is neither."""
    own, weight = self.term, self.settings["decorrelate"]
    if is_zero(weight):
      return own

    def both(params: PyTree, seen: objective.Seen) -> jax.Array:
      penalty = weight * correlation(seen.features, seen.batch)
      return penalty if own is None else own(params, seen) + penalty

    return both

  def fitted(self, data: ClientData) -> "Recipe":
    """Returns the recipe for a client with these examples."""
    if self.settings["calibration"] == "none" or self.counts is not None:
      return self
    return self._replace(counts=counts_of(data, self.model.num_classes))

  @property
  def counted(self) -> Callable[[jax.Array, jax.Array], jax.Array] | None:
    """See `LocalTraining.counted`; None for optimisers whose update is no sum of gradients."""
    if self.settings["optimizer"] not in SUMMING:
      return None
    return lambda steps, round: times_counted(steps, self.settings["momentum"])

  def per_gradient(self, steps: jax.Array, round: int | jax.Array) -> jax.Array:
    """Computes 1 / (η a_n), float32 scalar; times x - y, the n steps from x to y, it is their mean gradient.

    It is infinite where the rate has decayed so far that float32 cannot hold the quotient. For recipes of
    local SGD only, see `recipe_of`'s `reader`.
    """
    return 1.0 / (self.rate(round) * times_counted(steps, self.settings["momentum"]))

  def steps(self, data: ClientData) -> int | Array:
    """Returns the most steps that a client takes in a round."""
    return self.steps_of(data.length)

  def steps_of(self, length: int | Array) -> int | Array:
    """Returns the most steps that a client with so many examples takes in a round."""
    own = self.settings
    if own["steps"] is not None:
      return own["steps"]
    return own["epochs"] * batches_of(length, own["batch_size"])

  def for_each_batch(
    self,
    key: jax.Array,
    data: ClientData,
    step: Callable[[PyTree, Batch], PyTree],
    carry: PyTree,
    first: int | jax.Array = 0,
    last: int | jax.Array | None = None,
  ) -> PyTree:
    """Folds `step` over a client's mini-batches of one round, see `local.for_each_batch`.

    With `dp_clip` the batches are those of `dp_sampling`, and `step` receives them as `private.SealedBatch`.
    """
    own, data, name = self.settings, *opened(data)
    if self.private:
      expected, plain = jnp.minimum(own["batch_size"], jnp.float32(data.length)), step
      step = lambda carry, batch: plain(carry, cast(Batch, SealedBatch(batch, expected, name)))  # noqa: E731
    epochs = own["epochs"]
    most: int | jax.Array | None = None
    if own["steps"] is not None:
      epochs = most = own["steps"]
    elif own["min_epochs"] is not None:
      drawn = jax.random.randint(jax.random.fold_in(key, EPOCHS), (), own["min_epochs"], epochs + 1)
      most = drawn * steps_per_epoch(data, own["batch_size"])
    if most is not None:
      last = jnp.int32(most) if last is None else jnp.minimum(last, most)
    if self.private and own["dp_sampling"] == "poisson":
      capacity = own["dp_capacity"] or capacity_of(own["batch_size"])
      return for_each_drawn_batch(
        key, data, own["batch_size"], capacity, self.steps(data), step, carry, first, last
      )
    return for_each_batch(key, data, own["batch_size"], epochs, step, carry, first, last)

  def with_epochs(self, epochs: int | None) -> "Recipe":
    """Returns the recipe with another number of epochs, for a second local training; None keeps it."""
    if epochs is None:
      return self
    own = {**self.settings, "epochs": epochs, "steps": None, "min_epochs": None}
    return self._replace(settings=cast(LocalSettings, own))

  def remarks(self, data: FederatedData) -> Iterator[str]:
    """Yields a sentence for each setting that was changed and that the others leave without effect."""
    own, usual = cast(dict, self.settings), cast(dict, with_defaults(LocalSettings, {}))
    for name, beside in self._unused().items():
      if not isinstance(own[name], jax.Array) and own[name] != usual[name]:
        yield f"{name} = {own[name]}: no effect beside {beside}."

  def _unused(self) -> dict[str, str]:
    """Returns the settings without effect -> the setting on which that depends, with its value."""
    own = self.settings
    found: dict[str, str] = {}
    if isinstance(chosen := own["optimizer"], str):
      found |= {name: f"optimizer = {called}" for name, called in unused_settings(chosen).items()}
    if own["steps"] is not None:
      found |= dict.fromkeys(("epochs", "min_epochs"), f"steps = {own['steps']}")
    if own["schedule"] == "constant":
      found["schedule_rounds"] = "schedule = constant"
    if is_zero(own["sam_radius"]):
      found["sam_adaptive"] = "sam_radius = 0"
    if own["calibration"] == "none":
      found["calibration_strength"] = "calibration = none"
    if own["calibration"] in BELOW_ONE and is_one(own["calibration_strength"]):
      found["calibration"] = "calibration_strength = 1"
    if own["dp_clip"] is None:
      found |= dict.fromkeys(OF_PRIVACY[1:], "dp_clip = None")
    return found


def check_plain_labels(recipe: Recipe, name: str) -> None:
  """Raises `SettingError` if a method whose term reads labels, called `name`, is given mixed ones."""
  if not is_zero(recipe.settings["mixup"]):
    problem = f"mixes labels, and {name} reads the label of each example"
    raise SettingError("mixup", recipe.settings["mixup"], problem, "Leave it out.")


def sharpened(given: LocalSettings, rho: float | jax.Array, name: str) -> LocalSettings:
  """Returns settings with the radius ρ of a method of sharpness-aware steps, called `name`.

  Raises:
    SettingError: `sam_radius` is given as well.
  """
  if not is_zero(given.get("sam_radius", 0.0)):
    problem = f"{name} sets the radius of its sharpness-aware steps by rho"
    raise SettingError("sam_radius", given["sam_radius"], problem, "Set rho, and leave sam_radius out.")
  return {**given, "sam_radius": rho}  # type: ignore[typeddict-item]


def recipe_of(model: Model, given: LocalSettings, reader: str = "") -> Recipe:
  """Returns local training of `model` with these settings and the defaults of the others.

  Args:
    model: the model that clients train.
    given: settings of local training.
    reader: the name of a method that reads the mean gradient out of the update, for which the steps must be
      SGD's; "" for other methods.

  Raises:
    SettingError: `model` is not a `Model`; `optimizer` is a function that cannot be used, or settings of our
      optimisers are given beside it, or it is not SGD and there is a `reader`; `schedule` has no
      `schedule_rounds`; `min_epochs` is above `epochs`; `label_smoothing` or `calibration` does not go with
      the model's labels; images are augmented and the model takes others; `dp_clip` cannot bound a record's
      influence.
  """
  objective.check_model(model)
  own = with_defaults(LocalSettings, given)
  check_private(model, own)
  own["optimizer"] = optimizer_of(own["optimizer"])
  if reader and own["optimizer"] not in SUMMING:
    problem = f"replaces local SGD, out of whose steps {reader} reads the mean gradient"
    raise SettingError("optimizer", own["optimizer"], problem, "Leave it out.")
  if not isinstance(own["optimizer"], str):
    usual = with_defaults(LocalSettings, {})
    ours = {name: own[name] for name in OURS}  # type: ignore[literal-required]
    others = {
      name: value for name, value in ours.items()
      if isinstance(value, jax.Array) or value != usual[name]  # type: ignore[literal-required]
    }  # fmt: skip
    objective.check_optimizer(own["optimizer"], own["lr"], others)
  if own["schedule"] != "constant" and own["schedule_rounds"] is None:
    remedy = (
      f"Give the run's number of rounds, such as schedule_rounds=100, with schedule={own['schedule']!r}."
    )
    raise SettingError("schedule_rounds", None, "the schedule does not know its end", remedy)
  if own["min_epochs"] is not None and own["min_epochs"] > own["epochs"]:
    problem = f"above epochs = {own['epochs']}"
    raise SettingError("min_epochs", own["min_epochs"], problem, "Lower it, or raise epochs.")
  check_augmentation(model.shape, own)
  recipe = checked = Recipe(model, own)
  if (rule := own["calibration"]) != "none":
    check_classes("calibration", rule, model.task, model.num_classes, counted=True)
    if rule in BELOW_ONE:
      check_range("calibration_strength", own["calibration_strength"], high=1.0)
    checked = recipe._replace(counts=jnp.ones(model.num_classes))
  checked.trained  # noqa: B018 - checks the task
  return recipe
