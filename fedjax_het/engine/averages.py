"""How a cohort's uploads become one message: each field's average, see `Message`.

`present`, bool [S], says whose uploads arrived; it is None if all did, and then nothing is masked.
"""

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from fedjax_het.engine.placement import rounded, weighted_sum
from fedjax_het.engine.state import State
from fedjax_het.parts import Message, Pooled, PyTree
from fedjax_het.vectors import over


def average(
  coefficients: jax.Array, uploads: Message, broadcast: Message, mesh: Mesh | None,
  present: jax.Array | None = None,
) -> Message:  # fmt: skip
  """Computes the averages of all fields of the uploads.

  Args:
    coefficients: p, float32 [S].
    uploads: the cohort's uploads, each leaf [S, ...].
    broadcast: what the cohort received.
    mesh: the devices; None for the one that runs this.
    present: whose uploads count for `even`, bool [S]; None for all. The others' are zero, see `arrived`.

  Returns:
    Σ_i p_i u_i of the fields, but Σ_i u_i / S of `even` and `wire`, and Σ_i w_i v_i / Σ_i w_i of `pooled`.
  """
  alike = jnp.full_like(coefficients, 1.0 / len(coefficients)) if present is None else shares(present)
  even = weighted_sum(alike, Message((), even=uploads.even, wire=uploads.wire), mesh)
  mixed = weighted_sum(coefficients, uploads._replace(even=(), pooled=(), wire=()), mesh)
  own = pooled(uploads.pooled, broadcast.pooled, mesh)
  return mixed._replace(even=even.even, pooled=own, wire=even.wire)


def shares(present: jax.Array) -> jax.Array:
  """Returns 1 / (number of the present) for each that is present and 0 for the others, float32 [S]."""
  return jnp.where(present, 1.0 / jnp.maximum(present.sum(), 1).astype(jnp.float32), 0.0)


def voting(present: jax.Array | None, cohort_size: int) -> jax.Array:
  """Returns whose uploads count, bool [S]: everybody's in a round, thrown away, where nobody arrives."""
  return jnp.ones(cohort_size, bool) if present is None else present | ~present.any()


def arrived(tree: PyTree, present: jax.Array | None, otherwise: PyTree = None) -> PyTree:
  """Returns rows [S, ...] with those of `otherwise`, by default zeros, where a client is not present."""
  if present is None:
    return tree

  def one(leaf: jax.Array, other: jax.Array) -> jax.Array:
    return jnp.where(over(present, leaf), leaf, other)

  zeros = jax.tree.map(jnp.zeros_like, tree) if otherwise is None else otherwise
  return jax.tree.map(one, tree, zeros)


def without_absent(values: jax.Array, present: jax.Array | None) -> jax.Array:
  """Returns values [S] with the mean over the present in the places of the others; 0 if nobody is present."""
  if present is None:
    return values
  known = jnp.where(present, values, 0.0)
  return jnp.where(present, values, known.sum() * (1.0 / jnp.maximum(present.sum(), 1)))


def over_present(coefficients: jax.Array, present: jax.Array | None) -> jax.Array:
  """Returns coefficients [S] renormalised over the present; equal ones if theirs are all 0."""
  if present is None:
    return coefficients
  own = jnp.where(present, coefficients, 0.0)
  total = own.sum()
  return jnp.where(total > 0, own * (1.0 / jnp.where(total > 0, total, 1.0)), shares(present))


def unless_empty(after: State, before: State, present: jax.Array | None, moves: bool = False) -> State:
  """Returns the state after a round; if nobody was present, with the server's side as it was before.

  With `moves` the aggregate moves the server all the same, see `Aggregation.by_expected`: the mixing part's
  state alone is as before.
  """
  if present is None:
    return after
  names = ("mixing",) if moves else ("broadcast", "server", "mixing", "aggregation")

  def kept(new: jax.Array, old: jax.Array) -> jax.Array:
    return jnp.where(present.any(), new, old)

  return after._replace(
    **{name: jax.tree.map(kept, getattr(after, name), getattr(before, name)) for name in names}
  )


def pooled(sent: Pooled | tuple[()], own: PyTree, mesh: Mesh | None) -> PyTree:
  """Computes Σ_i w_i v_i / Σ_i w_i, and the broadcast's `own` values where Σ_i w_i = 0 or nobody sent any.

  Both sums go in the clients' order. Values with weight 0 are not read.

  Args:
    sent: the cohort's values and weights, each leaf [S, ...]; () if no client sends any.
    own: the broadcast's values.
    mesh: the devices; None for the one that runs this.
  """
  if not isinstance(sent, Pooled):
    return own

  def product(value: jax.Array, weight: jax.Array) -> jax.Array:
    weight = over(weight, value)
    return jnp.where(weight > 0, weight * value, 0.0)

  each = jax.tree.broadcast(sent.weights, sent.values)
  ones = jnp.ones(len(jax.tree.leaves(sent.weights)[0]))
  total, weight = weighted_sum(ones, (jax.tree.map(product, sent.values, each), sent.weights), mesh)

  def mean(total: jax.Array, weight: jax.Array, own: jax.Array) -> jax.Array:
    some = weight > 0  # by a factor: XLA compiles a division differently on several devices
    factor = over(1.0 / jnp.where(some, weight, 1.0), total)
    return jnp.where(over(some, total), total * factor, own).astype(own.dtype)

  return jax.tree.map(mean, total, jax.tree.broadcast(weight, total), own)


def without_unread(uploads: Message, coefficients: jax.Array) -> Message:
  """Replaces uploads of coefficient 0, which may be NaN, by zeros; see `Needs.covers`."""

  def one(leaf: jax.Array) -> jax.Array:
    return jnp.where(over(coefficients, leaf) == 0, jnp.zeros((), leaf.dtype), leaf)

  return jax.tree.map(one, uploads)


def scaled(uploads: Message, broadcast: Message, scale: jax.Array) -> Message:
  """Computes θ + s_i (θ_i - θ) of each client's params; the other fields are unchanged."""

  def one(upload: jax.Array, base: jax.Array) -> jax.Array:
    return rounded(base + over(scale, upload) * (upload - base), upload.dtype)

  return uploads._replace(params=jax.tree.map(one, uploads.params, broadcast.params))
