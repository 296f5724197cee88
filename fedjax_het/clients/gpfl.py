r"""GPFL: features are read twice, under a condition of all classes and under one of the client's own.

Zhang et al., GPFL: Simultaneously Learning Global and Personalized Feature Information for Personalized
Federated Learning, ICCV 2023; the rule was read in the authors' code. Beside the body, whose features are z,
the clients share embeddings E_c of the classes, float32 [C, d], and a valve

    V(z, k) = relu(z ⊙ (1 + γ(k)) + β(k)),      γ(k), β(k) = LayerNorm(relu(k W + b)),

where γ and β have weights of their own. The generic condition is k_G = mean_c E_c, the client's own is k_P =
Σ_c (n_{i,c} / n_i) E_c, both of the embeddings as received. The head is the client's own. With z_G = V(z,
k_G) and the received embeddings Ē, a step minimises

    L_task(head(V(z, k_P))) + mean_x -log softmax_y(cos(z_G, E_c)) + λ mean_x ‖z_G - Ē_y‖,

and E and V have weight decay μ. The authors' code takes the conditions from the client's embeddings of a
round before, and the norm of a whole batch's differences in the place of the mean over examples.
"""

from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp

from fedjax_het.clients.calibration import check_method, counts_of
from fedjax_het.clients.heads import joined, last_layer_apart
from fedjax_het.clients.local_settings import LocalSettings
from fedjax_het.clients.one_model import one_model
from fedjax_het.clients.recipe import check_plain_labels, recipe_of
from fedjax_het.clients.supervised import supervised
from fedjax_het.local import weighted_mean
from fedjax_het.models import Model
from fedjax_het.models.features import feature_size, linear_head, with_features
from fedjax_het.parts import ClientUpdate, Message
from fedjax_het.settings import NonNegative, checked

PyTree = Any


class Normed(NamedTuple):
  """Parameters of a dense layer and of the layer normalisation that goes with it, float32.

  Attributes:
    kernel: the dense layer's kernel, [d, m].
    bias: its bias, [m].
    scale: the normalisation's scale, [m].
    offset: the normalisation's offset, [m].
  """

  kernel: jax.Array
  bias: jax.Array
  scale: jax.Array
  offset: jax.Array

  @classmethod
  def drawn(cls, key: jax.Array, inputs: int, outputs: int) -> "Normed":
    """Returns a layer with kernel and bias uniform in ±1/√d, scale 1 and offset 0."""
    bound, keys = inputs**-0.5, jax.random.split(key)
    kernel, bias = (
      jax.random.uniform(own, shape, minval=-bound, maxval=bound)
      for own, shape in zip(keys, ((inputs, outputs), (outputs,)))
    )
    return cls(kernel, bias, jnp.ones(outputs), jnp.zeros(outputs))

  def normalised(self, rows: jax.Array) -> jax.Array:
    """Returns LayerNorm(rows), [..., m], with the layer's scale and offset."""
    centered = rows - rows.mean(-1, keepdims=True)
    variance = jnp.square(centered).mean(-1, keepdims=True)
    return centered * jax.lax.rsqrt(variance + 1e-5) * self.scale + self.offset


class Valve(NamedTuple):
  """The layers of γ and β."""

  gamma: Normed
  beta: Normed

  def __call__(self, features: jax.Array, condition: jax.Array) -> jax.Array:
    """Returns V(z, k), float32 [B, d], of features z [B, d] and a condition k [d]."""
    gamma, beta = (
      own.normalised(jax.nn.relu(condition @ own.kernel + own.bias)) for own in (self.gamma, self.beta)
    )
    return jax.nn.relu(features * (1.0 + gamma) + beta)


class Shared(NamedTuple):
  """What is averaged: the body, the embeddings E, float32 [C, d], and the valve."""

  body: PyTree
  embeddings: jax.Array
  valve: Valve


class Own(NamedTuple):
  """Client state: its head, parameters of the model, and the shares n_{i,c} / n_i, float32 [C]."""

  head: PyTree
  shares: jax.Array


class Trained(NamedTuple):
  """The trained parameters."""

  shared: Shared
  head: PyTree


class Personal(NamedTuple):
  """A client's model for evaluation: body and head, joined with statistics, the valve, and k_P."""

  model: PyTree
  valve: Valve
  condition: jax.Array


def unit(rows: jax.Array) -> jax.Array:
  """Returns rows, float32 [..., d], of length 1; rows of 0 stay so."""
  return rows * jax.lax.rsqrt(jnp.maximum(jnp.square(rows).sum(-1, keepdims=True), 1e-16))


def angular_losses(features: jax.Array, embeddings: jax.Array, y: jax.Array) -> jax.Array:
  """Computes -log softmax_y(cos(z, E_c)), float32 [B], of rows [B, d], embeddings [C, d], labels [B]."""
  logs = jax.nn.log_softmax(unit(features) @ unit(embeddings).T)
  return -jnp.take_along_axis(logs, y[:, None], axis=1)[:, 0]


def lengths(rows: jax.Array) -> jax.Array:
  """Computes the L2 norm of each row, float32 [B], of rows [B, d]; the gradient of a zero row is 0."""
  return jnp.sqrt(jnp.maximum(jnp.square(rows).sum(-1), 1e-12))


@checked
def gpfl(
  model: Model, *, lam: NonNegative = 0.01, mu: NonNegative = 0.1, **local: Unpack[LocalSettings]
) -> ClientUpdate:
  """GPFL's client part; its state is the client's head and its shares of the classes. No global model.

  Args:
    model: the model that clients train; its last layer is a dense one with a logit for each class.
    lam: λ >= 0, weight of the distance to the received embeddings.
    mu: μ >= 0, weight decay of embeddings and valve, beside `weight_decay` of all parameters.
    **local: local training, see `LocalSettings`.

  Raises:
    SettingError: a setting is out of range, the labels are no classes, or `mixup` is given; when a run is set
      up, the model has no dense head.
  """
  recipe = recipe_of(model, local)
  check_method("gpfl", model, counted=True)
  check_plain_labels(recipe, "gpfl")
  part, head_of = last_layer_apart(model), linear_head(model)

  def own_condition(broadcast: Message, state: Own) -> jax.Array:
    return state.shares @ broadcast.params.embeddings

  def read(params: PyTree, valve: Valve, features: jax.Array, condition: jax.Array) -> jax.Array:
    return head_of(params)(valve(features, condition))

  def whole(own: Trained) -> PyTree:
    return joined(own.shared.body, own.head)

  def begin(broadcast, state, context):
    return Trained(broadcast.params, state.head), broadcast.stats

  def training_of(broadcast: Message, state: Own):
    """Returns (the outputs that the task's loss is of, the method's terms), see `Recipe`."""
    condition, old = own_condition(broadcast, state), broadcast.params.embeddings
    generic = old.mean(0)

    def outputs(own: Trained, seen):
      return read(whole(own), own.shared.valve, seen.features, condition)

    def terms(own: Trained, seen):
      z, y = own.shared.valve(seen.features, generic), seen.batch.y
      losses = angular_losses(z, own.shared.embeddings, y) + lam * lengths(z - old[y])
      return weighted_mean(losses, seen.batch.weight)

    return outputs, terms

  def correct(broadcast, state, context):
    def decayed(gradient: Trained, own: Trained) -> Trained:
      more = jax.tree.map(lambda g, w: g + mu * w, gradient.shared[1:], own.shared[1:])
      return gradient._replace(shared=Shared(gradient.shared.body, *more))

    return decayed

  def finish(broadcast, state, context, local):
    return Message(local.params.shared, stats=local.stats), state._replace(head=local.params.head)

  def init_broadcast(key):
    size, drawn = feature_size(model), [jax.random.fold_in(key, i) for i in range(3)]
    embeddings = jax.random.normal(drawn[0], (model.num_classes, size))
    valve = Valve(*(Normed.drawn(own, size, size) for own in drawn[1:]))
    return Message(Shared(part(model.init(key)).body, embeddings, valve), stats=model.stats)

  def init(key, broadcast, data, context) -> Own:
    counts = counts_of(data, model.num_classes)
    return Own(part(model.init(key)).head, counts / counts.sum())

  def own_model(broadcast, state, *_) -> Personal:
    params = joined(broadcast.params.body, state.head)
    return Personal(
      model.joined(params, broadcast.stats), broadcast.params.valve, own_condition(broadcast, state)
    )

  def apply(params: Personal, x: jax.Array) -> jax.Array:
    features = with_features(model).logits(params.model, x).features
    return read(model.split(params.model).params, params.valve, features, params.condition)

  training = one_model(
    recipe, begin=begin, correct=correct, term=lambda broadcast, state, _: training_of(broadcast, state)[1],
    outputs=lambda broadcast, state, _: training_of(broadcast, state)[0], finish=finish,
    at=lambda step, own: whole(own),
  )  # fmt: skip
  made = supervised(
    recipe, training, own_model, name="gpfl", init=init, init_broadcast=init_broadcast, apply=apply
  )
  return made._replace(needs=made.needs._replace(sees_data=("init",)))
