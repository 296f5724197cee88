r"""FedDF: the averaged model learns on public examples what the clients' models say together.

Lin, Kong, Stich, Jaggi, Ensemble Distillation for Robust Model Fusion in Federated Learning, NeurIPS 2020,
algorithm 1. Clients train as in FedAvg. With their models f_i the server starts from θ = Σ_i p_i θ_i and
takes N steps of Adam, at a rate that falls along half a cosine from η_s to 0, on

    mean_x KL(softmax(1/S Σ_i f_i(x)) ‖ softmax(f_θ(x)))

over mini-batches of unlabelled public examples x.

Checked against the authors' code (epfml/federated-learning-public-code): the start, the optimiser, which
begins anew in each round, its schedule and rate, batches of 128. There up to 10,000 steps end when the
accuracy on validation data has not risen for 2,000; the server has no such data here, and takes 100. Running
statistics stay the average of the clients', and all models judge public examples as they are used, without
dropout.
"""

from typing import Annotated, Any, Unpack

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_het.clients.calibration import check_method
from fedjax_het.clients.fml import divergence
from fedjax_het.clients.local_settings import LocalSettings
from fedjax_het.clients.objective import cosine, scale_by_adam
from fedjax_het.clients.one_model import one_model
from fedjax_het.clients.recipe import recipe_of
from fedjax_het.clients.supervised import supervised
from fedjax_het.errors import SettingError
from fedjax_het.local import trips
from fedjax_het.models import Model
from fedjax_het.modes import promoting
from fedjax_het.parts import ClientUpdate, Feedback, Message, ServerUpdate
from fedjax_het.settings import Count, Positive, Whole, checked

PyTree = Any
Steps = Annotated[int, Whole(0)]


@checked
def feddf(
  model: Model,
  public: PyTree,
  *,
  server_steps: Steps = 100,
  server_lr: Positive = 1e-3,
  server_batch_size: Count = 128,
  **local: Unpack[LocalSettings],
) -> ClientUpdate:
  """FedDF's client part, which brings its server; clients keep nothing.

  The figure `distilled` of a round is the mean divergence from the ensemble over the server's steps.

  Args:
    model: the model that clients train.
    public: examples that the server has, as the model reads them, [M, ...] or a tree of such arrays;
      configurations make them by their section `public`.
    server_steps: N, the server's steps in each round; 0 brings no server, and is FedAvg.
    server_lr: η_s, Adam's rate in the first step of a round.
    server_batch_size: public examples in a step; all of them where there are fewer.
    **local: local training, see `LocalSettings`.

  Raises:
    SettingError: a setting is out of range, the labels are no classes, or `public` has no examples, or not
      equally many in all of its arrays.
  """
  recipe = recipe_of(model, local)
  check_method("feddf", model)
  counts = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(public)}
  if len(counts) != 1 or counts <= {(), (0,)}:
    problem = "are the first axes of its arrays, and not one number of examples"
    raise SettingError("public", sorted(counts), problem, "Give examples as the model reads them, [M, ...].")
  made = supervised(recipe, one_model(recipe), name="feddf")
  if server_steps == 0:
    return made
  server = distilling(model, public, server_steps, server_lr, server_batch_size)
  return made._replace(needs=made.needs._replace(brings={"server": server}))


def ensemble(model: Model, models: PyTree, x: PyTree, batch_size: int) -> jax.Array:
  """Computes the mean logits of S models, float32 [M, C].

  Args:
    model: the model.
    models: parameters, joined with statistics, each leaf [S, ...].
    x: examples, [M, ...].
    batch_size: how many of them are put through the models at once.
  """
  count = len(jax.tree.leaves(x)[0])
  rows = (jnp.arange(-(-count // batch_size) * batch_size) % count).reshape(-1, batch_size)

  def of_block(own: jax.Array) -> jax.Array:
    block = jax.tree.map(lambda leaf: jnp.asarray(leaf)[own], x)
    return jax.vmap(lambda one: model.logits(one, block))(models).mean(0)

  found = lax.map(of_block, rows)
  return found.reshape(-1, *found.shape[2:])[:count]


def distilling(model: Model, public: PyTree, steps: int, lr: Any, batch_size: int) -> ServerUpdate:
  """Returns FedDF's server part, whose state is the mean divergence of the last round; see `feddf`."""
  count = len(jax.tree.leaves(public)[0])
  size, tx = min(batch_size, count), promoting(scale_by_adam(0.9, 0.999))

  def update(key: jax.Array, state: jax.Array, broadcast: Message, aggregate: Message, feedback: Feedback):
    sent, stats = feedback.uploads(), aggregate.stats
    teacher = ensemble(model, model.joined(sent.params, sent.stats), public, size)

    def loss(params: PyTree, rows: jax.Array) -> jax.Array:
      x = jax.tree.map(lambda leaf: jnp.asarray(leaf)[rows], public)
      return divergence(teacher[rows], model.logits(model.joined(params, stats), x)).mean()

    def step(i: jax.Array, carry: tuple[PyTree, PyTree, jax.Array]):
      params, kept, total = carry
      rows = jax.random.permutation(jax.random.fold_in(key, i), count)[:size]
      apart, gradient = jax.value_and_grad(loss)(params, rows)
      updates, kept = tx.update(gradient, kept, params)
      rate = lr * cosine(i.astype(jnp.float32) / steps)
      params = optax.apply_updates(params, jax.tree.map(lambda own: -rate * own, updates))
      return params, kept, total + apart

    start = aggregate.params, tx.init(aggregate.params), jnp.float32(0.0)
    params, _, total = lax.fori_loop(0, trips(steps), step, start)
    return aggregate._replace(params=params), total * (1.0 / steps)

  def figures(state: jax.Array, feedback: Feedback) -> dict[str, jax.Array]:
    return {"distilled": state}

  return ServerUpdate(
    lambda broadcast: jnp.float32(0.0), update, "feddf", takes_feedback=True, figures=figures
  )
