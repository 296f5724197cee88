"""The factor that turns stored bytes into floats when a batch is read, decided in this one file."""

from typing import Any

import jax
import numpy as np
from absl import logging

from fedjax_het.errors import SettingError

PyTree = Any


def scale_of(x: jax.Array | np.ndarray, scale: float | None) -> float | None:
  """Returns the factor that examples x, [N, ...], are multiplied by when read; None leaves them unchanged.

  This is the given scale if there is one. Otherwise uint8 of three axes or more are images, [N, H, W] or [N,
  H, W, C], with factor 1/255; uint8 of fewer axes are tables, with factor 1; uint16 of four axes or more are
  images, with factor 1/65535; all else (floats, ids) has none. `check_images` refuses other whole numbers of
  four axes.
  """
  if scale is None and x.dtype == np.uint8:
    return 1 / 255 if x.ndim > 2 else 1.0
  if scale is None and x.dtype == np.uint16 and x.ndim > 3:
    return 1 / 65535
  return scale


def check_images(x: PyTree, scale: float | None) -> None:
  """Raises `SettingError` for images of whole numbers of unknown range; warns of small uint16 values.

  Args:
    x: stored examples. One array of four axes or more, [N, H, W, C], holds images; a tree of arrays, or
      arrays of fewer axes, may hold ids.
    scale: the data set's scale, or None.
  """
  if scale is not None or not isinstance(x, np.ndarray) or x.ndim < 4 or x.dtype.kind not in "iu":
    return
  largest = int(x.max(initial=0))
  if x.dtype not in (np.uint8, np.uint16):
    raise SettingError(
      "x", f"{x.dtype} {list(x.shape)}", f"images of whole numbers up to {largest}, whose range is unknown",
      f"Give the factor, scale=1/{max(largest, 1)}, or store bytes: x.astype(np.uint8).",
    )  # fmt: skip
  if x.dtype == np.uint16 and 0 < largest < 2**14:
    logging.warning(
      "x: images of uint16 are read as [0, 1] by 1/65535, and the largest value is %d. If their range is"
      " smaller, say so: scale=1/%d.", largest, largest,
    )  # fmt: skip


def as_read(x: PyTree, scale: float | None) -> PyTree:
  """Converts stored examples to what models see: x times `scale_of(x)` in float32, or x itself.

  Each array of a tree is converted on its own. Ids that are stored as int8 or int16 to save memory are read
  as int32.

  Args:
    x: stored examples, [N, ...] or a batch [B, ...], NumPy's or JAX's, traced or not.
    scale: the data set's scale, or None.
  """

  def read(leaf):
    factor = scale_of(leaf, scale)
    if factor is not None:
      return leaf.astype(np.float32) * np.float32(factor)
    return leaf.astype(np.int32) if leaf.dtype in (np.int8, np.int16) else leaf

  return jax.tree.map(read, x)
