r"""FedBABU: only the body is trained and shared; the head stays as it was drawn until clients fine-tune.

Oh, Kim, Yun, FedBABU: Toward Enhanced Representation for Federated Image Classification, ICLR 2022, algorithm
1. The parameters are θ = (θ^b, θ^h), with the same random θ^h for all clients. A round is FedAvg's on θ^b. At
an evaluation a client trains a copy of the whole model on its examples, see `finetuned`.
"""

from typing import Annotated, Any, Unpack, cast

from fedjax_het.clients import sgd
from fedjax_het.clients.finetuned import FinetuneSettings, Layers, finetuned
from fedjax_het.clients.heads import Head, joined, parting, with_rest_fixed
from fedjax_het.clients.local_settings import LocalSettings, at_evaluations
from fedjax_het.clients.recipe import recipe_of
from fedjax_het.clients.supervised import supervised
from fedjax_het.models import Model
from fedjax_het.parts import ClientUpdate, Info, LocalTraining, Message
from fedjax_het.settings import Whole, checked

PyTree = Any


@checked
def fedbabu(
  model: Model,
  *,
  head: Head = "",
  finetune_epochs: Annotated[int, Whole(0)] = 5,
  finetune_layers: Layers = "all",
  **local: Unpack[LocalSettings],
) -> ClientUpdate:
  """FedBABU's client part; its state is the head, which no round changes and all clients have alike.

  There is no global model, as its head is not sent.

  Args:
    model: the model that clients train.
    head: layers of the head, see `heads.parting`.
    finetune_epochs: epochs of fine-tuning at an evaluation; 0 evaluates the body with the random head, and
      `finetune_layers` then has no effect.
    finetune_layers: which layers are fine-tuned: "all", those of the head that the model names, or its
      "body".
    **local: local training, see `LocalSettings`, of the rounds and of the fine-tuning.

  Raises:
    SettingError: a setting is out of range; when a run is set up, the model lacks a layer of the head.
  """
  recipe, part = recipe_of(model, local), parting(model, head)

  def start(broadcast, state, context):
    return sgd.start(broadcast.params, broadcast.stats, recipe.optimizer(context))

  def run_steps(key, broadcast, state, data, context, local, first, last):
    body = recipe._replace(model=with_rest_fixed(model, state))
    return sgd.run_steps(key, body, data, local, recipe.optimizer(context), None, first, last)

  def finish(broadcast, state, data, context, local):
    return Message(local.params, stats=local.stats), state, Info.of_sum(local.loss, local.steps)

  def own_model(broadcast: Message, state: PyTree, *_) -> PyTree:
    return model.joined(joined(broadcast.params, state), broadcast.stats)

  training = LocalTraining(recipe.steps, start, run_steps, finish, recipe.gradients, recipe.counted)
  made = supervised(
    recipe, training, own_model, name="fedbabu",
    init_broadcast=lambda key: Message(part(model.init(key)).body, stats=model.stats),
    init=lambda key, *_: part(model.init(key)).head,
  )  # fmt: skip
  if finetune_epochs == 0:
    needs = made.needs.without_effect("finetune_epochs = 0", finetune_layers=(finetune_layers, "all"))
    return made._replace(needs=needs)
  tuning = cast(FinetuneSettings, {**at_evaluations(local), "epochs": finetune_epochs})
  return finetuned(made, layers=finetune_layers, **tuning)._replace(name="fedbabu")
