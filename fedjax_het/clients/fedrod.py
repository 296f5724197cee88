r"""FedRoD: a generic head for all classes and a personal one for the client's, on one body.

Chen and Chao, On Bridging Generic and Personalized Federated Learning for Image Classification, ICLR 2022,
equations 8 to 10. With the body's features z, the generic head g and the client's own head h_i, a step
minimises

    BSM(g(z), y) + CE(ĝ(z) + h_i(ẑ), y),

where BSM is the balanced softmax, cross entropy of g(z) + log n_{i,c}, and a hat stops the gradient: body and
generic head move by the first term alone, h_i by the second. The generic model is g(z), the personal one
g(z) + h_i(z). This is the paper's linear variant; h_i starts as a copy of g.
"""

from typing import Any, NamedTuple, Unpack

import jax

from fedjax_het.clients import sgd
from fedjax_het.clients.calibration import check_method
from fedjax_het.clients.label_skew import calibrated_by
from fedjax_het.clients.local_settings import LocalSettings
from fedjax_het.clients.one_model import one_model
from fedjax_het.clients.recipe import check_plain_labels, recipe_of
from fedjax_het.clients.supervised import received, supervised
from fedjax_het.models import Model
from fedjax_het.models.features import LinearHead, linear_head, with_features
from fedjax_het.parts import ClientUpdate, Message
from fedjax_het.settings import checked
from fedjax_het.tasks import mean_loss

PyTree = Any


class Both(NamedTuple):
  """The trained parameters: the shared model's, and the client's own head."""

  shared: PyTree
  head: LinearHead


class Personal(NamedTuple):
  """A client's model for evaluation: the shared one, joined with statistics, and the client's own head."""

  shared: PyTree
  head: LinearHead


@checked
def fedrod(model: Model, **local: Unpack[LocalSettings]) -> ClientUpdate:
  """FedRoD's client part; its state is the client's own head.

  Args:
    model: the model that clients train; its last layer is a dense one with a logit for each class.
    **local: local training, see `LocalSettings`, of both heads and the body.

  Raises:
    SettingError: a setting is out of range, the labels are no classes, `calibration` or `mixup` is given;
      when a run is set up, the model has no linear head.
  """
  check_method("fedrod", model)
  recipe = recipe_of(model, calibrated_by(local, "logit_adjustment", 1.0, "fedrod"))
  check_plain_labels(recipe, "fedrod")

  def begin(broadcast, state, context):
    return Both(broadcast.params, state), broadcast.stats

  def term(broadcast, state, context):
    def personal(params: Both, seen):
      generic, z = jax.lax.stop_gradient((seen.outputs, seen.features))
      return mean_loss(model.task, generic + params.head(z), seen.batch.y, seen.batch.weight)

    return personal

  def finish(broadcast, state, context, local: sgd.Local):
    return Message(local.params.shared, stats=local.stats), local.params.head

  def apply(params: Any, x: jax.Array) -> jax.Array:
    if not isinstance(params, Personal):
      return model.logits(params, x)
    seen = with_features(model).logits(params.shared, x)
    return seen.outputs + params.head(seen.features)

  training = one_model(recipe, begin=begin, term=term, finish=finish, at=lambda step, own: own.shared)
  return supervised(
    recipe, training,
    lambda broadcast, state, *_: Personal(received(model)(broadcast), state), name="fedrod",
    init=lambda key, broadcast, *_: linear_head(model)(broadcast.params),
    global_model=received(model), apply=apply,
  )  # fmt: skip
