"""What every supervised client shares: its loss, its optimiser, its learning rate."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from fedjax_het.data.container import ClientData
from fedjax_het.errors import SettingError, check_range, check_transformation, check_whole, is_zero
from fedjax_het.local import Batch
from fedjax_het.models.model import Model
from fedjax_het.tasks import mean_loss
from fedjax_het.tasks.task import or_one

PyTree = Any
MOMENTUM, WEIGHT_DECAY = 0.9, 1e-4  # of the papers' local SGD
DROPOUT = 1  # what a step's key is folded with; the key itself is the method's
MANY, LARGE = 64, 4096  # leaves from which on only those of more numbers wait for one another
Optimizer = Callable[[float | jax.Array], optax.GradientTransformation]


def batch_loss(model: Model, params: PyTree, stats: PyTree, batch: Batch) -> tuple[jax.Array, PyTree]:
  """The task's mean loss over a mini-batch's real examples, float32 scalar, and the statistics after it."""
  key = jax.random.fold_in(batch.key, DROPOUT)
  outputs, stats = model.in_training(params, stats, batch.x, batch.weight, key)
  return mean_loss(model.task, outputs, batch.y, batch.weight), stats


def loss_gradient(
  model: Model, params: PyTree, stats: PyTree, batch: Batch,
  at: Callable[[PyTree], PyTree] | None = None,
) -> tuple[jax.Array, PyTree, PyTree]:  # fmt: skip
  """`batch_loss`, its gradient with respect to what is trained, and the statistics after it.

  Args:
    model: the model.
    params: what is trained.
    stats: the model's statistics.
    batch: the mini-batch.
    at: (params) -> the model's parameters; None where those are what is trained.
  """

  def of(params: PyTree) -> tuple[jax.Array, PyTree]:
    return batch_loss(model, params if at is None else at(params), stats, batch)

  (loss, stats), gradient = jax.value_and_grad(of, has_aux=True)(params)
  return loss, gradient, stats


def training_loss(model: Model, joined: PyTree, data: ClientData, batch_size: int = 256) -> jax.Array:
  """F_i(θ) = Σ_k total_k / Σ_k weight_k, the task's mean loss of all of a client's examples, float32 scalar.

  One forward pass. It can be differentiated, in both modes; a gradient goes through the examples `batch_size`
  at a time, and keeps no activations of the others. A client smaller than the largest skips the blocks that
  it lacks (under `vmap` it computes them and drops them).

  Args:
    model: whose task says what the loss is.
    joined: its parameters, with their statistics where it has some, see `Model.joined`.
    data: the client's examples.
    batch_size: of the blocks, at most; see `ClientData.block`.
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
  return total / (data.length if weight is None else or_one(weight))


def momentum_sgd(momentum: float = MOMENTUM, weight_decay: float = WEIGHT_DECAY) -> Optimizer:
  """lr -> SGD with weight decay added to the gradient before momentum, as in the papers.

  m <- momentum·m + (∇ + weight_decay·θ);  θ <- θ - lr·m.
  """

  def make(lr: float | jax.Array) -> optax.GradientTransformation:
    return optax.chain(
      optax.identity() if is_zero(weight_decay) else optax.add_decayed_weights(weight_decay),
      optax.identity() if is_zero(momentum) else optax.trace(momentum),
      optax.scale_by_learning_rate(lr),
    )

  return make


def adam(b1: float, b2: float, weight_decay: float) -> Optimizer:
  """lr -> Adam with weight decay added to the gradient before it, not decoupled as in AdamW."""
  return lambda lr: optax.chain(
    optax.add_decayed_weights(weight_decay), optax.scale_by_adam(b1, b2), optax.scale_by_learning_rate(lr)
  )


def together(updates: PyTree) -> PyTree:
  """The same updates; on CPUs `waiting`, which on a GPU made a step 1.04 to 1.16 times as long."""
  return waiting(updates) if jax.default_backend() == "cpu" else updates


def waiting(updates: PyTree) -> PyTree:
  """The same updates, each made to wait for all the others.

  A leaf's update may read other leaves: the gradient of one layer those above it, either end of SuPerFed's
  line the other end. Left to itself XLA may apply one update before the last reader is done, and copies the
  parameters in every step to be able to; waiting saves the copies, a fifth of SuPerFed's TwoNN step on CPU.
  Of many leaves only the large wait: copies of small ones cost a large model nothing, and what makes hundreds
  of leaves wait takes long to compile.

  What they wait for is a sum over an array, which XLA computes once. A sum of scalars it would put into every
  update, and a program of L leaves would grow with L²: EfficientNet-B0's then took three times as long to
  compile.
  """
  leaves, tree = jax.tree.flatten(updates)
  least = LARGE if len(leaves) > MANY else 0
  some = jnp.array([leaf.ravel()[0] for leaf in leaves if leaf.size > least] or [0.0])
  nothing = jnp.where(jnp.isfinite(some), 0.0 * some, 0.0).sum()
  return jax.tree.unflatten(tree, [leaf + nothing if leaf.size > least else leaf for leaf in leaves])


def decayed(lr: float, lr_decay: float, round: int | jax.Array) -> jax.Array:
  """η_t = η·decay^t."""
  return lr * jnp.asarray(lr_decay, jnp.float32) ** round


def check_model(model: Any) -> None:
  """Raises `SettingError` for what is no `Model`, such as a bare Flax module."""
  if not isinstance(model, Model):
    remedy = "Make one of a Flax module by fedjax_het.models.from_flax(module, shape, num_classes)."
    raise SettingError("model", type(model).__name__, "is no fedjax_het.Model", remedy)


def check_training(**settings: Any) -> None:
  """Checks the settings that all local trainings share; names are the factories' own."""
  for name, value in settings.items():
    if isinstance(value, jax.core.Tracer):
      continue
    if name.endswith("epochs") or name in ("batch_size", "inner_steps"):
      check_whole(name, value, 1)
    elif name == "start_round":
      check_range(name, value, 0.0)
      if value % 1 and value != np.inf:
        remedy = f"Count rounds from 0; a share of T rounds is start_round=int({value} * T)."
        raise SettingError(name, value, "not a round", remedy)
    elif name == "lr":
      check_range(name, value, above=0.0, below=np.inf)
    elif name == "lr_decay":
      check_range(name, value, 0.0, 1.0, above=0.0)
    elif name in ("momentum", "b1", "b2"):
      check_range(name, value, 0.0, below=1.0)
    else:
      check_range(name, value, 0.0, below=np.inf)


def check_optimizer(make: Any, lr: float | jax.Array, **of_sgd: float | jax.Array) -> None:
  """Checks what stands in for local SGD, and that nothing is set that only SGD would heed.

  Args:
    make: η -> the optax transformation.
    lr: η.
    **of_sgd: momentum and weight_decay, as they came.

  Raises:
    SettingError: no function from η to an optax transformation; one that wants more than a gradient, its
      state and the parameters; a momentum or weight decay of SGD's beside it.
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
  for name, usual in (("momentum", MOMENTUM), ("weight_decay", WEIGHT_DECAY)):
    value = of_sgd[name]
    if isinstance(value, jax.core.Tracer) or value != usual:
      problem = "is of the SGD that optimizer replaces, and would have no effect"
      raise SettingError(name, value, problem, "Leave it out, and set it within optimizer.")
