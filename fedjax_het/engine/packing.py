"""Many small arrays as one: each by itself would take the compiler as long as a large one does."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

PyTree = Any
SMALL = 65536  # numbers of a leaf up to which it is one of the small


class Packing(NamedTuple):
  """Where the leaves of a tree are among packed arrays: first the large ones, then the small as one vector.

  Attributes:
    tree: its structure.
    shapes: of each leaf.
    small: which leaves are small and of float32, and so in the vector.
  """

  tree: Any
  shapes: list[jax.ShapeDtypeStruct]
  small: list[bool]

  def pack(self, tree: PyTree) -> list[jax.Array]:
    """A tree's arrays, the small ones laid end to end; all may have the same axes before their own."""
    leaves = self.tree.flatten_up_to(tree)
    small = [
      leaf.reshape(*leaf.shape[: leaf.ndim - len(own.shape)], -1)
      for leaf, own, is_small in zip(leaves, self.shapes, self.small)
      if is_small
    ]
    large = [leaf for leaf, is_small in zip(leaves, self.small) if not is_small]
    return large + ([jnp.concatenate(small, axis=-1)] if small else [])

  def unpack(self, arrays: Sequence[jax.Array]) -> PyTree:
    """The tree of packed arrays, see `pack`."""
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
    """Packed arrays of zeros for so many trees, [count, ...]."""
    one = jax.eval_shape(self.pack, self.tree.unflatten(self.shapes))
    return [jnp.zeros((count, *leaf.shape), leaf.dtype) for leaf in one]


def packing(shapes: PyTree) -> Packing:
  """How to pack trees of these shapes."""
  leaves, tree = jax.tree.flatten(shapes)
  small = [leaf.dtype == jnp.float32 and math.prod(leaf.shape) <= SMALL for leaf in leaves]
  return Packing(tree, leaves, small)
