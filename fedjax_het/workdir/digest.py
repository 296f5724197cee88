"""A checksum of each array of a state, wherever its parts are."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


@jax.jit
def _sums(tree: Any) -> list[jax.Array]:
  """Computes each leaf's checksum Σ_j (2 j + 1) bits_j modulo 2^32, whose addition may be in any order."""

  def one(leaf: jax.Array) -> jax.Array:
    if jnp.issubdtype(leaf.dtype, jnp.inexact):
      leaf = lax.bitcast_convert_type(leaf, jnp.dtype(f"uint{8 * leaf.dtype.itemsize}"))
    bits, weight, stride = leaf.astype(jnp.uint32), jnp.uint32(1), 1
    for axis in reversed(range(leaf.ndim)):
      weight += jnp.uint32(2 * stride) * lax.broadcasted_iota(jnp.uint32, leaf.shape, axis)
      stride = stride * leaf.shape[axis] % 2**31
    return (bits * weight).sum(dtype=jnp.uint32)

  return [one(leaf) for leaf in jax.tree.leaves(tree)]


def _sum(leaf: np.ndarray) -> int:
  """Computes the checksum of `_sums` for one leaf on the host, without copying it."""
  flat, total = np.ravel(leaf), 0
  if jnp.issubdtype(leaf.dtype, jnp.inexact):
    flat = flat.view(f"uint{8 * leaf.dtype.itemsize}")
  for first in range(0, flat.size, 2**22):
    bits = flat[first : first + 2**22].astype(np.uint32)
    weights = 2 * np.arange(first, first + bits.size, dtype=np.uint64) + 1
    total += int((bits * weights.astype(np.uint32)).sum(dtype=np.uint32))
  return total % 2**32


def digest(tree: Any) -> list[int]:
  """Computes a checksum for each leaf, independent of how the leaf is spread over devices and hosts."""
  leaves = jax.tree.leaves(tree)
  away = [leaf for leaf in leaves if not isinstance(leaf, np.ndarray)]
  there = iter(_sums(away) if away else ())
  return [_sum(leaf) if isinstance(leaf, np.ndarray) else int(next(there)) for leaf in leaves]
