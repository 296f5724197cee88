"""Packs small arrays into one, as each array costs the compiler the same time, whatever its size."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

PyTree = Any
SMALL = 65536  # elements; a leaf with at most so many is packed


class Packing(NamedTuple):
  """The layout of a tree's leaves in packed arrays: the large leaves, then one vector of all small ones.

  Attributes:
    tree: structure of the tree.
    shapes: shape and dtype of each leaf.
    small: which leaves are in the vector, namely small float32 ones.
  """

  tree: Any
  shapes: list[jax.ShapeDtypeStruct]
  small: list[bool]

  def pack(self, tree: PyTree) -> list[jax.Array]:
    """Returns a tree's packed arrays; all leaves may have the same additional leading axes."""
    leaves = self.tree.flatten_up_to(tree)
    small = [
      leaf.reshape(*leaf.shape[: leaf.ndim - len(own.shape)], -1)
      for leaf, own, is_small in zip(leaves, self.shapes, self.small)
      if is_small
    ]
    large = [leaf for leaf, is_small in zip(leaves, self.small) if not is_small]
    return large + ([jnp.concatenate(small, axis=-1)] if small else [])

  def unpack(self, arrays: Sequence[jax.Array]) -> PyTree:
    """Returns the tree of packed arrays, the inverse of `pack`."""
    large, leaves, first = iter(arrays), [], 0
    for own, is_small in zip(self.shapes, self.small):
      if is_small:
        last = first + math.prod(own.shape)
        leaf = arrays[-1][..., first:last]
        leaves.append(leaf.reshape(*leaf.shape[:-1], *own.shape))
        first = last
      else:
        leaves.append(next(large))
    return self.tree.unflatten(leaves)

  def room(self, count: int) -> list[jax.Array]:
    """Returns packed arrays of zeros for `count` trees, each [count, ...]."""
    one = jax.eval_shape(self.pack, self.tree.unflatten(self.shapes))
    return [jnp.zeros((count, *leaf.shape), leaf.dtype) for leaf in one]


def packing(shapes: PyTree) -> Packing:
  """Returns the layout for trees of these shapes."""
  leaves, tree = jax.tree.flatten(shapes)
  small = [leaf.dtype == jnp.float32 and math.prod(leaf.shape) <= SMALL for leaf in leaves]
  return Packing(tree, leaves, small)
