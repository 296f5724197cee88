"""Loss, optimiser and learning-rate schedule that all client parts with a supervised loss share."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_het.data.container import ClientData
from fedjax_het.errors import SettingError, check_transformation, is_zero
from fedjax_het.local import Batch
from fedjax_het.models.layers.product import divided
from fedjax_het.models.model import Model
from fedjax_het.models.tried import check_outputs, check_statistics, mistakes_in_training
from fedjax_het.modes import promoting
from fedjax_het.tasks import Task, mean_loss
from fedjax_het.tasks.task import or_one

PyTree = Any
MOMENTUM, WEIGHT_DECAY = 0.9, 1e-4  # defaults of local SGD in the papers
DROPOUT = 1  # folded into a step's key for dropout; the key itself is the method's
MANY, LARGE = 64, 4096  # a model of MANY leaves or more has only its LARGE ones ordered
Optimizer = Callable[[float | jax.Array], optax.GradientTransformation]


class Seen(NamedTuple):
  """What a method's own term of the loss may look at.

  Attributes:
    outputs: the model's outputs in training mode, float32 [B, ...].
    features: the input of its last layer, float32 [B, d], see `features.with_features`.
    batch: the mini-batch; rows of weight 0 are padding.
    stats: the model's running statistics before the batch.
  """

  outputs: jax.Array
  features: jax.Array
  batch: Batch
  stats: PyTree = ()


Term = Callable[[PyTree, Seen], jax.Array]
Outputs = Callable[[PyTree, Seen], jax.Array]


def batch_loss(
  model: Model, params: PyTree, stats: PyTree, batch: Batch, term: Callable[[Seen], jax.Array] | None = None,
  outputs: Callable[[Seen], jax.Array] | None = None,
) -> tuple[jax.Array, PyTree]:  # fmt: skip
  """Returns a mini-batch's loss, float32 scalar, and new statistics.

  The loss is the task's mean loss over the real examples, of the model's outputs or of those that `outputs`
  makes, plus `term`. For either of these the model has to return `features.Featured`.
  """
  key = jax.random.fold_in(batch.key, DROPOUT)
  found: Any
  found, after = model.in_training(params, stats, batch.x, batch.weight, key)
  plain = term is None and outputs is None
  own = found if plain else found.outputs
  check_outputs(model, params, stats, batch.x, own)
  seen: Any = None if plain else Seen(own, found.features, batch, stats)
  loss = mean_loss(model.task, own if outputs is None else outputs(seen), batch.y, batch.weight)
  return loss if term is None else loss + term(seen), after


def loss_gradient(
  model: Model, params: PyTree, stats: PyTree, batch: Batch,
  at: Callable[[PyTree], PyTree] | None = None, term: Term | None = None, outputs: Outputs | None = None,
) -> tuple[jax.Array, PyTree, PyTree]:  # fmt: skip
  """Returns (loss, gradient with respect to `params`, updated statistics) of a mini-batch, see `batch_loss`.

  Args:
    model: the model.
    params: the trained parameters.
    stats: the model's running statistics.
    batch: the mini-batch.
    at: (params) -> the model's parameters; None if `params` are the model's parameters.
    term: (params, `Seen`) -> a method's own term of the loss, float32 scalar; None for none.
    outputs: (params, `Seen`) -> the outputs that the task's loss is of; None for the model's.

  Raises:
    SettingError: the model raises in training, or its gradient cannot be taken, or its statistics change
      their shapes. The round is traced before it is compiled, so that this is said before.
  """

  def of(params: PyTree) -> tuple[jax.Array, PyTree]:
    own, made = (each and functools.partial(each, params) for each in (term, outputs))
    return batch_loss(model, params if at is None else at(params), stats, batch, own, made)

  with mistakes_in_training(model):
    (loss, stats), gradient = jax.value_and_grad(of, has_aux=True)(params)
  check_statistics(model, stats)
  return loss, gradient, stats


def training_loss(model: Model, joined: PyTree, data: ClientData, batch_size: int = 256) -> jax.Array:
  """Computes F_i(θ) = Σ_k total_k / Σ_k weight_k, a client's mean training loss, float32 scalar.

  The loss is the task's, over all of the client's examples, in one forward pass over blocks of examples. It
  is differentiable in forward and reverse mode; a reverse pass recomputes each block's activations and stores
  none. A client smaller than the largest skips the blocks that it lacks (under `vmap` they are computed and
  discarded).

  Args:
    model: the model, whose task defines the loss.
    joined: parameters, with statistics if the model has some, see `Model.joined`.
    data: the client's examples.
    batch_size: maximum number of examples per block, see `ClientData.block`.
  """
  batch_size = data.block(batch_size)

  @jax.checkpoint
  def of_block(first):
    rows = first + jnp.arange(batch_size)
    inside = rows < data.length
    x, y = data.take(jnp.where(inside, rows, 0))
    losses = model.task.losses(model.logits(joined, x), y)
    return jax.tree.map(lambda own: jnp.sum(jnp.where(inside, own, 0.0), dtype=jnp.float32), losses)

  nothing = jax.tree.map(lambda own: jnp.zeros(own.shape, own.dtype), jax.eval_shape(of_block, jnp.int32(0)))

  def add(sums, first):
    more = lax.cond(first < data.length, of_block, lambda _: nothing, first)
    return jax.tree.map(jnp.add, sums, more), None

  (total, weight), _ = lax.scan(add, nothing, jnp.arange(0, data.limit, batch_size))
  return total / (jnp.asarray(data.length, jnp.float32) if weight is None else or_one(weight))


def momentum_sgd(
  momentum: float = MOMENTUM, weight_decay: float = WEIGHT_DECAY, nesterov: bool = False
) -> Optimizer:
  """Returns lr -> SGD with momentum and L2 weight decay, which is added to the gradient before momentum.

  With g = ∇ + weight_decay·θ,  m <- momentum·m + g;  θ <- θ - lr·m,  or with `nesterov`
  θ <- θ - lr·(momentum·m + g).
  """

  def make(lr: float | jax.Array) -> optax.GradientTransformation:
    return optax.chain(
      optax.identity() if is_zero(weight_decay) else optax.add_decayed_weights(weight_decay),
      optax.identity() if is_zero(momentum) else optax.trace(momentum, nesterov),
      optax.scale_by_learning_rate(lr),
    )

  return make


def adam(b1: float, b2: float, weight_decay: float, eps: float = 1e-8, decoupled: bool = False) -> Optimizer:
  """Returns lr -> Adam with L2 weight decay added to the gradient before Adam, or `decoupled` as in AdamW."""

  def make(lr: float | jax.Array) -> optax.GradientTransformation:
    decay, scale = optax.add_decayed_weights(weight_decay), promoting(scale_by_adam(b1, b2, eps))
    return optax.chain(*((scale, decay) if decoupled else (decay, scale)), optax.scale_by_learning_rate(lr))

  return make


def scale_by_adam(b1: float, b2: float, eps: float = 1e-8) -> optax.GradientTransformation:
  """Returns `optax.scale_by_adam`, whose divisions by 1 - β^t are `divided`."""

  def update(
    gradient: PyTree, state: optax.ScaleByAdamState, params: PyTree = None
  ) -> tuple[PyTree, optax.ScaleByAdamState]:
    first = optax.tree.update_moment(gradient, state.mu, b1, 1)
    second = optax.tree.update_moment_per_elem_norm(gradient, state.nu, b2, 2)
    count = optax.safe_increment(state.count)
    rest = 1.0 - b1**count, 1.0 - b2**count

    def step(m: jax.Array, v: jax.Array) -> jax.Array:
      own = divided(m, rest[0].astype(m.dtype)), divided(v, rest[1].astype(v.dtype))
      return own[0] / (jnp.sqrt(own[1]) + eps)

    kept = optax.tree.cast_like(second, state.nu)
    return jax.tree.map(step, first, second), optax.ScaleByAdamState(count, first, kept)

  return optax.GradientTransformation(optax.scale_by_adam(b1, b2).init, update)


def updates_barrier(updates: PyTree) -> PyTree:
  """Orders the updates by the barrier `leaves_barrier` on CPUs; elsewhere returns them unchanged.

  On a GPU the barrier made a step 1.04 to 1.16 times as long.
  """
  return leaves_barrier(updates) if jax.default_backend() == "cpu" else updates


def leaves_barrier(updates: PyTree) -> PyTree:
  """Scheduling barrier: makes each leaf's update wait for all others, without changing any value.

  The gradient that updates one leaf may read other leaves: a layer's gradient reads the layers above it,
  either end of SuPerFed's line reads the other end. Without the barrier XLA may schedule one update before
  the last reader is done, and therefore copies the parameters in every step; the barrier saves the copies, a
  fifth of SuPerFed's TwoNN step on CPU. If there are many leaves, only the large ones wait: copies of small
  leaves cost a large model nothing, and a barrier over hundreds of leaves takes long to compile.

  All leaves wait for one sum over an array, which XLA computes once. A sum of scalars would be inlined into
  every update, and a program of L leaves would grow with L²: EfficientNet-B0's then took three times as long
  to compile.
  """
  leaves, tree = jax.tree.flatten(updates)
  least = LARGE if len(leaves) > MANY else 0
  some = jnp.array([leaf.ravel()[0] for leaf in leaves if leaf.size > least] or [0.0])
  nothing = jnp.where(jnp.isfinite(some), 0.0 * some, 0.0).sum()
  return jax.tree.unflatten(tree, [leaf + nothing if leaf.size > least else leaf for leaf in leaves])


def decayed(lr: float, lr_decay: float, round: int | jax.Array) -> jax.Array:
  """Learning rate of a round t, η_t = η·decay^t."""
  decay = jnp.asarray(lr_decay, jnp.float32)
  return lr * (decay**round if isinstance(round, int) else lax.pow(decay, round))


def linear(part: jax.Array) -> jax.Array:
  """Returns 1 - u for the share u of the rounds, and 0 after the last."""
  return jnp.maximum(1.0 - part, 0.0)


def cosine(part: jax.Array) -> jax.Array:
  """Returns (1 + cos πu)/2 for the share u of the rounds, and 0 after the last."""
  return 0.5 * (1.0 + jnp.cos(jnp.pi * jnp.minimum(part, 1.0)))


SCHEDULES: dict[str, Callable[[jax.Array], jax.Array]] = {
  "constant": jnp.ones_like, "linear": linear, "cosine": cosine,
}  # fmt: skip
"""Schedules of the learning rate by name: (t/T) -> the factor on the rate."""


def weighted(task: Task, weight: float | jax.Array) -> Task:
  """Returns the task whose training losses are multiplied by `weight`; its metrics do not change."""

  def losses(outputs: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array | None]:
    each, own = task.losses(outputs, y)
    return weight * each, own

  return task._replace(losses=losses)


def smoothed(task: Task, share: float | jax.Array, there: jax.Array | None = None) -> Task:
  """Returns a task of C classes whose losses are those of smoothed labels, (1 - a)·L(y) + a/C·Σ_c L(c).

  Class weights act as in PyTorch's cross_entropy(label_smoothing=a): L(c) has the weight of class c, and a
  batch is divided by the weights of its labels.

  Args:
    task: the task.
    share: a in [0, 1).
    there: the classes whose mean loss is taken, bool [C]; None for all.

  Raises:
    SettingError: the labels are not classes.
  """
  if not task.classes:
    problem = f"smooths labels that are classes, and those of {task.name} are none"
    raise SettingError("label_smoothing", share, problem, "Leave it out.")

  def losses(outputs: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array | None]:
    total, weight = task.losses(outputs, y)
    count = max(outputs.shape[-1], 2)  # one logit tells two classes apart
    each = jax.vmap(lambda label: task.losses(outputs, jnp.full_like(y, label))[0])(
      jnp.arange(count, dtype=y.dtype)
    )
    if there is None:
      mean = each.mean(0)
    else:
      mean = jnp.where(there[:, None], each, 0.0).sum(0) / jnp.maximum(there.sum(), 1)
    return (1.0 - share) * total + share * mean, weight

  return task._replace(losses=losses)


def check_model(model: Any) -> None:
  """Raises `SettingError` if `model` is not a `Model`, such as a bare Flax module."""
  if not isinstance(model, Model):
    remedy = "Make one of a Flax module by fedjax_het.models.from_flax(module, shape, num_classes)."
    raise SettingError("model", type(model).__name__, "is no fedjax_het.Model", remedy)


def check_optimizer(make: Any, lr: float | jax.Array, given: Mapping[str, Any]) -> None:
  """Checks a user's optimiser that replaces local SGD, and that no setting of ours is given beside it.

  Args:
    make: function η -> optax transformation.
    lr: η.
    given: the settings of our optimisers that are given, other than at their defaults.

  Raises:
    SettingError: `make` is not a function from η to an optax transformation; the transformation needs more
      than gradient, state and parameters; or a setting of our optimisers is given as well.
  """
  remedy = "Give the function itself, such as optimizer=optax.adam, and the rate as lr."
  if not callable(make):
    raise SettingError("optimizer", type(make).__name__, "not a function of the learning rate", remedy)
  try:
    made = make(lr)
  except TypeError as error:
    name = getattr(make, "__name__", type(make).__name__)
    raise SettingError(
      "optimizer", name, f"cannot be called with a learning rate ({error})", remedy
    ) from error
  if not isinstance(made, optax.GradientTransformation):
    name = getattr(make, "__name__", type(make).__name__)
    raise SettingError("optimizer", name, f"gives {type(made).__name__}, no optax transformation", remedy)
  check_transformation("optimizer", getattr(make, "__name__", type(make).__name__), made)
  for name, value in given.items():
    problem = "belongs to the optimisers that optimizer replaces, and would have no effect"
    raise SettingError(name, value, problem, "Leave it out, and set it within optimizer.")
