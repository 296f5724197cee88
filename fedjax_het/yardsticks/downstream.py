"""What a synthetic set is worth: the classifier that learns from it alone, and how its examples differ."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from fedjax_het.clients.objective import cross_entropy
from fedjax_het.models import Model

PyTree = Any


def downstream(
  key: jax.Array, model: Model, x: jax.Array, y: jax.Array, *, steps: int = 1000, lr: float = 1e-3,
  tolerance: float = 0.01,
) -> tuple[PyTree, jax.Array]:  # fmt: skip
  """A fresh classifier trained on a synthetic set to convergence: (parameters, final mean loss).

  Adam on the whole set at once, until its mean cross-entropy is below `tolerance` nats or for `steps` steps.
  A pure function, safe under jit and vmap.

  Args:
    key: typed key of the initial parameters.
    model: the classifier.
    x: synthetic examples, float32 [M, ...].
    y: their labels, int32 [M].
    steps: at most so many.
    lr: Adam's step size.
    tolerance: the loss that counts as converged.
  """
  optimizer = optax.adam(lr)
  params = model.init(key)

  def loss(params):
    return cross_entropy(model.apply(params, x), y).mean()

  def unfinished(carry):
    _, _, value, step = carry
    return (value > tolerance) & (step < steps)

  def step(carry):
    params, state, _, count = carry
    value, gradient = jax.value_and_grad(loss)(params)
    updates, state = optimizer.update(gradient, state)
    return optax.apply_updates(params, updates), state, value, count + 1

  start = params, optimizer.init(params), jnp.float32(jnp.inf), jnp.int32(0)
  params, _, value, _ = jax.lax.while_loop(unfinished, step, start)
  return params, value


def within_class_distance(x: jax.Array, y: jax.Array, num_classes: int) -> jax.Array:
  """Mean Euclidean distance between two examples of a class, float32 [C]; NaN for a class without two.

  Beside that of as many real examples it tells whether synthetic ones are near-copies of one another.

  Args:
    x: examples, float32 [M, ...].
    y: labels, int32 [M].
    num_classes: C.
  """
  flat = x.reshape(x.shape[0], -1)
  distance = jnp.sqrt(jnp.maximum(((flat[:, None] - flat[None, :]) ** 2).sum(-1), 0.0))
  member = jax.nn.one_hot(y, num_classes)
  count = member.sum(0)
  return jnp.einsum("ic,ij,jc->c", member, distance, member) / (count * (count - 1.0))
