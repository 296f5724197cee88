r"""FML: a private and a shared model of a client teach each other, and the shared one is averaged.

Shen et al., Federated Mutual Learning, arXiv:2006.16765, 2020, equations 6 to 8, after deep mutual learning
(Zhang et al., CVPR 2018). Client i keeps q_i, is sent w, and in each step moves both models, each along its
own loss on the batch, where the other one's probabilities are fixed:

    L_q = α CE(q, y) + (1 - α) KL(w ‖ q),      L_w = β CE(w, y) + (1 - β) KL(q ‖ w).

w is uploaded. Clients are judged by q_i; w is the global model. Here both have the same layers. The authors'
code was not at hand; the directions of the divergences are PFLlib's, too, where the gradient of each loss
flows into both models and the divergence is divided by B·C.
"""

from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp

from fedjax_het.clients import sgd
from fedjax_het.clients.calibration import check_method
from fedjax_het.clients.local_settings import LocalSettings
from fedjax_het.clients.objective import Seen, weighted
from fedjax_het.clients.recipe import Recipe, recipe_of
from fedjax_het.clients.supervised import received, supervised
from fedjax_het.errors import is_one
from fedjax_het.local import Batch, weighted_mean
from fedjax_het.models import Model
from fedjax_het.parts import ClientUpdate, Info, LocalTraining, Message
from fedjax_het.settings import Weight, checked

PyTree = Any


class Two(NamedTuple):
  """Training of the private and of the shared model."""

  private: sgd.Local
  shared: sgd.Local


def divergence(teacher: jax.Array, logits: jax.Array) -> jax.Array:
  """Computes KL(softmax(teacher) ‖ softmax(logits)) of rows [B, C], float32 [B]."""
  other, own = jax.nn.log_softmax(teacher), jax.nn.log_softmax(logits)
  return (jnp.exp(other) * (other - own)).sum(-1)


@checked
def fml(
  model: Model, *, alpha: Weight = 0.5, beta: Weight = 0.5, **local: Unpack[LocalSettings]
) -> ClientUpdate:
  """FML's client part; its state is the private model, at first the received one.

  Args:
    model: the model that clients train two of; it has to name its head.
    alpha: α in [0, 1], weight of the labels for the private model; 1 is local training of it.
    beta: β in [0, 1], weight of the labels for the shared model; 1 is FedAvg of it.
    **local: local training, see `LocalSettings`, of each of both models.

  Raises:
    SettingError: a setting is out of range, or the labels are no classes.
  """
  recipe = recipe_of(model, local)
  check_method("fml", model)

  def start(broadcast, state, context) -> Two:
    tx, own = recipe.optimizer(context), model.split(state)
    return Two(sgd.start(own.params, own.stats, tx), sgd.start(broadcast.params, broadcast.stats, tx))

  def run_steps(key, broadcast, state, data, context, work: Two, first, last) -> Two:
    tx, fitted = recipe.optimizer(context), recipe.fitted(data)

    def one(own: sgd.Local, other: sgd.Local, weight: Any, batch: Batch, release: int) -> sgd.Local:
      trained = fitted if is_one(weight) else taught(fitted, model.joined(other.params, other.stats), weight)
      loss, gradient, stats = trained.gradient(own.params, own.stats, batch, release=release)
      return sgd.stepped(own, tx, gradient, loss, stats)

    def step(work: Two, batch: Batch) -> Two:
      private = one(work.private, work.shared, alpha, batch, 0)
      return Two(private, one(work.shared, work.private, beta, batch, 1))

    return recipe.for_each_batch(key, data, step, work, first, last)

  def finish(broadcast, state, data, context, work: Two):
    private, shared = work
    upload = Message(shared.params, stats=shared.stats)
    return upload, model.joined(private.params, private.stats), Info.of_sum(private.loss, private.steps)

  return supervised(
    recipe, LocalTraining(recipe.steps, start, run_steps, finish, 2 * recipe.gradients, recipe.counted),
    lambda broadcast, state, *_: state, name="fml", global_model=received(model),
    init=lambda key, broadcast, *_: received(model)(broadcast),
  )  # fmt: skip


def taught(recipe: Recipe, teacher: PyTree, weight: float | jax.Array) -> Recipe:
  """Returns the recipe of a·CE + (1 - a)·KL(teacher ‖ model) for a weight a of the labels.

  Args:
    recipe: local training.
    teacher: the other model, joined with statistics, as it is before the step.
    weight: a in [0, 1].
  """
  model = recipe.model

  def teach(params: PyTree, seen: Seen) -> jax.Array:
    apart = divergence(model.logits(teacher, seen.batch.x), seen.outputs)
    return (1.0 - weight) * weighted_mean(apart, seen.batch.weight)

  return recipe._replace(model=model._replace(task=weighted(model.task, weight)), term=teach)
