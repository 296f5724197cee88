"""A cohort's uploads as S vectors: norms, distances and means over all leaves of a tree, each leaf [S, ...].

Uploads may be dishonest. A NaN or infinite number makes the norm and the distances of its own upload infinite
and no others', and an upload with the weight 0 is not read. All is computed in float32; a norm above about
1e19 counts as infinite.

Uploads may be absent: `present`, bool [S], says which m >= 1 of the S are there. The others are no vectors:
they have no rank in an order and no distance.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_het.errors import SettingError

PyTree = Any


def enough(name: str, factor: int, byzantine: int | None) -> Callable[[int, int], None]:
  """Returns (S, K) -> None, a `Needs.check_cohort` that refuses cohorts of S < factor·f + 3 clients.

  Args:
    name: the method's name.
    factor: how many clients each dishonest upload asks for.
    byzantine: f; None for as many as S allows, so that S >= 3.
  """

  def check_cohort(size: int, num: int) -> None:
    least = factor * (byzantine or 0) + 3
    if size < least:
      remedy = f"Use {least} or more" + (", or a smaller byzantine." if byzantine else ".")
      problem = f"{name} needs {factor}f + 3 = {least} clients or more for f = {byzantine or 0}"
      raise SettingError("cohort_size", size, problem, remedy)

  return check_cohort


def liars(byzantine: int | None, factor: int, count: jax.Array) -> jax.Array:
  """Returns f for `count` uploads, int32: `byzantine`, but at most the largest f with count >= factor·f + 3.

  That largest f, at least 0, is taken if `byzantine` is None.
  """
  most = jnp.maximum((count - 3) // factor, 0).astype(jnp.int32)
  return most if byzantine is None else jnp.minimum(byzantine, most)


def over(weights: jax.Array, leaf: jax.Array) -> jax.Array:
  """Returns weights, such as one of each vector, [S], with trailing axes of length 1, to multiply a leaf."""
  return weights.reshape(*weights.shape, *[1] * (leaf.ndim - weights.ndim))


def form_of_one(stacked: PyTree) -> PyTree:
  """Returns the form of one of the vectors: each leaf [S, ...] as a `jax.ShapeDtypeStruct` of [...]."""
  return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), stacked)


def same_form(first: PyTree, second: PyTree) -> bool:
  """Returns whether two trees have the same structure and leaves of the same shapes.

  Trees of shapes are no way to tell: the shape of a number, (), equals an empty tree.
  """

  def form(tree: PyTree) -> tuple[list[tuple[int, ...]], Any]:
    leaves, structure = jax.tree.flatten(tree)
    return [jnp.shape(leaf) for leaf in leaves], structure

  return form(first) == form(second)


def in_kind_of(stacked: PyTree, found: PyTree) -> PyTree:
  """Returns one vector, `found`, in the dtypes of the vectors; to the nearest for whole numbers."""

  def one(leaf: jax.Array, value: jax.Array) -> jax.Array:
    whole = jnp.issubdtype(leaf.dtype, jnp.integer)
    return (jnp.round(value) if whole else value).astype(leaf.dtype)

  return jax.tree.map(one, stacked, found)


def differences(stacked: PyTree, point: PyTree) -> PyTree:
  """Computes u_i - z of the vectors and one vector of their form, float32.

  Raises:
    SettingError: the vectors have other fields or leaves than z, as when a client uploads what it never
      received.
  """
  sent, received = str(jax.tree.structure(stacked)), str(jax.tree.structure(point))
  if sent != received:
    problem = f"has another form than what its difference is taken from, {received}"
    raise SettingError("upload", sent, problem, "Use an aggregation of uploads as they are, such as median.")
  return jax.tree.map(lambda u, z: u.astype(jnp.float32) - z.astype(jnp.float32), stacked, point)


def squared_norms(stacked: PyTree) -> jax.Array:
  """Computes ‖u_i‖², float32 [S]; +∞ for a vector that is not finite."""
  own = [jnp.square(leaf.reshape(leaf.shape[0], -1).astype(jnp.float32)) for leaf in jax.tree.leaves(stacked)]
  return _finite(jnp.stack([leaf.sum(1) for leaf in own]).sum(0))


def ordered_mean(leaf: jax.Array, each_end: int | jax.Array, present: jax.Array) -> jax.Array:
  """Computes the mean without the `each_end` least and largest of the m numbers; NaN is the largest."""
  count, ranks = present.sum(), over(jnp.arange(leaf.shape[0]), leaf)
  inside = (ranks >= each_end) & (ranks < count - each_end)
  there = jnp.where(over(present, leaf), leaf.astype(jnp.float32), jnp.nan)  # the last ranks
  total = jnp.where(inside, jnp.sort(there, axis=0), 0.0).sum(0)
  return total * (1.0 / jnp.float32(count - 2 * each_end))


def median(stacked: PyTree, present: jax.Array) -> PyTree:
  """Computes the median of each coordinate, float32, the mean of the middle two if m is even."""
  middle = (present.sum() - 1) // 2
  return jax.tree.map(lambda leaf: ordered_mean(leaf, middle, present), stacked)


def squared_distances(stacked: PyTree, present: jax.Array) -> jax.Array:
  """Computes ‖u_i - u_j‖², float32 [S, S]; +∞ on the diagonal and to a vector that is absent or not finite.

  The distances come from the Gram matrix of the vectors' differences from their coordinate-wise median, so
  that they are exact to about 1e-7 of the squared distances from there.
  """

  found = apart(products(differences(stacked, median(stacked, present))))
  return jnp.where(present[:, None] & present[None, :], found, jnp.inf)


def products(stacked: PyTree) -> jax.Array:
  """Computes the inner products <u_i, u_j> over all leaves, float32 [S, S]."""

  def gram(leaf: jax.Array) -> jax.Array:
    flat = leaf.reshape(leaf.shape[0], -1).astype(jnp.float32)
    return jnp.dot(flat, flat.T, precision=jax.lax.Precision.HIGHEST)

  return sum(map(gram, jax.tree.leaves(stacked)), jnp.float32(0.0))


def apart(gram: jax.Array) -> jax.Array:
  """Computes ‖u_i - u_j‖², float32 [S, S], of inner products; +∞ on the diagonal and where it is not finite.

  It is exact to about 1e-7 of the squared norms, which are small where the u_i are differences from a point
  that is near to all of them.
  """
  norms = jnp.diag(gram)
  found = _finite(jnp.maximum(norms[:, None] + norms[None, :] - 2.0 * gram, 0.0))
  return jnp.where(jnp.eye(len(found), dtype=bool), jnp.inf, found)


def cosines(stacked: PyTree) -> jax.Array:
  """Computes the cosines of the angles between vectors, float32 [S, S]; 0 for a vector that is 0."""
  gram = products(stacked)
  norms = jnp.diag(gram)
  factor = jnp.where(norms > 0, jax.lax.rsqrt(jnp.where(norms > 0, norms, 1.0)), 0.0)
  return factor[:, None] * gram * factor[None, :]


def krum_scores(distances: jax.Array, neighbours: int | jax.Array) -> jax.Array:
  """Computes for each vector the sum of its `neighbours` least squared distances, float32 [S].

  Blanchard, El Mhamdi, Guerraoui, Stainer, Machine Learning with Adversaries, NeurIPS 2017, section 3: with f
  of m vectors dishonest, the m - f - 2 nearest count.
  """
  ordered = jnp.sort(distances, axis=1)
  return jnp.where(jnp.arange(len(distances)) < neighbours, ordered, 0.0).sum(1)


def weighted_sum(weights: jax.Array, stacked: PyTree) -> PyTree:
  """Computes Σ_i w_i u_i, float32, for w [S] >= 0; vectors with the weight 0 are not read."""

  def one(leaf: jax.Array) -> jax.Array:
    w = over(weights, leaf)
    return jnp.where(w > 0, w * leaf.astype(jnp.float32), 0.0).sum(0)

  return jax.tree.map(one, stacked)


def weighted_mean(weights: jax.Array, stacked: PyTree) -> PyTree:
  """Computes Σ_i w_i u_i / Σ_i w_i, see `weighted_sum`; NaN if all weights are 0."""
  total = weights.sum()
  found = weighted_sum(weights * (1.0 / total), stacked)
  return jax.tree.map(lambda leaf: jnp.where(total > 0, leaf, jnp.nan), found)


def _finite(squares: jax.Array) -> jax.Array:
  return jnp.where(jnp.isnan(squares), jnp.inf, squares)
