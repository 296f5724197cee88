r"""FedAS: the received body is first aligned with the client's own one, and clients count by information.

Yang, Huang, Ye, FedAS: Bridging Inconsistency in Personalized Federated Learning, CVPR 2024, equations 4 to
9. With the body of its last round a client has the mean features C_{i,c} of its examples of each class. One
pass of SGD moves the received body so that the features of class c meet C_{i,c},

    mean over the batch's examples of c of ‖z - C_{i,c}‖² / d, summed over the batch's classes,

then the client trains this body together with its own head, and sends the body and the trace

    T_i = Σ_batches ‖∇ mean of -log p(y|x)‖²

after training, by which it counts: p_i = T_i / Σ_j T_j. The client's model is its own body and head.

Checked against the code that the authors gave to PFLlib: the alignment's loss, rate and batches, and the
trace over all parameters and the batches of one epoch, here in the order of the rows. As the gradients are
those of batch means, T_i depends on the batch size.
"""

from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_het.clients import sgd
from fedjax_het.clients.calibration import check_method
from fedjax_het.clients.fedproto import means_by_class
from fedjax_het.clients.heads import joined, parting
from fedjax_het.clients.local_settings import LocalSettings
from fedjax_het.clients.one_model import one_model
from fedjax_het.clients.recipe import recipe_of
from fedjax_het.clients.supervised import supervised
from fedjax_het.data.container import ClientData
from fedjax_het.errors import is_zero
from fedjax_het.local import Batch, for_each_batch, steps_per_epoch, trips
from fedjax_het.mixing.static import shares_of_examples
from fedjax_het.models import Model
from fedjax_het.models.features import with_features
from fedjax_het.parts import ClientUpdate, Feedback, LocalTraining, Message, Mixing, ServerUpdate
from fedjax_het.settings import Count, NonNegative, checked
from fedjax_het.tasks import mean_loss

PyTree = Any
ALIGN = 2**31 - 4  # folded into a round's key for the alignment's batches


class Aligned(NamedTuple):
  """State of local training: whether the received body has been aligned, and training."""

  there: jax.Array
  local: sgd.Local


@checked
def fedas(
  model: Model, *, align_lr: NonNegative = 0.01, align_batch: Count = 16, **local: Unpack[LocalSettings]
) -> ClientUpdate:
  """FedAS's client part, which brings its mixing; its state is the client's model. There is no global model.

  Args:
    model: the model that clients train; its last layer is a dense one.
    align_lr: the alignment's learning rate >= 0; 0 leaves it out.
    align_batch: the alignment's batch size.
    **local: local training, see `LocalSettings`.

  Raises:
    SettingError: a setting is out of range, or the labels are no classes; when a run is set up, the model has
      no linear head.
  """
  recipe, part = recipe_of(model, local), parting(model, "")
  check_method("fedas", model, counted=True)

  def features(body: PyTree, head: PyTree, stats: PyTree):
    own = model.joined(joined(body, head), stats)
    return lambda x: with_features(model).logits(own, x).features

  def aligned(key: jax.Array, broadcast: Message, state: PyTree, data: ClientData) -> PyTree:
    """Returns the received body after its alignment with the client's own one."""
    own = model.split(state)
    body, head = part(own.params)
    means, _ = means_by_class(features(body, head, own.stats), data, model.num_classes)

    def step(body: PyTree, batch: Batch) -> PyTree:
      def apart(body: PyTree) -> jax.Array:
        z = features(body, head, broadcast.stats)(batch.x)
        of_class = jax.nn.one_hot(batch.y, model.num_classes) * batch.weight[:, None]
        alike = of_class.sum(0)[batch.y]
        squares = jnp.square(z - means[batch.y]).mean(-1)
        return (batch.weight * squares / jnp.maximum(alike, 1.0)).sum()

      return jax.tree.map(lambda p, g: p - align_lr * g, body, jax.grad(apart)(body))

    key = jax.random.fold_in(key, ALIGN)
    return for_each_batch(key, data, align_batch, 1, step, broadcast.params)

  def start(broadcast, state, context) -> Aligned:
    params = joined(broadcast.params, part(model.split(state).params).head)
    return Aligned(jnp.bool_(False), sgd.start(params, broadcast.stats, recipe.optimizer(context)))

  def run_steps(key, broadcast, state, data, context, work: Aligned, first, last) -> Aligned:
    def align() -> sgd.Local:
      head = part(model.split(state).params).head
      params = joined(aligned(key, broadcast, state, data), head)
      return sgd.start(params, broadcast.stats, recipe.optimizer(context))

    begun = work.local if is_zero(align_lr) else lax.cond(work.there, lambda: work.local, align)
    done = sgd.run_steps(key, recipe, data, begun, recipe.optimizer(context), None, first, last)
    return Aligned(jnp.bool_(True), done)

  def information(params: PyTree, stats: PyTree, data: ClientData) -> jax.Array:
    """Computes the trace T_i of the empirical Fisher information, float32 scalar.

    It is the sum over mini-batches of the squared norm of the gradient of the mean loss.
    """
    size = min(recipe.settings["batch_size"], data.limit)

    def loss(own: PyTree, x: Any, y: jax.Array, inside: jax.Array) -> jax.Array:
      return mean_loss(model.task, model.logits(model.joined(own, stats), x), y, inside.astype(jnp.float32))

    def add(s: jax.Array, total: jax.Array) -> jax.Array:
      rows = s * size + jnp.arange(size)
      inside = rows < data.length
      gradient = jax.grad(loss)(params, *data.take(jnp.where(inside, rows, 0)), inside)
      return total + jnp.square(optax.tree.norm(gradient))

    return lax.fori_loop(0, trips(steps_per_epoch(data, size)), add, jnp.float32(0.0))

  plain = one_model(recipe)

  def finish(broadcast, state, data, context, work: Aligned):
    _, _, info = plain.finish(broadcast, state, data, context, work.local)
    params, stats = work.local.params, work.local.stats
    upload = Message(part(params).body, stats=stats, extra=information(params, stats, data))
    return upload, model.joined(params, stats), info

  made = supervised(
    recipe, LocalTraining(recipe.steps, start, run_steps, finish, recipe.gradients),
    lambda broadcast, state, *_: state, name="fedas",
    init_broadcast=lambda key: Message(part(model.init(key)).body, stats=model.stats),
    init=lambda key, *_: model.joined(model.init(key), model.stats),
  )  # fmt: skip
  own = {"mixing": by_information(), "server": averaging()}
  return made._replace(needs=made.needs._replace(brings=own, transformed=("params",)))


def by_information() -> Mixing:
  """Returns FedAS's mixing part: p_i = T_i / Σ_j T_j, or n_i / n if all T are 0.

  A client uploads its trace T_i as `Message.extra`. A sum of squares is not negative: a T_i below 0, as a
  dishonest client may send it, counts as 0.
  """

  def update(state: Any, feedback: Feedback) -> tuple[jax.Array, Any]:
    traces = jnp.maximum(feedback.uploads().extra, 0.0)
    total = traces.sum()
    own = traces * (1.0 / jnp.where(total > 0, total, 1.0))
    return jnp.where(total > 0, own, shares_of_examples(feedback)), state

  return Mixing(lambda sizes: (), update, "fedas")


def averaging() -> ServerUpdate:
  """Returns the server part that broadcasts the average of the models alone."""

  def update(key: jax.Array, state: Any, broadcast: Message, aggregate: Message) -> tuple[Message, Any]:
    return aggregate._replace(extra=()), state

  return ServerUpdate(lambda broadcast: (), update, "fedas")
