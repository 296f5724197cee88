r"""FedFomo: a client is sent other clients' models and moves towards those that do better on its own rows.

Zhang, Sapra, Fidler, Yeung, Alvarez, Personalized Federated Learning with First Order Model Optimization,
ICLR 2021, equations 4 and 5. Client i with its model θ_i of its last round is sent M models θ_n, takes

    w_n ∝ max(0, F_i(θ_i) - F_i(θ_n)) / ‖θ_n - θ_i‖,   Σ_n w_n = 1, or all are 0,
    θ_i <- θ_i + Σ_n w_n (θ_n - θ_i),

with F_i on its validation rows, trains, and sends its model and the w_n. The server keeps the last model of
each of K clients and affinities P_in += w_n. Each of the M models for client i is that of another client with
the largest P_in of those left, or with probability ε - t·decay in round t a random one.

Where a client has no validation rows, F_i is on its training rows, and a remark says so. Checked against the
authors' code (NVlabs/FedFomo): the choice for each of M places, random among equal affinities, and the decay
of ε; its weights are those of the paper only for one of several options there. θ_i itself is not among the M,
for its distance is 0, which another library divides by.
"""

import dataclasses
from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from numpy.typing import ArrayLike

from fedjax_het import mixing, vectors
from fedjax_het.clients import sgd
from fedjax_het.clients.addressed import copies, count_of, pick, put, reciprocal
from fedjax_het.clients.local_settings import LocalSettings
from fedjax_het.clients.objective import training_loss
from fedjax_het.clients.one_model import one_model
from fedjax_het.clients.recipe import recipe_of
from fedjax_het.clients.supervised import supervised
from fedjax_het.data.container import ClientData, FederatedData
from fedjax_het.models import Model
from fedjax_het.parts import ClientUpdate, Feedback, LocalTraining, Message, ServerUpdate
from fedjax_het.settings import Count, NonNegative, Share, checked

PyTree = Any


class Moved(NamedTuple):
  """State of local training: whether the client has moved towards others, their weights, and training."""

  there: jax.Array
  weights: jax.Array
  local: sgd.Local


class Sent(NamedTuple):
  """What a client uploads: its model, and the weights of the models that it was sent, float32 [M]."""

  model: PyTree
  weights: jax.Array


class Affinities(NamedTuple):
  """State of the server.

  Attributes:
    models: the last model of each client, leaves [K, ...].
    values: P, float32 [K, K].
    chosen: whose models each client is sent next, int32 [K, M].
  """

  models: PyTree
  values: jax.Array
  chosen: jax.Array


@checked
def fedfomo(
  model: Model,
  sizes: ArrayLike,
  *,
  models: Count = 5,
  epsilon: Share = 0.3,
  epsilon_decay: NonNegative = 0.05,
  **local: Unpack[LocalSettings],
) -> ClientUpdate:
  """FedFomo's client part, which brings its server; its state is the client's model. No global model.

  The figure `taken` of a round is the mean share of the models sent that had a weight above 0.

  Args:
    model: the model that clients train.
    sizes: training examples of each client, int [K]; configurations give the data's.
    models: M >= 1, how many models a client is sent, at most the K - 1 others.
    epsilon: ε in [0, 1], probability that a place among the M goes to a random client.
    epsilon_decay: by how much ε falls in each round, >= 0.
    **local: local training, see `LocalSettings`.

  Raises:
    SettingError: a setting is out of range.
  """
  recipe, num_clients = recipe_of(model, local), count_of(sizes)
  most = max(min(models, num_clients - 1), 1)

  def weighed(broadcast: Message, state: PyTree, data: ClientData) -> tuple[jax.Array, PyTree]:
    """Returns (w, float32 [M]; the client's model after it moved)."""
    rows = validation_rows(data)
    others = broadcast.extra
    losses = lax.map(lambda own: training_loss(model, own, rows), others)
    apart = jax.tree.map(lambda other, own: other - own, others, state)
    far = jax.vmap(lambda own: optax.tree.norm(model.split(own).params))(apart)
    gain = training_loss(model, state, rows) - losses
    share = jnp.where((far > 0) & (gain > 0), gain, 0.0) * reciprocal(far)
    share = share * reciprocal(share.sum())
    read = lambda away: jnp.where(vectors.over(share, away) > 0, away, 0)  # noqa: E731 - others may be NaN
    moves = jax.tree.map(lambda away: jnp.tensordot(share, read(away), 1), apart)
    return share, jax.tree.map(jnp.add, state, vectors.in_kind_of(state, moves))

  def start(broadcast, state, context) -> Moved:
    own = model.split(state)
    local = sgd.start(own.params, own.stats, recipe.optimizer(context))
    return Moved(jnp.bool_(False), jnp.zeros(most), local)

  def run_steps(key, broadcast, state, data, context, work: Moved, first, last) -> Moved:
    # The weights need the data, which `start` does not see. Later pieces of the walk keep the first one's.
    def move() -> Moved:
      share, moved = weighed(broadcast, state, data)
      own = model.split(moved)
      return Moved(jnp.bool_(True), share, sgd.start(own.params, own.stats, recipe.optimizer(context)))

    there = lax.cond(work.there, lambda: work, move)
    local = sgd.run_steps(key, recipe, data, there.local, recipe.optimizer(context), None, first, last)
    return there._replace(local=local)

  def finish(broadcast, state, data, context, work: Moved):
    own = model.joined(work.local.params, work.local.stats)
    _, _, info = plain.finish(broadcast, state, data, context, work.local)
    taken = (work.weights > 0).mean(dtype=jnp.float32)
    return Message((), extra=Sent(own, work.weights)), own, info._replace(figures={"taken": taken})

  def first(key: jax.Array) -> PyTree:
    return model.joined(model.init(key), model.stats)

  def remarks(data: FederatedData):
    yield from recipe.remarks(data)
    if without := int((np.asarray(data.valid.size) == 0).sum()):
      whose = "no client has" if without == data.num_clients else f"{without} of the clients have no"
      yield f"fedfomo compares models on training rows, as {whose} validation rows (valid_fraction)."
    if most < models:
      yield f"models = {models}: a client is sent {most}, as there are {num_clients - 1} others."

  plain = one_model(recipe)
  part = supervised(
    recipe, LocalTraining(recipe.steps, start, run_steps, finish, recipe.gradients),
    lambda broadcast, state, *_: state, name="fedfomo",
    init_broadcast=lambda key: Message((), extra=copies(first(key), most)),
    init=lambda key, broadcast, *_: pick(broadcast.extra, 0),
  )  # fmt: skip
  own = {"mixing": mixing.uniform(), "server": affine(num_clients, most, epsilon, epsilon_decay)}
  needs = part.needs._replace(
    brings=own, num_clients=num_clients, remarks=remarks, sees_data=("update",), transformed=()
  )
  return part._replace(needs=needs, studies=part.studies._replace(graph=moved_towards))


def moved_towards(broadcast: Message, state: Affinities, clients: PyTree) -> jax.Array:
  """Returns each client's affinities over their sum, float32 [K, K]; a client without some has itself."""
  total = state.values.sum(1, keepdims=True)
  return jnp.where(total > 0, state.values * reciprocal(total), jnp.eye(len(total)))


def validation_rows(data: ClientData) -> ClientData:
  """Returns a client's validation rows; its training rows where it has no others."""
  held = data.validation
  if held is None or not held.limit:
    return data
  if held.uniform:
    return held
  start, size = (
    jnp.where(held.size > 0, own, other) for own, other in ((held.start, data.start), (held.size, data.size))
  )
  limit = max(held.limit, data.limit)
  return dataclasses.replace(held, start=start, size=size, limit=limit, uniform=False)


def affine(
  num_clients: int, most: int, epsilon: float | jax.Array, epsilon_decay: float | jax.Array
) -> ServerUpdate:
  """Returns FedFomo's server part, whose state is `Affinities`; see `fedfomo`."""
  itself = jnp.eye(num_clients, dtype=bool)

  def init(broadcast: Message) -> Affinities:
    models = copies(pick(broadcast.extra, 0), num_clients)
    around = (jnp.arange(num_clients)[:, None] + 1 + jnp.arange(most)) % num_clients  # of equal models
    return Affinities(models, jnp.zeros((num_clients, num_clients)), around.astype(jnp.int32))

  def chosen(key: jax.Array, values: jax.Array, round: jax.Array) -> jax.Array:
    """Draws whose models each client is sent, int32 [K, M]."""
    tie_key, random_key, place_key = jax.random.split(key, 3)
    order = jnp.argsort(jax.random.uniform(tie_key, values.shape), axis=1)
    ranks = jnp.argsort(jnp.lexsort((order, values), axis=1), axis=1)  # by value, at random among equal ones
    draws = jax.random.uniform(random_key, values.shape)
    explores = jax.random.uniform(place_key, (num_clients, most)) < epsilon - round * epsilon_decay
    left, found = ~itself if num_clients > 1 else itself, []
    for place in range(most):
      score = jnp.where(explores[:, place, None], draws, ranks.astype(jnp.float32))
      best = jnp.where(left, score, -1.0).argmax(1)
      left = left & (jnp.arange(num_clients) != best[:, None])
      found.append(best)
    return jnp.stack(found, axis=1).astype(jnp.int32)

  def update(key: jax.Array, state: Affinities, broadcast: Message, aggregate: Message, feedback: Feedback):
    sent: Sent = feedback.uploads().extra
    pairs = feedback.cohort[:, None], state.chosen[feedback.cohort]
    values = state.values.at[pairs].add(sent.weights)
    models = put(state.models, feedback.cohort, sent.model)
    return broadcast, Affinities(models, values, chosen(key, values, feedback.round + 1))

  def send(state: Affinities, broadcast: Message, i: jax.Array) -> Message:
    return broadcast._replace(extra=pick(state.models, state.chosen[i]))

  return ServerUpdate(init, update, "fedfomo", takes_feedback=True, send=send, uses_aggregate=False)
