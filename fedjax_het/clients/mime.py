r"""Mime and MimeLite: clients step as the server's momentum optimiser would, with momentum that stays.

Karimireddy et al., Breaking the Centralized Barrier for Cross-Device Federated Learning, NeurIPS 2021, for
SGD with momentum; FedJAX's code was read. The server keeps the momentum m, at first 0. With the cohort's mean
c = Σ_i w_i ∇F_i(θ) of gradients over all examples at the received θ, local steps from w = θ along
mini-batches b are

    mimelite   w <- w - η ((1 - β) ∇f_i(w; b) + β m),
    mime       w <- w - η ((1 - β) (∇f_i(w; b) - ∇f_i(θ; b) + c) + β m),

θ <- Σ_i p_i w_i, and m <- (1 - β) c + β m. Mime needs c before the round: in a first pass clients send
(1 - β) ∇F_i(θ) + β m, whose mean by w_i = n_i / n is the next m. Mime's step then is the next m plus (1 - β)
(∇f_i(w; b) - ∇f_i(θ; b)). MimeLite's clients send the same with their models, and w_i = p_i.

∇F_i(θ) is the mean over one epoch of the gradients of local training, whatever its settings.
"""

from typing import Any, Unpack

import jax
import jax.numpy as jnp

from fedjax_het.clients import sgd
from fedjax_het.clients.local_settings import SUMMING, LocalSettings, optimizer_of
from fedjax_het.clients.one_model import one_model
from fedjax_het.clients.recipe import Recipe, recipe_of
from fedjax_het.clients.supervised import supervised
from fedjax_het.data.container import ClientData
from fedjax_het.errors import SettingError, is_zero
from fedjax_het.local import Batch, for_each_batch
from fedjax_het.models import Model
from fedjax_het.parts import ClientUpdate, Context, LocalTraining, Message, Pooled
from fedjax_het.settings import Fraction, checked

PyTree = Any
WHOLE = 1_000_037  # key of the draws, such as dropout's, in the gradient over all examples


def whole_gradient(recipe: Recipe, broadcast: Message, data: ClientData, context: Context) -> PyTree:
  """Computes ∇F_i(θ), the mean over a client's examples of the gradients of local training's batches."""
  own, params = recipe.fitted(data), broadcast.params

  def add(total: PyTree, batch: Batch) -> PyTree:
    slope = own.gradient(params, broadcast.stats, batch)[1]
    share = batch.weight.sum() * (1.0 / jnp.float32(data.length))
    return jax.tree.map(lambda a, g: a + share * g, total, slope)

  key = jax.random.fold_in(jax.random.fold_in(jax.random.key(WHOLE), context.client), context.round)
  return for_each_batch(
    key, data, recipe.settings["batch_size"], 1, add, jax.tree.map(jnp.zeros_like, params)
  )


def next_momentum(momentum: PyTree, gradient: PyTree, beta: float | jax.Array) -> PyTree:
  """Returns (1 - β) g + β m."""
  return jax.tree.map(lambda m, g: (1.0 - beta) * g + beta * m, momentum, gradient)


def without_momentum(model: Model, given: LocalSettings, name: str) -> Recipe:
  """Returns local training by SGD without momentum, for a method whose momentum comes from the server.

  Args:
    model: the model that clients train.
    given: the settings of local training that the user gave.
    name: the method's name, for the error.

  Raises:
    SettingError: `optimizer` is not SGD.
  """
  if (chosen := optimizer_of(given.get("optimizer"))) not in SUMMING:
    problem = f"replaces SGD, whose momentum {name} takes from the server"
    raise SettingError("optimizer", chosen, problem, "Leave it out.")
  return recipe_of(model, {**given, "momentum": 0.0})  # type: ignore[typeddict-item]


def with_remark(part: ClientUpdate, given: LocalSettings) -> ClientUpdate:
  """Returns the part with a remark on `momentum`, if it is given."""
  beside = f"{part.name}, which has the server's; set beta"
  return part._replace(needs=part.needs.without_effect(beside, momentum=(given.get("momentum", 0.0), 0.0)))


@checked
def mimelite(model: Model, *, beta: Fraction = 0.9, **local: Unpack[LocalSettings]) -> ClientUpdate:
  """MimeLite's client part; the momentum travels in `Message.extra`.

  Args:
    model: the model that clients train.
    beta: β in [0, 1), the optimiser's momentum; 0 leaves it out and is FedAvg without momentum.
    **local: local training, see `LocalSettings`, without `optimizer`; `momentum` has no effect.

  Raises:
    SettingError: a setting is out of range, or `optimizer` is given.
  """
  recipe = without_momentum(model, local, "mimelite")
  if is_zero(beta):
    return with_remark(supervised(recipe, one_model(recipe), name="mimelite"), local)

  def correct(broadcast, state, context):
    return lambda gradient, params: next_momentum(broadcast.extra, gradient, beta)

  training = one_model(recipe, correct=correct)

  def finish(broadcast, state, data, context, local):
    upload, after, info = training.finish(broadcast, state, data, context, local)
    gradient = whole_gradient(recipe, broadcast, data, context)
    return upload._replace(extra=next_momentum(broadcast.extra, gradient, beta)), after, info

  def init_broadcast(key):
    params = model.init(key)
    return Message(params, jax.tree.map(jnp.zeros_like, params), model.stats)

  part = supervised(recipe, training._replace(finish=finish), name="mimelite", init_broadcast=init_broadcast)
  return with_remark(part, local)


@checked
def mime(model: Model, *, beta: Fraction = 0.9, **local: Unpack[LocalSettings]) -> ClientUpdate:
  """Mime's client part, with a first pass; the next momentum travels in `Message.pooled`.

  Args:
    model: the model that clients train.
    beta: β in [0, 1), the optimiser's momentum; with 0 the steps are along ∇f_i(w; b) - ∇f_i(θ; b) + c.
    **local: local training, see `LocalSettings`, without `optimizer`; `momentum` has no effect.

  Raises:
    SettingError: a setting is out of range, or `optimizer` is given.
  """
  recipe = without_momentum(model, local, "mime")
  plain = one_model(recipe)

  def first_pass(key, broadcast, state, data, context) -> Pooled:
    gradient = whole_gradient(recipe, broadcast, data, context)
    return Pooled(next_momentum(broadcast.pooled, gradient, beta), jnp.float32(data.length))

  def run_steps(key, broadcast, state, data, context, local, first, last):
    tx, own = recipe.optimizer(context), recipe.fitted(data)

    def step(local: sgd.Local, batch: Batch) -> sgd.Local:
      loss, here, stats = own.gradient(local.params, local.stats, batch)
      there = own.gradient(broadcast.params, broadcast.stats, batch, release=1)[1]
      along = jax.tree.map(lambda m, g, old: m + (1.0 - beta) * (g - old), broadcast.pooled, here, there)
      return sgd.stepped(local, tx, along, loss, stats)

    return recipe.for_each_batch(key, data, step, local, first, last)

  def init_broadcast(key):
    params = model.init(key)
    return Message(params, stats=model.stats, pooled=jax.tree.map(jnp.zeros_like, params))

  training = LocalTraining(recipe.steps, plain.start, run_steps, plain.finish, 2 * recipe.gradients)
  part = supervised(recipe, training, name="mime", init_broadcast=init_broadcast)
  return with_remark(part._replace(first_pass=first_pass), local)
