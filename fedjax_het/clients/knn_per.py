r"""kNN-Per: the global model's predictions, interpolated with the labels of near training examples.

Marfoq, Neglia, Vidal, Kameni, Personalized Federated Learning through Local Memorization, ICML 2022; the rule
was read in the authors' code. Training is FedAvg's. At an evaluation a client keeps the features z_j, float32
[d], and the labels y_j of its training examples. With the k nearest ones of an example's features z,

    p_kNN(y | x) ∝ Σ_j exp(-‖z - z_j‖² / (d σ)) [y_j = y],      p = λ_i p_kNN + (1 - λ_i) softmax f(x).

λ_i is the one of 0, 0.1, ..., 1 with the least mean -log p on the client's validation rows, or, where it has
none, on its training rows, each of which then is no neighbour of itself. The model has seen these, so that
λ_i is too small rather than too large. The authors search for the best accuracy.
"""

from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.clients.calibration import check_method
from fedjax_het.clients.local_settings import LocalSettings
from fedjax_het.clients.one_model import one_model
from fedjax_het.clients.recipe import recipe_of
from fedjax_het.clients.supervised import received, supervised
from fedjax_het.data.container import ClientData, FederatedData
from fedjax_het.models import Model
from fedjax_het.models.features import Featured, with_features
from fedjax_het.parts import ClientUpdate
from fedjax_het.settings import Count, Positive, checked

PyTree = Any
LAMBDAS = tuple(round(0.1 * i, 1) for i in range(11))
FAR = -1e30  # the exponent of a place without a neighbour
LEAST = 1e-12  # of a probability whose logarithm is taken


class Memory(NamedTuple):
  """A client's training examples: features [n, d], labels int32 [n], which rows are real, bool [n]."""

  features: jax.Array
  labels: jax.Array
  real: jax.Array


class Personal(NamedTuple):
  """A client's model for evaluation: the global one, joined with statistics, the memory, and λ_i."""

  model: PyTree
  memory: Memory
  lam: jax.Array


def neighbours(
  memory: Memory, features: jax.Array, usable: jax.Array, k: int, sigma: float | jax.Array, num_classes: int
) -> tuple[jax.Array, jax.Array]:
  """Returns (p_kNN, float32 [B, C], whether there is a neighbour, bool [B]); without one p_kNN means nothing.

  Args:
    memory: the client's training examples.
    features: z, float32 [B, d].
    usable: which examples of the memory may be neighbours of which row, bool [B, n].
    k: the number of neighbours, of which there may be fewer.
    sigma: σ.
    num_classes: C.
  """
  own, other = (jnp.square(rows).sum(-1) for rows in (features, memory.features))
  products = jnp.matmul(features, memory.features.T, precision=jax.lax.Precision.HIGHEST)
  squares = own[:, None] + other - 2.0 * products
  nearest, which = jax.lax.top_k(jnp.where(usable, -squares, -jnp.inf), min(k, len(memory.labels)))
  there = jnp.isfinite(nearest)
  share = jax.nn.softmax(jnp.where(there, nearest / (features.shape[1] * sigma), FAR))
  votes = jax.nn.one_hot(memory.labels[which], num_classes)
  return (share[:, :, None] * votes).sum(1), there.any(1)


def interpolated(nearby: jax.Array, there: jax.Array, logits: jax.Array, lam: jax.Array) -> jax.Array:
  """Computes p, float32 [B, C]; softmax f(x) where there is no neighbour."""
  lam = jnp.where(there, lam, 0.0)[:, None]
  return lam * nearby + (1.0 - lam) * jax.nn.softmax(logits)


@checked
def knn_per(
  model: Model, *, k: Count = 10, sigma: Positive = 1.0, **local: Unpack[LocalSettings]
) -> ClientUpdate:
  """kNN-Per's client part; the global model is FedAvg's, and F_i is its loss.

  Args:
    model: the model that clients train; it has to name its head.
    k: the number of neighbours.
    sigma: σ > 0, width of the kernel.
    **local: local training, see `LocalSettings`.

  Raises:
    SettingError: a setting is out of range, or the labels are no classes; when a run is set up, the model has
      no features.
  """
  recipe = recipe_of(model, local)
  check_method("knn_per", model, counted=True)

  def seen(joint: PyTree, x: PyTree) -> Featured:
    return with_features(model).logits(joint, x)

  def by_blocks(data: ClientData, of: Any) -> Any:
    """Returns of(rows int32 [B], x, y) of a client's rows, block by block, each leaf [n, ...]."""
    block = data.block(256)
    starts = jnp.arange(0, data.limit, block)

    def one(start: jax.Array) -> Any:
      rows = start + jnp.arange(block)
      return of(rows, *data.take(rows))

    found = jax.lax.map(one, starts)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[: data.limit], found)

  def memory_of(joint: PyTree, data: ClientData) -> Memory:
    features, labels = by_blocks(data, lambda rows, x, y: (seen(joint, x).features, y))
    return Memory(features, labels, jnp.arange(data.limit) < data.length)

  def losses(joint: PyTree, memory: Memory, data: ClientData, apart: bool) -> jax.Array:
    """Computes the mean -log p on a client's rows for each λ, float32 [11].

    Args:
      joint: the model.
      memory: the client's training examples.
      data: the rows.
      apart: whether they are the memory's own, so that none may be its own neighbour.
    """

    def of(rows: jax.Array, x: PyTree, y: jax.Array) -> jax.Array:
      found = seen(joint, x)
      usable = jnp.broadcast_to(memory.real, (rows.shape[0], len(memory.real)))
      if apart:
        usable = usable & (rows[:, None] != jnp.arange(len(memory.real)))
      nearby, there = neighbours(memory, found.features, usable, k, sigma, model.num_classes)
      each = [interpolated(nearby, there, found.outputs, jnp.float32(lam)) for lam in LAMBDAS]
      chosen = jnp.take_along_axis(jnp.stack(each, 1), y[:, None, None], axis=2)[:, :, 0]
      return -jnp.log(chosen)

    inside = (jnp.arange(data.limit) < data.length)[:, None]
    return jnp.where(inside, by_blocks(data, of), 0.0).sum(0) / jnp.float32(data.length)

  def personalize(broadcast, state, data: ClientData, context, lam) -> Personal:
    joint = received(model)(broadcast)
    memory = memory_of(joint, data)
    found, valid = losses(joint, memory, data, apart=True), data.validation
    if valid is not None and valid.limit:
      found = jnp.where(valid.length > 0, losses(joint, memory, valid, apart=False), found)
    return Personal(joint, memory, jnp.asarray(LAMBDAS, jnp.float32)[jnp.argmin(found)])

  def apply(params: Any, x: jax.Array) -> jax.Array:
    if not isinstance(params, Personal):
      return model.logits(params, x)
    found = seen(params.model, x)
    usable = jnp.broadcast_to(params.memory.real, (found.features.shape[0], len(params.memory.real)))
    nearby, there = neighbours(params.memory, found.features, usable, k, sigma, model.num_classes)
    return jnp.log(jnp.maximum(interpolated(nearby, there, found.outputs, params.lam), LEAST))

  def remarks(data: FederatedData):
    yield from recipe.remarks(data)
    if not np.asarray(data.valid.size).any():
      yield "knn_per chooses λ on training rows, as no client has validation rows (valid_fraction)."

  made = supervised(recipe, one_model(recipe), name="knn_per", apply=apply)
  needs = made.needs._replace(sees_data=("personalize", "validation"), remarks=remarks)
  return made._replace(personalize=personalize, needs=needs)
