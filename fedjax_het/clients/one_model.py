"""Local training of one model, for methods that add a correction, a term or a state to FedAvg's."""

from collections.abc import Callable
from typing import Any

import jax

from fedjax_het.clients import sgd
from fedjax_het.clients.objective import Outputs, Term
from fedjax_het.clients.recipe import Recipe
from fedjax_het.data.container import ClientData
from fedjax_het.parts import Context, Info, LocalTraining, Message

PyTree = Any
Correct = Callable[[PyTree, PyTree], PyTree]  # (gradient, θ) -> the gradient to step along


def one_model(
  recipe: Recipe,
  *,
  begin: Callable[[Message, PyTree, Context], tuple[PyTree, PyTree]] | None = None,
  correct: Callable[[Message, PyTree, Context], Correct | None] | None = None,
  term: Callable[[Message, PyTree, Context], Term | None] | None = None,
  finish: Callable[[Message, PyTree, Context, sgd.Local], tuple[Message, PyTree]] | None = None,
  at: Callable[[sgd.Step, PyTree], PyTree] | None = None,
  outputs: Callable[[Message, PyTree, Context], Outputs] | None = None,
) -> LocalTraining:
  """Returns FedAvg's local training with a method's own pieces; without any it is FedAvg's.

  Args:
    recipe: the model, its gradient and the order of the steps.
    begin: (broadcast, state, context) -> (θ, running statistics) before the first step; by default those of
      the broadcast.
    correct: (broadcast, state, context) -> `Correct`, which makes the gradient to step along of ∇F_i; None
      for ∇F_i itself.
    term: (broadcast, state, context) -> the method's term of the loss, see `Recipe.term`; None for none.
    finish: (broadcast, state, context, trained) -> (upload, next state); by default the trained model is
      uploaded and the state stays.
    at: see `sgd.run_steps`.
    outputs: (broadcast, state, context) -> the outputs that the loss is of, see `Recipe.outputs`; None for
      the model's.
  """

  def start(broadcast: Message, state: PyTree, context: Context) -> sgd.Local:
    first = (broadcast.params, broadcast.stats) if begin is None else begin(broadcast, state, context)
    return sgd.start(*first, recipe.optimizer(context))

  def run_steps(
    key: jax.Array, broadcast: Message, state: PyTree, data: ClientData, context: Context, local: sgd.Local,
    first: Any, last: Any,
  ) -> sgd.Local:  # fmt: skip
    asked = broadcast, state, context
    own = recipe if term is None else recipe._replace(term=term(*asked))
    own = own if outputs is None else own._replace(outputs=outputs(*asked))
    along = None if correct is None else correct(broadcast, state, context)
    return sgd.run_steps(key, own, data, local, recipe.optimizer(context), along, first, last, at)

  def end(broadcast: Message, state: PyTree, data: ClientData, context: Context, local: sgd.Local):
    upload, after = Message(local.params, stats=local.stats), state
    if finish is not None:
      upload, after = finish(broadcast, state, context, local)
    return upload, after, Info.of_sum(local.loss, local.steps)

  return LocalTraining(recipe.steps, start, run_steps, end, recipe.gradients, recipe.counted)
