r"""Ditto: a global model by FedAvg, and a personalised model regularised towards it.

Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021, algorithm 1.

A client trains the received θ^g as in FedAvg and uploads the result. It then minimises, starting from its
personalised model v_i of the previous round,

    F_i(v) + (λ/2)·‖v - θ^g‖²,      with θ^g as received,

and keeps the result as v_i, which is the model it is evaluated with.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Unpack

import jax
import optax

from fedjax_het.clients import sgd
from fedjax_het.clients.local_settings import LocalSettings
from fedjax_het.clients.recipe import Recipe, recipe_of
from fedjax_het.clients.sgd import afterwards, mean_loss
from fedjax_het.clients.supervised import line, received, supervised
from fedjax_het.data.container import ClientData
from fedjax_het.models import Model
from fedjax_het.parts import ClientUpdate, LocalTraining, Message
from fedjax_het.settings import Count, NonNegative, checked

PyTree = Any


class Pair(NamedTuple):
  """Training states of the received model and of the client's personalised model, trained in this order."""

  received: sgd.Local
  own: sgd.Local


def walk_both(
  key: jax.Array,
  recipes: tuple[Recipe, Recipe],
  data: ClientData,
  work: Pair,
  optimizer: optax.GradientTransformation,
  near: Callable[[PyTree, PyTree], PyTree],
  first: int | jax.Array = 0,
  last: int | jax.Array | None = None,
  at: Callable[[sgd.Step, PyTree], PyTree] | None = None,
) -> Pair:
  """Runs SGD on the received model, then on the client's personalised model with a proximal gradient term.

  Args:
    key: typed PRNG key.
    recipes: local training of the received model and of the personalised model.
    data: the client's examples.
    work: training states of both models.
    optimizer: optimiser of both models.
    near: (gradient, params) -> gradient of the personalised model with the proximal term, see
      `sgd.proximal_gradient`.
    first: the first step to take, see `sgd.run_steps`; steps of both models are counted together.
    last: the step before which to stop; None takes all.
    at: (step, params) -> the model's parameters, see `sgd.run_steps`.
  """
  received = sgd.run_steps(key, recipes[0], data, work.received, optimizer, None, first, last, at)
  first, last, key = afterwards(recipes[0].steps(data), first, last, key)
  return Pair(received, sgd.run_steps(key, recipes[1], data, work.own, optimizer, near, first, last, at))


@checked
def ditto(
  model: Model,
  *,
  lam: NonNegative = 1.0,
  local_epochs: Count | None = None,
  **local: Unpack[LocalSettings],
) -> ClientUpdate:
  """Ditto's client part; its state is the personalised model v_i, initialised to the first θ^g.

  The global model is FedAvg's.

  Args:
    model: the model that clients train.
    lam: λ >= 0, weight of the proximal term; 0 is purely local training of v_i.
    local_epochs: epochs of the personalised model per round, after those of the received model; None takes
      as many as `epochs`. The paper's experiments use 5.
    **local: local training, see `LocalSettings`; `epochs` are the received model's, and each of both models
      has an optimiser state of its own.

  Raises:
    SettingError: a setting is out of range.
  """
  recipe = recipe_of(model, local)
  recipes = recipe, recipe.with_epochs(local_epochs)

  def start(broadcast, state, context) -> Pair:
    tx = recipe.optimizer(context)
    return Pair(sgd.start(broadcast.params, broadcast.stats, tx), sgd.start(*model.split(state), tx))

  def run_steps(key, broadcast, state, data, context, work: Pair, first, last) -> Pair:
    near = sgd.proximal_gradient(broadcast.params, lam)
    return walk_both(key, recipes, data, work, recipe.optimizer(context), near, first, last)

  def finish(broadcast, state, data, context, work: Pair):
    upload = Message(work.received.params, stats=work.received.stats)
    return upload, model.joined(work.own.params, work.own.stats), mean_loss(*work)

  def steps(data):
    return recipes[0].steps(data) + recipes[1].steps(data)

  training = LocalTraining(steps, start, run_steps, finish, recipe.gradients)
  return supervised(
    recipe, training, lambda broadcast, state, *_: state, name="ditto",
    init=lambda key, broadcast, *_: received(model)(broadcast), global_model=received(model),
    line=line(model, recipe.settings["batch_size"]),
  )  # fmt: skip
