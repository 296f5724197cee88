r"""APPLE: a client's model is a mixture of all clients' core models, with weights that it learns.

Luo and Wu, Adapt to Adaptation: Learning Personalization for Cross-Silo Federated Learning, IJCAI 2022,
equations 3 to 6. Client i has a core model w_i, which it uploads, and weights p_i ∈ R^K, which it keeps. It
is sent all core models, and each step, with p0_j = n_j / n and G = ∇F_i at θ_i = Σ_j p_ij w_j, moves

    w_i <- w_i - η p_ii G,       p_ij <- p_ij - η_p (<G, w_j> + λ(t) μ (p_ij - p0_j)),

where λ(t) = (1 + cos πt/L)/2 in the rounds t < L and 0 from round L on. θ_i is the client's model. The paper
has p_i = p0 at first, by which p_ii G is K times as short as G, and takes hundreds of rounds. By default a
client here starts with one half of itself, p_i = s e_i + (1 - s) p0 with s = 1/2.

Checked against the authors' code (ljaiverson/pFL-APPLE): p0, the two rates, λ and L. There the
penalty is μ λ ‖p - p0‖², twice the paper's, each core starts from a draw of its own, and p has momentum; here
all cores start alike, as other methods' models do. The paper has all clients in every round; here the cores
of absent ones stay. Another library has the mean of products for <G, w_j> and η K for η, and a default of
η_p = 0, which never changes p.
"""

import math
from typing import Any, NamedTuple, Unpack, cast

import jax
import jax.numpy as jnp
import optax
from numpy.typing import ArrayLike

from fedjax_het import mixing
from fedjax_het.clients import sgd
from fedjax_het.clients.addressed import copies, count_of, pick, put
from fedjax_het.clients.local_settings import LocalSettings
from fedjax_het.clients.one_model import one_model
from fedjax_het.clients.recipe import recipe_of
from fedjax_het.clients.supervised import supervised
from fedjax_het.errors import SettingError, check_same_rounds
from fedjax_het.models import Model
from fedjax_het.parts import ClientUpdate, Context, Feedback, Message, ServerUpdate
from fedjax_het.settings import NonNegative, Share, checked

PyTree = Any


class Trained(NamedTuple):
  """What a client trains: its core model, and its weights of all cores, float32 [K]."""

  core: PyTree
  weights: jax.Array


@checked
def apple(
  model: Model,
  sizes: ArrayLike,
  *,
  weights_lr: NonNegative = 0.001,
  mu: NonNegative = 0.1,
  until: Share = 0.2,
  self_weight: Share = 0.5,
  rounds: int | None = None,
  **local: Unpack[LocalSettings],
) -> ClientUpdate:
  """APPLE's client part, which brings its server; its state is the client's weights. No global model.

  The figure `self_weight` of a round is the mean of p_ii.

  Args:
    model: the model that clients train, without running statistics.
    sizes: training examples of each client, int [K]; configurations give the data's.
    weights_lr: η_p >= 0, the rate of the weights, which follows the rounds as η does: η_p η_t / lr.
    mu: μ >= 0, how much the weights are held at n_j / n.
    until: L as a share of the run's rounds.
    self_weight: s in [0, 1], how much of itself a client starts with; 0 is the paper's start.
    rounds: the run's rounds, which configurations give; None for λ = 1 in all rounds, whatever `until` is.
    **local: local training of the core, see `LocalSettings`; the weights have plain SGD.

  Raises:
    SettingError: a setting is out of range, or the model has running statistics; from `check_rounds`, the run
      has another number of rounds.
  """
  recipe, num_clients = recipe_of(model, local), count_of(sizes)
  if model.stateful:
    problem = "has running statistics, which a mixture of models does not have"
    raise SettingError("model", model.name, problem, "Use a model without batch norm.")
  first = jnp.asarray(sizes, jnp.float32)
  first = first * (1.0 / first.sum())

  def hold(round: Any) -> jax.Array:
    """Returns λ(t) μ."""
    if rounds is None:
      return jnp.float32(mu)
    part = jnp.float32(round) / jnp.maximum(jnp.floor(until * rounds), 1.0)
    return jnp.where(round < jnp.floor(until * rounds), mu * 0.5 * (1.0 + jnp.cos(math.pi * part)), 0.0)

  def optimizer(context: Context) -> optax.GradientTransformation:
    rate = weights_lr * recipe.rate(context.round) / recipe.settings["lr"]
    return optax.partition(
      {"core": recipe.optimizer(context), "weights": optax.scale(-rate)},
      cast(Any, Trained)("core", "weights"),
    )

  def mixed(cores: PyTree, weights: jax.Array) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.tensordot(weights, leaf, 1), cores)

  def start(broadcast, state, context):
    return sgd.start(Trained(pick(broadcast.extra, context.client), state), (), optimizer(context))

  def run_steps(key, broadcast, state, data, context, local, first_step, last):
    def at(step: sgd.Step, own: Trained) -> PyTree:
      weight, received = own.weights[context.client], pick(broadcast.extra, context.client)
      moved = lambda all_, new, old: all_ + weight * (new - old)  # noqa: E731
      return jax.tree.map(moved, mixed(broadcast.extra, own.weights), own.core, received)

    def held(gradient: Trained, own: Trained) -> Trained:
      return gradient._replace(weights=gradient.weights + hold(context.round) * (own.weights - first))

    return sgd.run_steps(key, recipe, data, local, optimizer(context), held, first_step, last, at)

  def finish(broadcast, state, context, local):
    return Message((), extra=local.params.core), local.params.weights

  def check_rounds(own: int) -> None:
    if rounds is not None:
      why = "λ falls over a share of so many rounds"
      check_same_rounds("apple's rounds", rounds, own, why, "apple(..., ")

  plain = one_model(recipe, finish=finish)

  def end(broadcast, state, data, context, local):
    upload, after, info = plain.finish(broadcast, state, data, context, local)
    return upload, after, info._replace(figures={"self_weight": after[context.client]})

  part = supervised(
    recipe, plain._replace(start=start, run_steps=run_steps, finish=end, counted=None),
    lambda broadcast, state, context: mixed(broadcast.extra, state), name="apple",
    init_broadcast=lambda key: Message((), extra=copies(model.init(key), num_clients)),
    init=lambda key, broadcast, data, context: (
      self_weight * jax.nn.one_hot(context.client, num_clients) + (1.0 - self_weight) * first
    ),
  )  # fmt: skip
  needs = part.needs._replace(
    brings={"mixing": mixing.uniform(), "server": of_cores()}, num_clients=num_clients, transformed=(),
    check_rounds=check_rounds,
  )  # fmt: skip

  def graph(broadcast: Message, state: Any, clients: jax.Array) -> jax.Array:
    sizes = jnp.abs(clients)
    return sizes * (1.0 / sizes.sum(1, keepdims=True))

  return part._replace(needs=needs, studies=part.studies._replace(graph=graph))


def of_cores() -> ServerUpdate:
  """Returns APPLE's server part, which broadcasts the clients' uploads, each leaf [K, ...]."""

  def update(key: jax.Array, state: Any, broadcast: Message, aggregate: Message, feedback: Feedback):
    return broadcast._replace(extra=put(broadcast.extra, feedback.cohort, feedback.uploads().extra)), state

  return ServerUpdate(lambda broadcast: (), update, "apple", takes_feedback=True, uses_aggregate=False)
