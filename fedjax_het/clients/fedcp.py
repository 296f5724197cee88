r"""FedCP: a policy splits an example's features into a part for the personal and one for the global head.

Zhang et al., FedCP: Separating Feature Information for Personalized Federated Learning via Conditional
Policy, KDD 2023; the rule was read in the authors' code. With features z [d] of the body, and the sum v [d]
of the personal head's kernel over the classes, as it is at the beginning of a round, the policy is

    (a, a') = relu(LayerNorm((z ⊙ v / ‖v‖) W + b)),   both [d],      r = sigmoid(a - a' + noise),

where the noise, logistic, is that of a Gumbel softmax over the two, and is left out where a client is judged.
A step minimises, with the received body's features z⁰ and the received head h, which stay,

    L_task(h_i(r ⊙ z) + h((1 - r) ⊙ z)) + λ MMD²(z, z⁰),

MMD² with s = 20, 30, 40 and 100, see `discrepancy`; the paper writes exp(-‖u - v‖² / 2s) with half of them.
Body, policy and (h_i + h) / 2 are uploaded, and the client keeps h_i. The authors' code has noise in tests
too, and a random v in the first round.
"""

from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp

from fedjax_het.clients.discrepancy import mmd
from fedjax_het.clients.gpfl import Normed, unit
from fedjax_het.clients.heads import joined, last_layer_apart
from fedjax_het.clients.local_settings import LocalSettings
from fedjax_het.clients.one_model import one_model
from fedjax_het.clients.recipe import recipe_of
from fedjax_het.clients.supervised import received, supervised
from fedjax_het.errors import is_zero
from fedjax_het.models import Model
from fedjax_het.models.features import LinearHead, feature_size, linear_head, with_features
from fedjax_het.parts import ClientUpdate, Message
from fedjax_het.settings import NonNegative, checked

PyTree = Any
BANDWIDTHS = (20.0, 30.0, 40.0, 100.0)  # twice the paper's, whose kernel is exp(-‖u - v‖² / 2s)
NOISE = 2  # folded into a step's key for the policy's noise


class Shared(NamedTuple):
  """What is averaged: the whole model, with the global head, and the policy, a layer [d, 2d]."""

  model: PyTree
  policy: Normed


class Trained(NamedTuple):
  """The trained parameters: the body, the policy, and the personal head as a part of the model."""

  body: PyTree
  policy: Normed
  head: PyTree


class Personal(NamedTuple):
  """A client's model for evaluation.

  Attributes:
    model: body and personal head, joined with statistics.
    policy: the policy.
    head: the global head.
    context: v.
  """

  model: PyTree
  policy: Normed
  head: LinearHead
  context: jax.Array


def shares(
  policy: Normed, features: jax.Array, context: jax.Array, noise: float | jax.Array = 0.0
) -> jax.Array:
  """Computes r, float32 [B, d], of features z [B, d], v [d] and the noise [B, d]."""
  rows = policy.normalised((features * unit(context)) @ policy.kernel + policy.bias)
  ours, theirs = jnp.split(jax.nn.relu(rows), 2, axis=-1)
  return jax.nn.sigmoid(ours - theirs + noise)


def outputs_of(own: LinearHead, shared: LinearHead, share: jax.Array, features: jax.Array) -> jax.Array:
  """Computes h_i(r ⊙ z) + h((1 - r) ⊙ z), float32 [B, C]."""
  return own(share * features) + shared((1.0 - share) * features)


@checked
def fedcp(model: Model, *, lam: NonNegative = 0.5, **local: Unpack[LocalSettings]) -> ClientUpdate:
  """FedCP's client part; its state is the personal head, at first a copy of the global one. No global model.

  Args:
    model: the model that clients train; its last layer is a dense one.
    lam: λ >= 0, weight of the discrepancy from the received body's features; 0 leaves it out.
    **local: local training, see `LocalSettings`.

  Raises:
    SettingError: a setting is out of range; when a run is set up, the model has no dense head.
  """
  recipe = recipe_of(model, local)
  part, head_of = last_layer_apart(model), linear_head(model)

  def context_of(state: PyTree) -> jax.Array:
    return head_of(state).kernel.sum(1)

  def begin(broadcast, state, context):
    body = part(broadcast.params.model).body
    return Trained(body, broadcast.params.policy, state), broadcast.stats

  def outputs(broadcast, state, context):
    shared, own_context = head_of(broadcast.params.model), context_of(state)

    def of(own: Trained, seen):
      key = jax.random.fold_in(seen.batch.key, NOISE)
      share = shares(own.policy, seen.features, own_context, jax.random.logistic(key, seen.features.shape))
      return outputs_of(head_of(own.head), shared, share, seen.features)

    return of

  def term(broadcast, state, context):
    def pull(own, seen):
      model_received = received(model)(broadcast._replace(params=broadcast.params.model))
      first = with_features(model).logits(model_received, seen.batch.x).features
      return lam * mmd(seen.features, first, seen.batch.weight, BANDWIDTHS)

    return pull

  def finish(broadcast, state, context, local):
    own: Trained = local.params
    shared = part(broadcast.params.model).head
    head = jax.tree.map(lambda a, b: 0.5 * (a + b), own.head, shared)
    return Message(Shared(joined(own.body, head), own.policy), stats=local.stats), own.head

  def init_broadcast(key):
    size = feature_size(model)
    policy = Normed.drawn(jax.random.fold_in(key, 0), size, 2 * size)
    return Message(Shared(model.init(key), policy), stats=model.stats)

  def own_model(broadcast, state, *_) -> Personal:
    shared: Shared = broadcast.params
    params = joined(part(shared.model).body, state)
    joint = model.joined(params, broadcast.stats)
    return Personal(joint, shared.policy, head_of(shared.model), context_of(state))

  def apply(params: Personal, x: jax.Array) -> jax.Array:
    features = with_features(model).logits(params.model, x).features
    share = shares(params.policy, features, params.context)
    return outputs_of(head_of(model.split(params.model).params), params.head, share, features)

  training = one_model(
    recipe, begin=begin, outputs=outputs, term=None if is_zero(lam) else term, finish=finish,
    at=lambda step, own: joined(own.body, own.head),
  )  # fmt: skip
  return supervised(
    recipe, training, own_model, name="fedcp", init_broadcast=init_broadcast, apply=apply,
    init=lambda key, broadcast, *_: part(broadcast.params.model).head,
  )  # fmt: skip
