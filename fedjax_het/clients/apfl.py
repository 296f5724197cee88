r"""APFL: personalised mixtures of a federated and a local model, trained on the same mini-batches.

Deng, Kamani, Mahdavi, Adaptive Personalized Federated Learning, arXiv:2003.13461, 2020, algorithm 1.

A client's personalised model is v̄ = α v + (1 - α) w, with its local model v and its copy w of the federated
model, which starts the round at θ^g. On each mini-batch

    w <- w - η ∇f(w),      v <- v - η ∇_v f(v̄) = v - η α ∇f(v̄),

where both gradients are taken before either update; and, if α is adaptive (equation 10),

    α <- α - η <v - w, ∇f(v̄)>,      clipped to [0, 1].

w is uploaded; v and α stay on the client.
"""

from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import optax

from fedjax_het.clients import sgd
from fedjax_het.clients.local_settings import LocalSettings
from fedjax_het.clients.objective import updates_barrier
from fedjax_het.clients.recipe import recipe_of
from fedjax_het.clients.supervised import line, received, supervised
from fedjax_het.local import Batch
from fedjax_het.models import Model
from fedjax_het.parts import ClientUpdate, Info, LocalTraining, Message
from fedjax_het.settings import Share, checked

PyTree = Any


class Own(NamedTuple):
  """Client state: the local model v with the running statistics of the mixture v̄, and α, float32 scalar."""

  local: PyTree
  alpha: jax.Array


class Pair(NamedTuple):
  """State of local training: copy w of the federated model, local model v (`own`), and mixing weight α.

  `own.loss` sums the losses of the mixture v̄.
  """

  federated: sgd.Local
  own: sgd.Local
  alpha: jax.Array


def mix(local: PyTree, federated: PyTree, alpha: jax.Array) -> PyTree:
  """Returns the mixture α v + (1 - α) w, leaf by leaf."""
  return jax.tree.map(lambda v, w: alpha * v + (1.0 - alpha) * w, local, federated)


@checked
def apfl(
  model: Model,
  *,
  alpha: Share = 0.25,
  adaptive: bool = False,
  **local: Unpack[LocalSettings],
) -> ClientUpdate:
  """APFL's client part; its state is the local model v, initialised to the first θ^g, and α.

  The global model is FedAvg's. Running statistics of the federated model are averaged; those of the mixture
  v̄ stay with v. A model on the line between θ^g and v has separately estimated statistics, so for a model
  with running statistics the point λ = α of the line is not exactly v̄; without them it is.

  Args:
    model: the model that clients train.
    alpha: α in [0, 1]; the initial value if α is adaptive.
    adaptive: whether each client learns its α.
    **local: local training, see `LocalSettings`, of both models; their learning rate is also α's.

  Raises:
    SettingError: a setting is out of range.
  """
  recipe = recipe_of(model, local)

  def start(broadcast, state: Own, context) -> Pair:
    tx = recipe.optimizer(context)
    federated = sgd.start(broadcast.params, broadcast.stats, tx)
    return Pair(federated, sgd.start(*model.split(state.local), tx), state.alpha)

  def run_steps(key, broadcast, state, data, context, work: Pair, first, last) -> Pair:
    rate, tx, fitted = recipe.rate(context.round), recipe.optimizer(context), recipe.fitted(data)

    def step(work: Pair, batch: Batch) -> Pair:
      (w, w_state, w_loss, steps, w_stats), (v, v_state, v_loss, _, v_stats), alpha = work
      loss, gradient, w_stats = fitted.gradient(w, w_stats, batch)
      mixed_loss, mixed, v_stats = fitted.gradient(mix(v, w, alpha), v_stats, batch, release=1)
      own = jax.tree.map(lambda g: alpha * g, mixed)
      if adaptive:
        along = sum(jax.tree.leaves(jax.tree.map(lambda a, b, g: jnp.sum((a - b) * g), v, w, mixed)))
        alpha = jnp.clip(alpha - rate * along, 0.0, 1.0)
      w_update, w_state = tx.update(gradient, w_state, w)
      v_update, v_state = tx.update(own, v_state, v)
      w, v = optax.apply_updates((w, v), updates_barrier((w_update, v_update)))
      return Pair(
        sgd.Local(w, w_state, w_loss + loss, steps + 1, w_stats),
        sgd.Local(v, v_state, v_loss + mixed_loss, steps + 1, v_stats),
        alpha,
      )

    return recipe.for_each_batch(key, data, step, work, first, last)

  def finish(broadcast, state, data, context, work: Pair):
    upload = Message(work.federated.params, stats=work.federated.stats)
    own, figures = work.own, {"alpha": work.alpha} if adaptive else ()
    state = Own(model.joined(own.params, own.stats), work.alpha)
    return upload, state, Info.of_sum(own.loss, own.steps, figures)

  def own_model(broadcast: Message, state: Own, *_) -> PyTree:
    local = model.split(state.local)
    return model.joined(mix(local.params, broadcast.params, state.alpha), local.stats)

  training = LocalTraining(recipe.steps, start, run_steps, finish, gradients=2 * recipe.gradients)
  return supervised(
    recipe, training, own_model, name="apfl", global_model=received(model),
    init=lambda key, broadcast, *_: Own(received(model)(broadcast), jnp.asarray(alpha, jnp.float32)),
    line=line(model, recipe.settings["batch_size"], lambda state: state.local),
  )  # fmt: skip
