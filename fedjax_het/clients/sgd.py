r"""FedAvg and FedProx: local SGD from the received model, with a proximal term in FedProx.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017.
Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020.

Each client minimises  F_i(θ) + (μ/2)·‖θ - θ^g‖²  by mini-batch steps from θ = θ^g; μ = 0 is FedAvg.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import optax

from fedjax_het.clients.gradient_weights import times_counted_near
from fedjax_het.clients.local_settings import LocalSettings
from fedjax_het.clients.objective import updates_barrier
from fedjax_het.clients.recipe import Recipe, recipe_of
from fedjax_het.clients.supervised import supervised
from fedjax_het.clients.variant import variant_of
from fedjax_het.data.container import Array, ClientData
from fedjax_het.errors import is_zero
from fedjax_het.local import Batch
from fedjax_het.models import Model
from fedjax_het.parts import ClientUpdate, Info, LocalTraining, Message
from fedjax_het.settings import NonNegative, checked

PyTree = Any
LATER = 2**31 - 2  # folded into the key of a second training phase; epochs fold in 0, 1, ...


class Local(NamedTuple):
  """State of local training: parameters, optimiser state, sums for `Info`, and running statistics."""

  params: PyTree
  optimizer: PyTree
  loss: jax.Array
  steps: jax.Array
  stats: PyTree = ()


class Step(NamedTuple):
  """Identifies a local step: the round's training key, the step's number from 0, and the step's key."""

  walk: jax.Array
  number: jax.Array
  key: jax.Array


def start(params: PyTree, stats: PyTree, optimizer: optax.GradientTransformation) -> Local:
  """Returns the state of local training before the first step."""
  return Local(params, optimizer.init(params), jnp.float32(0.0), jnp.int32(0), stats)


def proximal_gradient(center: PyTree, mu: float | jax.Array) -> Callable[[PyTree, PyTree], PyTree]:
  """Returns (gradient, params) -> the gradient plus that of the proximal term (μ/2)·‖θ - center‖²."""
  return lambda gradient, params: jax.tree.map(lambda g, a, b: g + mu * (a - b), gradient, params, center)


def stepped(
  local: Local, optimizer: optax.GradientTransformation, gradient: PyTree, loss: jax.Array, stats: PyTree
) -> Local:
  """Returns the training state after one step of the optimiser.

  Args:
    local: the state before the step.
    optimizer: the optimiser.
    gradient: what it steps along, a tree like the parameters.
    loss: the mini-batch's loss, float32 scalar.
    stats: the running statistics after the mini-batch.
  """
  updates, state = optimizer.update(gradient, local.optimizer, local.params)
  params = optax.apply_updates(local.params, updates_barrier(updates))
  return Local(params, state, local.loss + loss, local.steps + 1, stats)


def run_steps(
  key: jax.Array,
  recipe: Recipe,
  data: ClientData,
  local: Local,
  optimizer: optax.GradientTransformation,
  correct: Callable[[PyTree, PyTree], PyTree] | None = None,
  first: int | jax.Array = 0,
  last: int | jax.Array | None = None,
  at: Callable[[Step, PyTree], PyTree] | None = None,
) -> Local:
  """Runs mini-batch SGD on F_i and returns the training state after the last step.

  Args:
    key: typed PRNG key of the round.
    recipe: the model, its gradient and the order of the steps.
    data: the client's examples.
    local: state before the first step.
    optimizer: the optimiser.
    correct: (∇F_i, θ) -> the gradient to step along, for example with a proximal term; None for ∇F_i.
    first: the first step to take, see `for_each_batch`.
    last: the step before which to stop; None takes all.
    at: (step, θ) -> the model's parameters, if θ is not a model's parameters but determines them; the
      objective is then F_i(at(step, θ)).
  """

  recipe = recipe.fitted(data)

  def step(local: Local, batch: Batch) -> Local:
    here = None if at is None else functools.partial(at, Step(key, local.steps, batch.key))
    loss, gradient, stats = recipe.gradient(local.params, local.stats, batch, here)
    if correct is not None:
      gradient = correct(gradient, local.params)
    return stepped(local, optimizer, gradient, loss, stats)

  return recipe.for_each_batch(key, data, step, local, first, last)


def afterwards(
  steps: int | Array, first: int | jax.Array, last: int | jax.Array | None, key: jax.Array
) -> tuple[int | jax.Array, int | jax.Array | None, jax.Array]:
  """Returns (first, last, key) for a second training phase that follows `steps` steps of a first one."""
  key = jax.random.fold_in(key, LATER)
  if last is None:
    return first, None, key
  return jnp.maximum(first - steps, 0), jnp.maximum(last - steps, 0), key


def mean_loss(one: Local, other: Local) -> Info:
  """Returns `Info` with the mean loss over all steps of two training phases."""
  steps = one.steps + other.steps
  return Info.of_sum(one.loss + other.loss, steps)


@checked
def fedprox(
  model: Model,
  *,
  mu: NonNegative | jax.Array | None = 0.01,
  name: str = "fedprox",
  **local: Unpack[LocalSettings],
) -> ClientUpdate:
  """FedProx's client part; the personalised model is the global one.

  Args:
    model: the model that clients train.
    mu: μ >= 0, weight of the proximal term; None omits it.
    name: name of the method in tables.
    **local: local training, see `LocalSettings`.

  Raises:
    SettingError: a setting is out of range.
  """
  recipe = recipe_of(model, local)

  def counted(steps: jax.Array, round: jax.Array) -> jax.Array:
    pull = recipe.rate(round) * jnp.asarray(mu, jnp.float32)
    return times_counted_near(steps, recipe.settings["momentum"], pull)

  training = LocalTraining(
    steps=recipe.steps,
    start=lambda broadcast, state, context: start(
      broadcast.params, broadcast.stats, recipe.optimizer(context)
    ),
    run_steps=lambda key, broadcast, state, data, context, local, first, last: run_steps(
      key, recipe, data, local, recipe.optimizer(context),
      None if mu is None else proximal_gradient(broadcast.params, mu), first, last,
    ),
    finish=lambda broadcast, state, data, context, local: (
      Message(local.params, stats=local.stats), state, Info.of_sum(local.loss, local.steps)
    ),
    gradients=recipe.gradients,
    counted=recipe.counted if mu is None or is_zero(mu) or recipe.counted is None else counted,
  )  # fmt: skip

  return supervised(recipe, training, name=name)


@variant_of(fedprox, "mu", "name")
def fedavg(model: Model, **settings) -> ClientUpdate:
  """FedAvg's client part: `fedprox` without the proximal term; see there for the settings."""
  return fedprox(model, mu=None, name="fedavg", **settings)
