r"""Sparse differences: k of a tensor's n numbers are sent, the largest ones or random ones.

Stich, Cordonnier, Jaggi, Sparsified SGD with Memory, NeurIPS 2018. k is share·n to the nearest, at least 1.
The others are lost without error feedback, and random_k then sends n/k times its numbers, which makes it
unbiased, with the variance (n/k - 1)‖Δ‖².
"""

import math
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.parts import Upload, Wire
from fedjax_het.settings import Neutral, Range, checked

Part = Annotated[float, Range(above=0.0, high=1.0), Neutral(1.0)]


def kept(share: float | jax.Array, size: int) -> jax.Array | np.ndarray:
  """Computes k, int32; the same on the host as in a program that has the share as a value."""
  of = jnp if isinstance(share, jax.Array) else np
  return of.clip(of.round(of.float32(share) * of.float32(size)), 1, size).astype(np.int32)


def first(order: jax.Array, count: jax.Array | np.ndarray) -> jax.Array:
  """Returns which places are among the first `count` of an order, bool [n]."""
  places = jnp.arange(len(order))
  return jnp.zeros(len(order), bool).at[order].set(places < count)


def _sparse(name: str, share: float | jax.Array, error_feedback: bool, cost, chosen, scaled=False) -> Upload:
  """Returns the transform that sends the numbers that `chosen`(key, numbers [n], k) marks, bool [n]."""

  def one(key: jax.Array, leaf: jax.Array) -> jax.Array:
    flat, k = leaf.reshape(-1), kept(share, leaf.size)
    factor = jnp.float32(leaf.size) * (1.0 / jnp.float32(k)) if scaled else 1.0
    return jnp.where(chosen(key, flat, k), factor * flat, 0.0).reshape(leaf.shape)

  def encode(key, difference, state, way):
    keys = jax.random.split(key, len(difference))
    return [one(own, leaf) for own, leaf in zip(keys, difference)], state

  def of_tensor(wire: Wire) -> Wire:
    k: Any = kept(share, wire.size)
    if isinstance(k, jax.Array):  # a value of a program, which asks for seconds alone; int32 might overflow
      k = jnp.minimum(jnp.float32(k), wire.values)
    else:
      k = min(int(k), wire.values)
    return wire._replace(values=k, more=wire.more + cost(wire.size, k))

  return Upload(
    encode, name, of_tensor, error_feedback=error_feedback, compresses=True, sparse=True,
    is_identity=not isinstance(share, jax.Array) and share == 1.0,
  )  # fmt: skip


@checked
def top_k(share: Part = 0.01, error_feedback: bool = True) -> Upload:
  """Sends each tensor's k largest numbers by magnitude; k = n is left out.

  Indices take k ⌈log₂ n⌉ bits, or n bits, one for each number, where that is less.

  Args:
    share: k/n in (0, 1].
    error_feedback: whether a client adds what it left out to its next difference.
  """

  def chosen(key, numbers, k):
    return first(jnp.argsort(-jnp.abs(numbers), stable=True), k)

  def cost(size, k):
    each = k * (math.ceil(math.log2(size)) if size > 1 else 0)
    return jnp.minimum(each, size) if isinstance(each, jax.Array) else min(each, size)

  return _sparse("top_k", share, error_feedback, cost, chosen)


@checked
def random_k(share: Part = 0.01, error_feedback: bool = True) -> Upload:
  """Sends k random numbers of each tensor, and 32 bits for the seed of their places; k = n is left out.

  Args:
    share: k/n in (0, 1].
    error_feedback: whether a client adds what it left out to its next difference; without, the numbers are
      sent n/k times as large.
  """

  def chosen(key, numbers, k):
    return first(jnp.argsort(jax.random.uniform(key, numbers.shape)), k)

  return _sparse("random_k", share, error_feedback, lambda size, k: 32, chosen, not error_feedback)
