r"""FedAMP and HeurFedAMP: each client is sent its own average, in which similar clients count more.

Huang, Chu, Zhou, Wang, Liu, Pei, Zhang, Personalized Cross-Silo Federated Learning on Non-IID Data, AAAI
2021, equations 2 to 6. Of the cohort's models the server makes

    u_i = (1 - Σ_{j≠i} ξ_ij) θ_i + Σ_{j≠i} ξ_ij θ_j,      ξ_ij ∝ A'(‖θ_i - θ_j‖²),    A'(x) = e^{-x/s} / s,

and a client that is sent u_i minimises F_i(θ) + (λ/2) ‖θ - u_i‖² from u_i on; its model is what it trains.

Squared distances between networks depend on their size, and with a fixed s the attention of all clients is
easily on themselves, for e^{-x/s} is 0. Here s = σ m by default, m the mean squared distance between the
cohort's models, and ξ_ij = α/(S - 1) e^{-x/s}: α bounds what others count, and is the paper's α_k times
(S - 1)/s. With `relative=False` s = σ and ξ_ij = α A'(x), scaled down if the others' sum is above 1. λ is the
paper's λ/α_k. HeurFedAMP has ξ_ij ∝ exp(σ cos(θ_i, θ_j)), with a sum of 1 - ξ_ii over j ≠ i (section 5).

The server keeps u_k of all K clients. The paper has all clients in every round; with fewer the attention is
among the cohort. Another library has the distance in a loss without a gradient, so that its FedAMP is local
training. Checked against the paper's equations as other libraries state them, not the authors' code.
"""

from collections.abc import Callable
from typing import Any, Unpack

import jax
import jax.numpy as jnp
from numpy.typing import ArrayLike

from fedjax_het import mixing, vectors
from fedjax_het.clients import sgd
from fedjax_het.clients.addressed import Mixed, combined, count_of, pick, reciprocal
from fedjax_het.clients.local_settings import LocalSettings
from fedjax_het.clients.one_model import one_model
from fedjax_het.clients.recipe import Recipe, recipe_of
from fedjax_het.clients.supervised import received, supervised
from fedjax_het.errors import is_zero
from fedjax_het.models import Model
from fedjax_het.parts import ClientUpdate, Feedback, Message, ServerUpdate
from fedjax_het.settings import NonNegative, Positive, Share, checked

PyTree = Any
Attention = Callable[[PyTree], jax.Array]  # models [S, ...] -> ξ, float32 [S, S], whose rows sum to 1


@checked
def fedamp(
  model: Model,
  sizes: ArrayLike,
  *,
  lam: NonNegative = 1.0,
  alpha: Share = 0.5,
  sigma: Positive = 1.0,
  relative: bool = True,
  **local: Unpack[LocalSettings],
) -> ClientUpdate:
  """FedAMP's client part, which brings its server; its state is the client's model. There is no global model.

  The figure `others` of a round is the mean of Σ_{j≠i} ξ_ij.

  Args:
    model: the model that clients train.
    sizes: training examples of each client, int [K]; configurations give the data's.
    lam: λ >= 0, weight of the distance to what was received.
    alpha: α in [0, 1], the most that all other clients count; 0 with λ = 0 is local training.
    sigma: σ > 0, the squared distance at which a client counts 1/e of an equal one, in units of the cohort's
      mean one.
    relative: whether distances are in units of the cohort's mean; else σ and α are the paper's σ and α_k.
    **local: local training, see `LocalSettings`.

  Raises:
    SettingError: a setting is out of range.
  """

  def attention(models: PyTree) -> jax.Array:
    distances = squared_distances(models)
    count = max(len(distances) - 1, 1)
    mean = jnp.where(jnp.eye(len(distances), dtype=bool), 0.0, distances).sum() * (
      1.0 / (len(distances) * count)
    )
    scale = sigma * mean if relative else jnp.float32(sigma)
    own = jnp.exp(-distances * reciprocal(scale))
    return with_rest(own * (alpha / count if relative else alpha * reciprocal(scale)))

  return attentive(recipe_of(model, local), count_of(sizes), lam, attention, "fedamp")


@checked
def heurfedamp(
  model: Model,
  sizes: ArrayLike,
  *,
  lam: NonNegative = 1.0,
  sigma: NonNegative = 10.0,
  self_weight: Share | None = None,
  **local: Unpack[LocalSettings],
) -> ClientUpdate:
  """HeurFedAMP's client part: `fedamp` with attention by the models' cosines.

  Args:
    model: the model that clients train.
    sizes: training examples of each client, int [K]; configurations give the data's.
    lam: λ >= 0, weight of the distance to what was received.
    sigma: σ >= 0, how much the cosine counts; 0 is the plain mean of the others.
    self_weight: ξ_ii in [0, 1]; None for 1/S. 1 with λ = 0 is local training.
    **local: local training, see `LocalSettings`.

  Raises:
    SettingError: a setting is out of range.
  """

  def attention(models: PyTree) -> jax.Array:
    near = vectors.cosines(models)
    others = jnp.where(jnp.eye(len(near), dtype=bool), -jnp.inf, sigma * near)
    share = jnp.nan_to_num(jax.nn.softmax(others, axis=1))  # of a single client nothing
    return with_rest((1.0 - (1.0 / len(near) if self_weight is None else self_weight)) * share)

  return attentive(recipe_of(model, local), count_of(sizes), lam, attention, "heurfedamp")


def squared_distances(models: PyTree) -> jax.Array:
  """Computes ‖θ_i - θ_j‖², float32 [S, S], and +∞ on the diagonal; of differences from the models' mean."""
  count = len(jax.tree.leaves(models)[0])
  mean = vectors.weighted_sum(jnp.full(count, 1.0 / count), models)
  return vectors.apart(vectors.products(vectors.differences(models, mean)))


def with_rest(share: jax.Array) -> jax.Array:
  """Returns ξ [S, S] of the others' shares, 0 on the diagonal: of sum 1 at most, the rest on the diagonal."""
  share = share * (1.0 / jnp.maximum(share.sum(1, keepdims=True), 1.0))
  return share + jnp.diag(1.0 - share.sum(1))


def attentive(
  recipe: Recipe, num_clients: int, lam: float | jax.Array, attention: Attention, name: str
) -> ClientUpdate:
  """Returns the client part of a method whose server mixes the models for each client."""
  model = recipe.model

  def finish(broadcast, state, context, local: sgd.Local):
    return Message(local.params, stats=local.stats), model.joined(local.params, local.stats)

  def correct(broadcast, state, context):
    return sgd.proximal_gradient(broadcast.params, lam)

  training = one_model(recipe, correct=None if is_zero(lam) else correct, finish=finish)
  part = supervised(
    recipe, training, lambda broadcast, state, *_: state, name=name,
    init=lambda key, broadcast, *_: received(model)(broadcast),
  )  # fmt: skip
  own = {"mixing": mixing.uniform(), "server": mixing_for_each(num_clients, attention, name)}
  return part._replace(
    studies=part.studies._replace(graph=Mixed.graph),
    needs=part.needs._replace(brings=own, num_clients=num_clients),
  )


def mixing_for_each(num_clients: int, attention: Attention, name: str) -> ServerUpdate:
  """Returns the server part; its state is `Mixed`, of (params, statistics)."""

  def init(broadcast: Message) -> Mixed:
    return Mixed.first((broadcast.params, broadcast.stats), num_clients)

  def update(key: jax.Array, state: Mixed, broadcast: Message, aggregate: Message, feedback: Feedback):
    sent = feedback.uploads()
    weights = attention(sent.params)
    return broadcast, state.after(feedback.cohort, weights, combined(weights, (sent.params, sent.stats)))

  def send(state: Mixed, broadcast: Message, i: jax.Array) -> Message:
    params, stats = pick(state.sent, i)
    return broadcast._replace(params=params, stats=stats)

  def figures(state: Mixed, feedback: Feedback) -> dict[str, jax.Array]:
    return {"others": 1.0 - jnp.diag(state.weights)[feedback.cohort].mean()}

  return ServerUpdate(
    init, update, name, takes_feedback=True, send=send, figures=figures, uses_aggregate=False
  )
