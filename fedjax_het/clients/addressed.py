"""Stacks of trees, a row for each client or model, and what servers share that keep one for each client."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from fedjax_het import vectors
from fedjax_het.errors import SettingError
from fedjax_het.parts import Message

PyTree = Any


def count_of(sizes: ArrayLike) -> int:
  """Returns K, the length of the clients' numbers of training examples.

  Raises:
    SettingError: `sizes` is no list of numbers.
  """
  shape = np.shape(sizes)
  if len(shape) != 1 or not shape[0]:
    problem = "is no list of the clients' numbers of training examples"
    raise SettingError("sizes", sizes, problem, "Give those of the data, data.train.size.")
  return shape[0]


def all_in_every_round(name: str) -> Callable[[int, int], None]:
  """Returns `Needs.check_cohort` of a method whose server compares all clients in every round."""

  def check_cohort(size: int, num: int) -> None:
    if size != num:
      problem = f"{name} needs all {num} clients in every round"
      raise SettingError("cohort_size", size, problem, f"Use cohort_size={num}, or another method.")

  return check_cohort


def copies(tree: PyTree, count: int) -> PyTree:
  """Returns a stack of equal rows, each leaf [count, ...]."""
  return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *jnp.shape(leaf))), tree)


def pick(stack: PyTree, i: int | jax.Array) -> PyTree:
  """Returns row i of a stack; or rows, for indices int [n]."""
  return jax.tree.map(lambda leaf: leaf[i], stack)


def put(stack: PyTree, ids: jax.Array, rows: PyTree) -> PyTree:
  """Returns a stack [K, ...] with the rows [S, ...] of the clients `ids`."""
  return jax.tree.map(lambda all_, some: all_.at[ids].set(some.astype(all_.dtype)), stack, rows)


def combined(weights: jax.Array, stack: PyTree) -> PyTree:
  """Computes Σ_j w_ij u_j of rows u_j, each leaf [N, ...], for weights float32 [S, N]; each leaf [S, ...].

  Whole numbers are rounded to the nearest. A row with w_ij = 0 is not read, so that it may be NaN; a leaf of
  one that is read and not finite makes that leaf of the sum NaN.
  """

  def one(leaf: jax.Array) -> jax.Array:
    flat = leaf.reshape(leaf.shape[0], -1).astype(jnp.float32)
    finite = jnp.isfinite(flat).all(1)
    found = jnp.dot(weights, jnp.where(finite[:, None], flat, 0.0), precision=jax.lax.Precision.HIGHEST)
    spoiled = ((weights != 0) & ~finite).any(1)
    return jnp.where(spoiled[:, None], jnp.nan, found).reshape(len(weights), *leaf.shape[1:])

  return vectors.in_kind_of(stack, jax.tree.map(one, stack))


class Mixed(NamedTuple):
  """State of a server that sends each client its own mixture of the clients' uploads.

  Attributes:
    weights: how much of what each client is sent is of each client, float32 [K, K], rows of sum 1.
    sent: what is sent, leaves [K, ...].
  """

  weights: jax.Array
  sent: PyTree

  def after(self, ids: jax.Array, weights: jax.Array, made: PyTree) -> "Mixed":
    """Returns the state after a round of the clients `ids`, [S], with weights [S, S] and leaves [S, ...]."""
    rows = jnp.zeros((len(ids), len(self.weights))).at[:, ids].set(weights)
    return Mixed(self.weights.at[ids].set(rows), put(self.sent, ids, made))

  @staticmethod
  def graph(broadcast: Message, state: "Mixed", clients: PyTree) -> jax.Array:
    """Returns the weights, as `Studies.graph`."""
    return state.weights

  @classmethod
  def first(cls, tree: PyTree, count: int) -> "Mixed":
    """Returns the first state, in which each client is sent `tree`, of itself alone."""
    return cls(jnp.eye(count), copies(tree, count))


def reciprocal(values: jax.Array) -> jax.Array:
  """Returns 1 / v where v > 0, else 1; products by it have the same bits on any number of devices."""
  return 1.0 / jnp.where(values > 0, values, 1.0)
