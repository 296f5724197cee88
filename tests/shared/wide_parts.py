"""Throw-away parts that use what few methods need: own sums, a first pass, addressed messages, uploads."""

import jax
import jax.numpy as jnp
from small_parts import CLASSES, descend

from fedjax_het.clients.objective import loss_gradient, training_loss
from fedjax_het.models import Model
from fedjax_het.parts import ClientUpdate, Info, Message, Pooled, ServerUpdate


def rows_of(data):
  """(x, y, weight) of a client's rows, padded."""
  index = jnp.arange(data.limit)
  inside = index < data.size
  return (*data.take(jnp.where(inside, index, 0)), inside.astype(jnp.float32))


def supervised(model: Model, init_broadcast, update, **more) -> ClientUpdate:
  """A client part without a state whose model is the one that it receives."""
  return ClientUpdate(
    init_broadcast=init_broadcast,
    init=lambda *_: (),
    update=update,
    loss=lambda broadcast, own, data, context: training_loss(model, broadcast.params, data),
    personalize=lambda broadcast, *_: broadcast.params,
    global_model=lambda broadcast: broadcast.params,
    apply=model.apply,
    **more,
  )


def prototypes(model: Model, lr=0.1, epochs=1, batch_size=4) -> ClientUpdate:
  """FedProto's shape: local SGD, and each class's mean example, weighed by how many the client has.

  The mean of a class that a client lacks is 0/0 with weight 0; that of all its rows has one weight.
  """

  def update(key, broadcast, own, data, context):
    def step(params, batch):
      loss, gradient, _ = loss_gradient(model, params, (), batch)
      return jax.tree.map(lambda p, g: p - lr * g, params, gradient), loss

    params, info = descend(key, data, batch_size, epochs, broadcast.params, step)
    x, y, weight = rows_of(data)
    of_class = jax.nn.one_hot(y, CLASSES).T * weight  # [C, rows]
    count = of_class.sum(1)
    values = {
      "class": of_class @ x * (1.0 / count)[:, None],
      "all": {"mean": weight @ x * (1.0 / weight.sum())},
    }
    return Message(params, pooled=Pooled(values, {"class": count, "all": weight.sum()})), own, info

  def init_broadcast(key):
    features = model.shape[0]
    values = {"class": jnp.full((CLASSES, features), 7.0), "all": {"mean": jnp.zeros(features)}}
    return Message(model.init(key), pooled=values)

  return supervised(model, init_broadcast, update)


def mime(model: Model, lr=0.1, steps=3) -> ClientUpdate:
  """Mime's shape: c = Σ n_i ∇F_i(θ) / Σ n_i before the round; steps along ∇F_i(y) + (c - ∇F_i(θ)) / 2."""

  def gradient(params, data):
    return jax.grad(lambda params: training_loss(model, params, data))(params)

  def first_pass(key, broadcast, own, data, context):
    return Pooled(gradient(broadcast.params, data), data.size.astype(jnp.float32))

  def update(key, broadcast, own, data, context):
    first = gradient(broadcast.params, data)

    def step(_, params):
      found = gradient(params, data)
      moved = jax.tree.map(lambda g, c, own: g + 0.5 * (c - own), found, broadcast.pooled, first)
      return jax.tree.map(lambda p, g: p - lr * g, params, moved)

    params = jax.lax.fori_loop(0, steps, step, broadcast.params)
    return Message(params), own, Info(training_loss(model, params, data), jnp.int32(steps))

  def init_broadcast(key):
    params = model.init(key)
    return Message(params, pooled=jax.tree.map(jnp.zeros_like, params))

  return supervised(model, init_broadcast, update, first_pass=first_pass)


def middle() -> ServerUpdate:
  """θ <- the median of the uploads, coordinate by coordinate; the state counts whose uploads were seen."""

  def update(key, heard, broadcast, aggregate, feedback):
    params = jax.tree.map(lambda leaf: jnp.median(leaf, axis=0), feedback.uploads().params)
    return aggregate._replace(params=params), heard.at[feedback.cohort].add(feedback.sizes)

  return ServerUpdate(lambda broadcast: jnp.zeros(32, jnp.int32), update, takes_feedback=True)


def addressed(num_clients: int) -> ServerUpdate:
  """A model for each client, half the average and half its own last upload, at first (1 + i/8) θ."""

  def init(broadcast):
    each = 1.0 + jnp.arange(num_clients) / 8.0
    return jax.tree.map(lambda leaf: leaf * each.reshape(-1, *[1] * leaf.ndim), broadcast.params)

  def update(key, models, broadcast, aggregate, feedback):
    put = lambda all_, some: all_.at[feedback.cohort].set(some)  # noqa: E731
    return aggregate, jax.tree.map(put, models, feedback.uploads().params)

  def send(models, broadcast, i):
    half = lambda average, own: 0.5 * (average + own[i])  # noqa: E731
    return broadcast._replace(params=jax.tree.map(half, broadcast.params, models))

  return ServerUpdate(init, update, takes_feedback=True, send=send)
