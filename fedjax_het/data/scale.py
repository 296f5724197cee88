"""How stored examples are read: bytes become floats, in one place."""

from typing import Any

import jax
import numpy as np

PyTree = Any


def scale_of(x: jax.Array | np.ndarray, scale: float | None) -> float | None:
  """What examples x, [N, ...], are multiplied by when they are read; None leaves them as they are.

  The given scale. Where there is none: uint8 of three axes or more are images, [N, H, W] or [N, H, W, C],
  with 1/255; uint8 of fewer axes are tables, with 1; all else (floats, ids of signed types) stays.
  """
  if scale is None and x.dtype == np.uint8:
    return 1 / 255 if x.ndim > 2 else 1.0
  return scale


def as_read(x: PyTree, scale: float | None) -> PyTree:
  """Examples as models see them: x · `scale_of` in float32, or x itself; each array of a tree for itself.

  Ids that are stored in int8 or int16, which takes a quarter or half of the memory, are read as int32.

  Args:
    x: stored examples, [N, ...] or a batch [B, ...] of them, NumPy's or JAX's, traced or not.
    scale: the data set's own, or None.
  """

  def read(leaf):
    factor = scale_of(leaf, scale)
    if factor is not None:
      return leaf.astype(np.float32) * np.float32(factor)
    return leaf.astype(np.int32) if leaf.dtype in (np.int8, np.int16) else leaf

  return jax.tree.map(read, x)
