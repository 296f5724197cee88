r"""FedAvg and FedProx: local SGD from the received model.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017.
Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020.

Each client minimises  F_i(θ) + (μ/2)·‖θ - θ^g‖²  by mini-batch steps from θ = θ^g; μ = 0 is FedAvg.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_het.clients.objective import Optimizer, loss_gradient, together
from fedjax_het.clients.supervised import received, scheduled, supervised
from fedjax_het.clients.variant import variant_of
from fedjax_het.data.container import Array, ClientData
from fedjax_het.local import Batch, for_each_batch, steps_per_epoch
from fedjax_het.models import Model
from fedjax_het.parts import ClientUpdate, Info, LocalTraining, Message

PyTree = Any
LATER = 2**31 - 2  # folded into the key of what is trained later; epochs fold in their numbers, from 0 on


class Local(NamedTuple):
  """What changes in local training: the model, its optimiser's state, the sums for `Info`, its statistics."""

  params: PyTree
  optimizer: PyTree
  loss: jax.Array
  steps: jax.Array
  stats: PyTree = ()


class Step(NamedTuple):
  """A step of a walk: the walk's key, the step's number from 0 in this round, and a key of its own."""

  walk: jax.Array
  number: jax.Array
  key: jax.Array


def start(params: PyTree, stats: PyTree, optimizer: optax.GradientTransformation) -> Local:
  """Before the first step."""
  return Local(params, optimizer.init(params), jnp.float32(0.0), jnp.int32(0), stats)


def near(center: PyTree, mu: float | jax.Array) -> Callable[[PyTree, PyTree], PyTree]:
  """Adds the gradient of (μ/2)·‖θ - center‖²."""
  return lambda gradient, params: jax.tree.map(lambda g, a, b: g + mu * (a - b), gradient, params, center)


def walk(
  key: jax.Array,
  model: Model,
  data: ClientData,
  local: Local,
  optimizer: optax.GradientTransformation,
  epochs: int,
  batch_size: int,
  correct: Callable[[PyTree, PyTree], PyTree] | None = None,
  first: int | jax.Array = 0,
  last: int | jax.Array | None = None,
  at: Callable[[Step, PyTree], PyTree] | None = None,
) -> Local:
  """Steps of SGD on F_i(θ), along the gradients that `correct` makes of (∇F_i, θ); None leaves them.

  With `at` on F_i(at(the step, θ)), for a θ that is no model but makes one.
  """

  def step(local: Local, batch: Batch) -> Local:
    here = None if at is None else functools.partial(at, Step(key, local.steps, batch.key))
    loss, gradient, stats = loss_gradient(model, local.params, local.stats, batch, here)
    if correct is not None:
      gradient = correct(gradient, local.params)
    updates, state = optimizer.update(gradient, local.optimizer, local.params)
    params = optax.apply_updates(local.params, together(updates))
    return Local(params, state, local.loss + loss, local.steps + 1, stats)

  return for_each_batch(key, data, batch_size, epochs, step, local, first, last)


def afterwards(
  steps: int | Array, first: int | jax.Array, last: int | jax.Array | None, key: jax.Array
) -> tuple[int | jax.Array, int | jax.Array | None, jax.Array]:
  """The first and last step and the key of what is trained after so many steps of something else."""
  key = jax.random.fold_in(key, LATER)
  if last is None:
    return first, None, key
  return jnp.maximum(first - steps, 0), jnp.maximum(last - steps, 0), key


def mean_loss(one: Local, other: Local) -> Info:
  """Of all steps of two local trainings."""
  steps = one.steps + other.steps
  return Info.of_sum(one.loss + other.loss, steps)


def fedprox(
  model: Model,
  *,
  mu: float | jax.Array | None = 0.01,
  lr: float = 0.01,
  lr_decay: float = 1.0,
  momentum: float = 0.9,
  weight_decay: float = 1e-4,
  epochs: int = 10,
  batch_size: int = 10,
  optimizer: Optimizer | None = None,
  name: str = "fedprox",
) -> ClientUpdate:
  """FedProx's client part; the personalised model is the global one.

  Args:
    model: the model.
    mu: μ >= 0, weight of the proximity term; None leaves it out.
    lr: η > 0 in round 0.
    lr_decay: factor on η each round, in (0, 1].
    momentum: momentum of local SGD, fresh each round.
    weight_decay: weight decay of local SGD.
    epochs: E, passes through a client's data each round.
    batch_size: B; a last partial batch is used.
    optimizer: in place of SGD, its momentum and weight decay: η -> an optax transformation, fresh each round.
    name: name in tables.

  Raises:
    SettingError: a setting out of range.
  """
  tx_of = scheduled(
    mu=0.0 if mu is None else mu, lr=lr, lr_decay=lr_decay, momentum=momentum, weight_decay=weight_decay,
    epochs=epochs, batch_size=batch_size, optimizer=optimizer,
  )  # fmt: skip

  training = LocalTraining(
    steps=lambda data: epochs * steps_per_epoch(data, batch_size),
    start=lambda broadcast, state, context: start(
      broadcast.params, broadcast.stats, tx_of(context)
    ),
    walk=lambda key, broadcast, state, data, context, local, first, last: walk(
      key, model, data, local, tx_of(context), epochs, batch_size,
      None if mu is None else near(broadcast.params, mu), first, last,
    ),
    finish=lambda broadcast, state, data, context, local: (
      Message(local.params, stats=local.stats), state, Info.of_sum(local.loss, local.steps)
    ),
  )  # fmt: skip

  def own_model(broadcast: Message, state: PyTree, *_) -> PyTree:
    return received(model)(broadcast)

  return supervised(model, training, own_model, name=name, globalize=received(model))


@variant_of(fedprox, "mu", "name")
def fedavg(model: Model, **settings) -> ClientUpdate:
  """FedAvg's client part: `fedprox` without its proximity term; see there for the settings."""
  return fedprox(model, mu=None, name="fedavg", **settings)
