"""Trees as named arrays, which is all of a run that travels and that a node keeps; no Python objects."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from fedjax_het.errors import DataError

PyTree = Any
Arrays = dict[str, np.ndarray]
Parcel = tuple[Arrays, dict[str, Any]]  # what one message holds: arrays; numbers and texts


def to_arrays(tree: PyTree) -> Arrays:
  """Flattens a tree to arrays on the host, named by their number and path, such as "0003.params['fc1']"."""
  leaves = jax.tree.leaves_with_path(tree)
  return {f"{n:04d}{jax.tree_util.keystr(path)}": np.asarray(leaf) for n, (path, leaf) in enumerate(leaves)}


def of_arrays(arrays: Mapping[str, np.ndarray], like: PyTree, what: str) -> PyTree:
  """Returns the tree of named arrays with the structure of `like`, whose leaves have `shape` and `dtype`.

  Raises:
    DataError: an array is missing, one is too many, or a shape or dtype differs; `what` names the tree.
  """
  wanted = jax.tree.leaves_with_path(like)
  names = [f"{n:04d}{jax.tree_util.keystr(path)}" for n, (path, _) in enumerate(wanted)]
  if wrong := sorted({*names} ^ {*arrays}):
    raise DataError(f"{what} is of another model: {wrong[0]} is only in one. Give both the same algorithm.")

  def one(name: str, like: Any) -> np.ndarray:
    array = np.asarray(arrays[name])
    if array.dtype.kind == "V":  # NumPy's files have no name for bfloat16
      array = array.view(like.dtype)
    if (array.shape, array.dtype) != (like.shape, like.dtype):
      found, own = (f"{a.dtype} {[*a.shape]}" for a in (array, like))
      raise DataError(f"{what} is of another model: {name} is {found}, and here {own}.")
    return array

  leaves = [one(name, leaf) for name, (_, leaf) in zip(names, wanted)]
  return jax.tree.unflatten(jax.tree.structure(like), leaves)
