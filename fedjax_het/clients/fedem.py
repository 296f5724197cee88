r"""FedEM: every client's distribution is a mixture of M shared ones, with weights of its own.

Marfoq, Neglia, Bellet, Kameni, Vidal, Federated Multi-Task Learning under a Mixture of Distributions, NeurIPS
2021, algorithm 2. The server keeps θ_1, ..., θ_M, client i its weights π_i, 1/M at first. With the losses
ℓ(θ_m; s) of its examples s under the received models, a round is

    q(m | s) ∝ π_{i,m} exp(-ℓ(θ_m; s)),      π_{i,m} <- mean_s q(m | s),
    θ_{i,m} <- SGD on  (1/n_i) Σ_s q(m | s) ℓ(θ_m; s)      from θ_m, each m with an optimiser of its own,

and θ_m <- Σ_i p_i θ_{i,m}. A client predicts by Σ_m π_{i,m} softmax(f_m(x)). With class weights c, ℓ is c_y
times the cross entropy, and a batch's sum is divided by the sum of its c_y.
"""

from typing import Annotated, Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import optax

from fedjax_het.clients import sgd
from fedjax_het.clients.calibration import check_method
from fedjax_het.clients.local_settings import LocalSettings
from fedjax_het.clients.objective import updates_barrier
from fedjax_het.clients.recipe import check_plain_labels, recipe_of
from fedjax_het.clients.supervised import supervised
from fedjax_het.data.container import ClientData
from fedjax_het.errors import SettingError
from fedjax_het.local import Batch, sum_over_blocks
from fedjax_het.models import Model
from fedjax_het.parts import ClientUpdate, Info, LocalTraining, Message
from fedjax_het.settings import Whole, checked
from fedjax_het.tasks.task import or_one

PyTree = Any


class Mixture(NamedTuple):
  """A client's model for evaluation: the M models, each leaf [M, ...], and their weights, float32 [M]."""

  models: PyTree
  weights: jax.Array


def responsibilities(
  model: Model, models: PyTree, weights: jax.Array, x: jax.Array, y: jax.Array
) -> jax.Array:
  """Computes q(m | s), float32 [M, B], of examples [B, ...], with sum 1 over m."""
  losses = jax.vmap(lambda own: model.task.losses(model.apply(own, x), y)[0])(models)
  return jax.nn.softmax(jnp.log(jnp.maximum(weights, 1e-30))[:, None] - losses, axis=0)


def mean_responsibilities(model: Model, models: PyTree, weights: jax.Array, data: ClientData) -> jax.Array:
  """Computes the mean of q(m | s) over a client's examples, float32 [M]."""

  def of(x: Any, y: jax.Array, inside: jax.Array) -> jax.Array:
    return jnp.where(inside, responsibilities(model, models, weights, x, y), 0.0).sum(1)

  return sum_over_blocks(data, of) / jnp.float32(data.length)


@checked
def fedem(
  model: Model, *, models: Annotated[int, Whole(1)] = 3, **local: Unpack[LocalSettings]
) -> ClientUpdate:
  """FedEM's client part; its state is the client's weights π_i. There is no global model.

  Args:
    model: the model that clients train M of, without running statistics.
    models: M >= 1, the number of models; 1 is FedAvg.
    **local: local training, see `LocalSettings`.

  Raises:
    SettingError: a setting is out of range, the labels are no classes, `mixup` is given, or the model has
      running statistics.
  """
  recipe = recipe_of(model, local)
  check_method("fedem", model)
  check_plain_labels(recipe, "fedem")
  if model.stateful:
    problem = "has running statistics, which depend on the examples' weights"
    raise SettingError("model", model.name, problem, "Use a model without batch norm.")

  def weights_of(batch: Batch) -> jax.Array:
    """Returns how much each example counts, float32 [B]: its class's weight, and 0 for padding."""
    found = model.task.losses(jnp.zeros((len(batch.weight), model.num_classes)), batch.y)[1]
    return batch.weight if found is None else batch.weight * found

  def start(broadcast, state, context):
    kept = jax.vmap(recipe.optimizer(context).init)(broadcast.params)
    return sgd.Local(broadcast.params, kept, jnp.float32(0.0), jnp.int32(0))

  def run_steps(key, broadcast, state, data, context, local, first, last):
    tx, own = recipe.optimizer(context), recipe.fitted(data)

    def step(local: sgd.Local, batch: Batch) -> sgd.Local:
      q = responsibilities(model, broadcast.params, state, batch.x, batch.y)
      counts = weights_of(batch)
      mean = (q * counts).sum(1) / or_one(counts.sum())

      def one(params: PyTree, kept: PyTree, weight: jax.Array, share: jax.Array) -> Any:
        loss, gradient, _ = own.gradient(params, (), batch._replace(weight=batch.weight * weight))
        updates, after = tx.update(jax.tree.map(lambda g: share * g, gradient), kept, params)
        return share * loss, optax.apply_updates(params, updates), after

      losses, params, kept = jax.vmap(one)(local.params, local.optimizer, q, mean)
      return sgd.Local(updates_barrier(params), kept, local.loss + losses.sum(), local.steps + 1)

    return recipe.for_each_batch(key, data, step, local, first, last)

  def finish(broadcast, state, data, context, local):
    weights = mean_responsibilities(model, broadcast.params, state, data)
    figures = {"largest_weight": weights.max()} if models > 1 else ()
    return Message(local.params), weights, Info.of_sum(local.loss, local.steps, figures)

  def apply(params: Mixture, x: jax.Array) -> jax.Array:
    each = jax.vmap(lambda own: jax.nn.log_softmax(model.apply(own, x)))(params.models)
    return jax.nn.logsumexp(each, axis=0, b=params.weights[:, None, None])

  made = supervised(
    recipe, LocalTraining(recipe.steps, start, run_steps, finish, models * recipe.gradients),
    lambda broadcast, state, *_: Mixture(broadcast.params, state), name="fedem",
    init_broadcast=lambda key: Message(jax.vmap(model.init)(jax.random.split(key, models))),
    init=lambda *_: jnp.full(models, 1.0 / models), apply=apply,
  )  # fmt: skip
  return made._replace(studies=made.studies._replace(membership=lambda broadcast, state, *_: state))
