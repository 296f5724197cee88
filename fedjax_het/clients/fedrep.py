r"""FedRep: a shared body (representation), trained in each round after the client's personalised head.

Collins et al., Exploiting Shared Representations for Personalized Federated Learning, ICML 2021, algorithm 1.

The parameters are θ = (θ^b, θ^h). In a round a client trains its head for E epochs of SGD with the received
body fixed, then the body for E_b epochs with that head fixed, each with a fresh optimiser state. It uploads
the body and keeps the head. There is no global model.
"""

from typing import Any, NamedTuple, Unpack

from fedjax_het.clients import sgd
from fedjax_het.clients.heads import Head, joined, parting, with_rest_fixed
from fedjax_het.clients.local_settings import LocalSettings
from fedjax_het.clients.recipe import recipe_of
from fedjax_het.clients.sgd import afterwards, mean_loss
from fedjax_het.clients.supervised import supervised
from fedjax_het.models import Model
from fedjax_het.parts import ClientUpdate, LocalTraining, Message
from fedjax_het.settings import Count, checked

PyTree = Any


class Phases(NamedTuple):
  """Training states of the head's and of the body's phase; running statistics of the latter are uploaded."""

  head: sgd.Local
  body: sgd.Local


@checked
def fedrep(
  model: Model,
  *,
  head: Head = "",
  body_epochs: Count | None = None,
  **local: Unpack[LocalSettings],
) -> ClientUpdate:
  """FedRep's client part; its state is the client's head, with the same initial value on all clients.

  Running statistics belong to the body: changes during the head's epochs are discarded, the body's epochs
  update them, and the server averages them.

  Args:
    model: the model that clients train.
    head: layers of the head, see `heads.parting`.
    body_epochs: E_b, epochs of the body per round, after those of the head; None takes as many as `epochs`.
      SuPerFed's comparison uses 5.
    **local: local training, see `LocalSettings`; `epochs` are the head's, and each phase has a new optimiser
      state.

  Raises:
    SettingError: a setting is out of range; when a run is set up, the model lacks a layer of the head.
  """
  recipe = recipe_of(model, local)
  second = recipe.with_epochs(body_epochs)
  part = parting(model, head)

  def start(broadcast, state, context) -> Phases:
    tx = recipe.optimizer(context)
    return Phases(sgd.start(state, broadcast.stats, tx), sgd.start(broadcast.params, broadcast.stats, tx))

  def run_steps(key, broadcast, state, data, context, work: Phases, first, last) -> Phases:
    tx = recipe.optimizer(context)
    top = recipe._replace(model=with_rest_fixed(model, broadcast.params))
    own = sgd.run_steps(key, top, data, work.head, tx, None, first, last)
    first, last, key = afterwards(recipe.steps(data), first, last, key)
    bottom = second._replace(model=with_rest_fixed(model, own.params))
    body = sgd.run_steps(key, bottom, data, work.body, tx, None, first, last)
    return Phases(own, body)

  def finish(broadcast, state, data, context, work: Phases):
    return Message(work.body.params, stats=work.body.stats), work.head.params, mean_loss(*work)

  def own_model(broadcast: Message, state: PyTree, *_) -> PyTree:
    return model.joined(joined(broadcast.params, state), broadcast.stats)

  def steps(data):
    return recipe.steps(data) + second.steps(data)

  training = LocalTraining(steps, start, run_steps, finish, recipe.gradients)
  return supervised(
    recipe, training, own_model, name="fedrep",
    init_broadcast=lambda key: Message(part(model.init(key)).body, stats=model.stats),
    init=lambda key, *_: part(model.init(key)).head,
  )  # fmt: skip
