r"""FedALA: each client starts from a mixture of its own and the received model, element by element.

Zhang et al., FedALA: Adaptive Local Aggregation for Personalized Federated Learning, AAAI 2023; the rule was
read in the authors' code. With the client's trained model θ_i, the received θ and weights W_i in [0, 1] of
the layers of the head, at first 1, a client starts from

    θ̂_i = θ_i + (θ - θ_i) ⊙ W_i      in the head,      θ̂_i = θ      elsewhere.

Before local training W_i is learnt on a random share of the client's rows, mini-batch by mini-batch:

    W_i <- clip(W_i - η_w ∇_{θ̂} F_i(θ̂_i) ⊙ (θ - θ_i), 0, 1).

One pass is made, but the first time as many as it takes until the losses of the last mini-batches of ten
passes have a standard deviation below a threshold. While θ_i = θ nothing is learnt. A client is judged by the
mixture that it would train on from; one that never took part makes the many passes of its first learning at
each evaluation. The authors' first time has no bound, and its rows are neighbours.
"""

from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp

from fedjax_het.clients import sgd
from fedjax_het.clients.heads import Head, joined, parting, with_rest_fixed
from fedjax_het.clients.local_settings import LocalSettings
from fedjax_het.clients.one_model import one_model
from fedjax_het.clients.recipe import Recipe, recipe_of
from fedjax_het.clients.supervised import received, supervised
from fedjax_het.data.container import ClientData
from fedjax_het.errors import is_zero
from fedjax_het.local import Batch, shuffle, trips
from fedjax_het.models import Model
from fedjax_het.parts import ClientUpdate, LocalTraining, Message
from fedjax_het.settings import Count, Decay, NonNegative, Positive, checked

PyTree = Any
WEIGHTS = 2**31 - 4  # folded into a round's key for the rows that weights are learnt on
PASSES = 10  # whose losses tell when the first learning ends


class Own(NamedTuple):
  """Client state.

  Attributes:
    head: the layers of the head after the client's last round.
    weights: W_i, a tree like `head`.
    times: how often weights were learnt, int32.
  """

  head: PyTree
  weights: PyTree
  times: jax.Array


class Work(NamedTuple):
  """Local training: the learnt weights, the passes that they took, -1 before; and SGD on the mixture."""

  weights: PyTree
  passes: jax.Array
  local: sgd.Local


def mixture(own: PyTree, received: PyTree, weights: PyTree) -> PyTree:
  """Returns θ_i + (θ - θ_i) ⊙ W_i."""
  return jax.tree.map(lambda a, b, w: a + (b - a) * w, own, received, weights)


def differ(own: PyTree, received: PyTree) -> jax.Array:
  """Returns whether any number of two trees of arrays differs, bool scalar."""
  return jnp.any(jnp.stack(jax.tree.leaves(jax.tree.map(lambda a, b: (a != b).any(), own, received))))


def learnt(
  recipe: Recipe, key: jax.Array, data: ClientData, own: Own, received: PyTree, stats: PyTree,
  rate: float | jax.Array, share: float | jax.Array, threshold: float | jax.Array, most: int,
) -> tuple[PyTree, jax.Array]:  # fmt: skip
  """Returns (learnt W_i, the number of passes, int32 scalar).

  Args:
    recipe: local training, whose model is a function of the head alone.
    key: typed key of the round.
    data: the client's examples.
    own: the client's state.
    received: θ's head.
    stats: the model's running statistics, which are not updated.
    rate: η_w.
    share: share of the rows, of which at least one is taken.
    threshold: the standard deviation that ends the first learning.
    most: the most passes.
  """
  size = min(recipe.settings["batch_size"], data.limit)
  padded = -(-data.limit // size) * size
  key = jax.random.fold_in(key, WEIGHTS)
  order = shuffle(key, data, padded)
  count = jnp.maximum(jnp.floor(share * jnp.float32(data.length)).astype(jnp.int32), 1)

  def one_pass(weights: PyTree, passes: jax.Array) -> tuple[PyTree, jax.Array]:
    def step(s: jax.Array, carry: tuple[PyTree, jax.Array]) -> tuple[PyTree, jax.Array]:
      weights, _ = carry
      inside = s * size + jnp.arange(size) < count
      rows = jax.lax.dynamic_slice_in_dim(order, s * size, size)
      x, y = data.take(jnp.where(inside, rows, 0))
      step_key = jax.random.fold_in(jax.random.fold_in(key, passes), s)
      batch = Batch(x, y, inside.astype(jnp.float32), step_key)
      loss, slope, _ = recipe.gradient(mixture(own.head, received, weights), stats, batch)
      moved = jax.tree.map(
        lambda w, g, a, b: jnp.clip(w - rate * g * (b - a), 0.0, 1.0), weights, slope, own.head, received
      )
      return moved, loss

    return jax.lax.fori_loop(0, trips((count + size - 1) // size), step, (weights, jnp.float32(0.0)))

  first = own.times == 0
  bound = jnp.where(differ(own.head, received), jnp.where(first, most, 1), 0)

  def goes_on(carry: tuple[PyTree, jax.Array, jax.Array]) -> jax.Array:
    _, losses, passes = carry
    return (passes < bound) & ((passes <= PASSES) | (losses.std() >= threshold))

  def go_on(carry: tuple[PyTree, jax.Array, jax.Array]) -> tuple[PyTree, jax.Array, jax.Array]:
    weights, losses, passes = carry
    weights, loss = one_pass(weights, passes)
    return weights, jnp.append(losses[1:], loss), passes + 1

  start = own.weights, jnp.zeros(PASSES), jnp.int32(0)
  weights, _, passes = jax.lax.while_loop(goes_on, go_on, start)
  return weights, passes


@checked
def fedala(
  model: Model,
  *,
  rate: NonNegative = 1.0,
  share: Decay = 0.8,
  head: Head = "",
  threshold: Positive = 0.1,
  passes: Count = 100,
  **local: Unpack[LocalSettings],
) -> ClientUpdate:
  """FedALA's client part; its state is the head that it trained last, and the weights W_i.

  The figure `passes` of a round is the number of passes in which weights were learnt.

  Args:
    model: the model that clients train.
    rate: η_w >= 0, rate of the weights; 0 leaves them out and is FedAvg.
    share: share of a client's rows that the weights are learnt on, in (0, 1].
    head: layers that are mixed, see `heads.parting`.
    threshold: standard deviation of ten losses, > 0, below which the first learning ends.
    passes: the most passes of the first learning, >= 1; it never ends before eleven of them unless they are
      fewer.
    **local: local training, see `LocalSettings`.

  Raises:
    SettingError: a setting is out of range; when a run is set up, the model lacks a layer of the head.
  """
  recipe, part = recipe_of(model, local), parting(model, head)
  plain = one_model(recipe)
  if is_zero(rate):
    return supervised(recipe, plain, name="fedala")

  def mixed(key: jax.Array, message: Message, state: Own, data: ClientData) -> tuple[PyTree, jax.Array]:
    """Returns (the weights that a client learns on receipt of a message, the number of passes)."""
    body, top = part(message.params)
    own = recipe._replace(model=with_rest_fixed(model, body)).fitted(data)
    return learnt(own, key, data, state, top, message.stats, rate, share, threshold, passes)

  def whole(message: Message, state: Own, weights: PyTree) -> PyTree:
    body, top = part(message.params)
    return joined(body, mixture(state.head, top, weights))

  def start(broadcast, state, context) -> Work:
    return Work(state.weights, jnp.int32(-1), plain.start(broadcast, (), context))

  def run_steps(key, broadcast, state, data, context, work: Work, first, last) -> Work:
    # Weights need the data, which `start` does not see. Later pieces of the walk keep those of the first.
    def begin() -> Work:
      weights, passes = mixed(key, broadcast, state, data)
      begun = Message(whole(broadcast, state, weights), stats=broadcast.stats)
      return Work(weights, passes, plain.start(begun, (), context))

    work = jax.lax.cond(work.passes < 0, begin, lambda: work)
    return work._replace(local=plain.run_steps(key, broadcast, (), data, context, work.local, first, last))

  def finish(broadcast, state, data, context, work: Work):
    upload, _, info = plain.finish(broadcast, (), data, context, work.local)
    after = Own(part(work.local.params).head, work.weights, state.times + (work.passes > 0))
    return upload, after, info._replace(figures={"passes": work.passes.astype(jnp.float32)})

  def init(key, broadcast, *_) -> Own:
    top = part(broadcast.params).head
    return Own(top, jax.tree.map(jnp.ones_like, top), jnp.int32(0))

  def personalize(broadcast, state, data, context, lam) -> PyTree:
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(WEIGHTS), context.client), context.round)
    return model.joined(whole(broadcast, state, mixed(key, broadcast, state, data)[0]), broadcast.stats)

  made = supervised(
    recipe, LocalTraining(recipe.steps, start, run_steps, finish, recipe.gradients),
    lambda broadcast, state, *_: model.joined(whole(broadcast, state, state.weights), broadcast.stats),
    name="fedala", init=init, global_model=received(model),
  )  # fmt: skip
  return made._replace(personalize=personalize, needs=made.needs._replace(sees_data=("personalize",)))
