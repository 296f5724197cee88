"""Assembles a `ClientUpdate` from local training: what is evaluated, and lines between two models."""

import math
from collections.abc import Callable
from typing import Any, cast

import jax

from fedjax_het.clients.objective import training_loss
from fedjax_het.clients.private import records_of, refused_losses, sealed
from fedjax_het.clients.recipe import Recipe
from fedjax_het.clients.statistics import own_statistics
from fedjax_het.errors import SettingError
from fedjax_het.models import Model
from fedjax_het.parts import (
  ClientUpdate,
  Context,
  InitBroadcastFn,
  LocalTraining,
  LossFn,
  Message,
  Needs,
  PersonalizeFn,
  Studies,
  in_one_go,
)

PyTree = Any


def received(model: Model) -> Callable[[Message], PyTree]:
  """Returns broadcast -> the received model, as `Model.logits` takes it."""
  return lambda broadcast: model.joined(broadcast.params, broadcast.stats)


def line(
  model: Model, batch_size: int, local: Callable[[PyTree], PyTree] = lambda state: state
) -> PersonalizeFn:
  """Returns `Studies.line`: models on the line from the received model to one that the client keeps.

  Running statistics of a model on the line are no mixture of the endpoints' statistics: every model of the
  line, the endpoints too, has statistics estimated from the client's training examples, see
  `statistics.own_statistics`.

  Args:
    model: the model.
    batch_size: size of the batches that statistics are estimated from.
    local: (state) -> the kept model, with or without statistics; by default the state itself.
  """

  def at(broadcast: Message, state: PyTree, data: Any, context: Context, lam: jax.Array) -> PyTree:
    ends = broadcast.params, model.split(local(state)).params
    params = jax.tree.map(lambda f, l: (1.0 - lam) * f + lam * l, *ends)
    if not model.stateful:
      return params
    return model.joined(params, own_statistics(model, params, broadcast.stats, data, batch_size))

  return at


def starts_within(
  start_round: float | jax.Array, else_: str, *, or_never: bool = False
) -> Callable[[int], None]:
  """Returns `Needs.check_rounds` for a method whose second phase begins in `start_round`.

  Args:
    start_round: round of the start, counted from 0; a traced value passes, since values were checked before.
    else_: what happens in a run that ends before, for the error message.
    or_never: whether infinity, no second phase, is allowed.
  """

  def check_rounds(rounds: int) -> None:
    if isinstance(start_round, jax.core.Tracer) or (or_never and start_round == math.inf):
      return
    if start_round == math.inf:
      remedy = f"Use 0 to {rounds - 1}, or a smaller share."
      raise SettingError("start_round", start_round, f"never comes (start = 1.0): {else_}", remedy)
    if start_round >= rounds:
      raise SettingError(
        "start_round", start_round, f"not within rounds = {rounds}: {else_}",
        f"Use 0 to {rounds - 1}, {'math.inf for never, ' if or_never else ''}or more rounds.",
      )  # fmt: skip

  return check_rounds


def supervised(
  recipe: Recipe,
  training: LocalTraining,
  own_model: Callable[[Message, PyTree, Context], PyTree] | None = None,
  *,
  name: str,
  init: Callable[..., PyTree] = lambda *_: (),
  init_broadcast: InitBroadcastFn | None = None,
  global_model: Callable[[Message], PyTree] | None = None,
  line: PersonalizeFn | None = None,
  apply: Callable[[PyTree, jax.Array], jax.Array] | None = None,
) -> ClientUpdate:
  """Returns the client part of a method that trains the model of `recipe`.

  Args:
    recipe: local training as the settings describe it; its remarks are the part's.
    training: local training of the method.
    own_model: (broadcast, state, context) -> the personalised model: F_i is its loss, and it is evaluated.
      None for a method without one: the received model is then the personalised and the global one.
    name: the method's name.
    init: initial client state, see `ClientUpdate`; by default a client keeps nothing.
    init_broadcast: the first broadcast, see `ClientUpdate`; by default the whole model is shared.
    global_model: the global model, see `ClientUpdate`.
    line: models between the received and a kept model, see `Studies`.
    apply: (personalised or global model, x [B, ...]) -> outputs, for a method whose personalised model is
      more than parameters of the recipe's; None for `Model.logits`.
  """
  model = recipe.model
  if own_model is None:
    global_model = received(model)
    own = lambda broadcast, state, context: received(model)(broadcast)  # noqa: E731
  else:
    own = own_model
  records = records_of(recipe.settings, training) if recipe.private else None
  judged = model if apply is None else model._replace(apply=apply, stats=())

  def loss(broadcast: Message, state: PyTree, data: Any, context: Context) -> jax.Array:
    return training_loss(judged, own(broadcast, state, context), data)

  return ClientUpdate(
    init_broadcast=init_broadcast or (lambda key: Message(model.init(key), stats=model.stats)),
    init=init,
    update=in_one_go(sealed(training, name) if recipe.private else training),
    loss=cast(LossFn, refused_losses) if recipe.private else loss,
    personalize=lambda broadcast, state, data, context, lam: own(broadcast, state, context),
    apply=model.logits if apply is None else apply,
    task=model.task,
    global_model=global_model,
    name=name,
    studies=Studies(line=line, model=model if apply is None else None, records=records),
    needs=Needs(sees_data=("personalize",) if line and model.stateful else (), remarks=recipe.remarks),
  )
