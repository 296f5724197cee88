r"""FedPer: a shared body and a personalised head.

Arivazhagan et al., Federated Learning with Personalization Layers, arXiv:1912.00818, 2019.

The parameters are θ = (θ^b, θ^h). A client joins the received body with the head it keeps, trains both
together by SGD on F_i, uploads the body and keeps the head. There is no global model.
"""

from typing import Any, NamedTuple, Unpack

from fedjax_het.clients import sgd
from fedjax_het.clients.heads import Head, joined, parting
from fedjax_het.clients.local_settings import LocalSettings
from fedjax_het.clients.recipe import recipe_of
from fedjax_het.clients.supervised import supervised
from fedjax_het.models import Model
from fedjax_het.parts import ClientUpdate, Info, LocalTraining, Message
from fedjax_het.settings import checked

PyTree = Any


class Own(NamedTuple):
  """Client state: the part of the model that is not shared, and, if that is the body, running statistics."""

  params: PyTree
  stats: PyTree = ()


@checked
def fedper(
  model: Model,
  *,
  head: Head = "",
  shares_body: bool = True,
  name: str = "fedper",
  **local: Unpack[LocalSettings],
) -> ClientUpdate:
  """FedPer's client part; its state is the client's head, with the same initial value on all clients.

  Args:
    model: the model that clients train.
    head: layers of the head, see `heads.parting`.
    shares_body: whether the body is shared and the head kept; False is LG-FedAvg.
    name: name of the method in tables.
    **local: local training, see `LocalSettings`.

  Raises:
    SettingError: a setting is out of range; when a run is set up, the model lacks a layer of the head.
  """
  recipe = recipe_of(model, local)
  part = parting(model, head)

  def parted(params: PyTree, stats: PyTree) -> tuple[Message, Own]:
    """Splits the model into the upload and the client state."""
    body, top = part(params)
    return (Message(body, stats=stats), Own(top)) if shares_body else (Message(top), Own(body, stats))

  def whole(broadcast: Message, state: Own) -> tuple[PyTree, PyTree]:
    return joined(broadcast.params, state.params), broadcast.stats if shares_body else state.stats

  def start(broadcast, state, context):
    return sgd.start(*whole(broadcast, state), recipe.optimizer(context))

  def run_steps(key, broadcast, state, data, context, local, first, last):
    return sgd.run_steps(key, recipe, data, local, recipe.optimizer(context), None, first, last)

  def finish(broadcast, state, data, context, local):
    return *parted(local.params, local.stats), Info.of_sum(local.loss, local.steps)

  def own_model(broadcast: Message, state: Own, *_) -> PyTree:
    return model.joined(*whole(broadcast, state))

  training = LocalTraining(recipe.steps, start, run_steps, finish, recipe.gradients)
  return supervised(
    recipe, training, own_model, name=name,
    init_broadcast=lambda key: parted(model.init(key), model.stats)[0],
    init=lambda key, *_: parted(model.init(key), model.stats)[1],
  )  # fmt: skip
