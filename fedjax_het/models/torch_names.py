"""PyTorch's names and layouts of parameters, in ours.

A family's file maps its models' names to functions (state) -> (params, stats) in its `TORCH`. For modules of
convolutions, dense layers and norms they are `named(renames)`.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedjax_het.errors import DataError
from fedjax_het.models.weights import Reader

State = Mapping[str, np.ndarray]
STATISTICS = {"running_mean": "mean", "running_var": "var"}
IGNORED = ("num_batches_tracked",)
SHOWN = 20  # patterns in a message


def kernel(weight: np.ndarray) -> np.ndarray:
  """[outputs, inputs, ...] -> [..., inputs, outputs]: of a dense layer, or of any convolution."""
  return np.moveaxis(weight, (0, 1), (-1, -2))


def of_flattened(weight: np.ndarray, grid: Sequence[int]) -> np.ndarray:
  """A dense kernel [inputs, outputs] of an image that PyTorch flattens as [C, *grid], we as [*grid, C]."""
  split = weight.reshape(len(weight), -1, *grid)
  return np.moveaxis(split, (0, 1), (-1, -2)).reshape(-1, len(weight))


def named(
  renames: Sequence[tuple[str, str]],
  grids: Mapping[str, Sequence[int]] | None = None,
  ignored: Sequence[str] = (),
  tables: Collection[str] = (),
) -> Reader:
  """A function from a PyTorch state to our (params, stats), nested dictionaries of float32 arrays.

  Args:
    renames: (pattern, ours): the first pattern that a module's whole name in PyTorch matches, as in
      "layer1.0", says its path here, with slashes, as in `re.sub`.
    grids: path -> (height, width) of the image that a dense layer reads flattened.
    ignored: patterns of modules that we do not have.
    tables: paths of embeddings.

  The function raises:
    DataError: a name that no pattern matches.
  """
  grids = grids or {}

  def read(state: State) -> tuple[dict[str, Any], dict[str, Any]]:
    params: dict[str, Any] = {}
    stats: dict[str, Any] = {}
    for name, value in state.items():
      module, _, leaf = name.rpartition(".")
      if leaf in IGNORED or any(re.fullmatch(pattern, module) for pattern in ignored):
        continue
      matches = (re.fullmatch(pattern, module) for pattern, _ in renames)
      path = next((match.expand(ours) for match, (_, ours) in zip(matches, renames) if match), None)
      if path is None or leaf not in ("weight", "bias", *STATISTICS):
        plain = (pattern.replace("\\.", ".").replace("(\\d)", "0") for pattern, _ in renames[:SHOWN])
        known = ", ".join(plain) + (", ..." if renames[SHOWN:] else "")
        raise DataError(f"{name} is no array of this model by PyTorch's names. Modules are called {known}.")
      array = as_weight(name, value)
      if leaf in STATISTICS:
        place(stats, path, STATISTICS[leaf], array)
      elif leaf == "bias":
        place(params, path, "bias", array)
      elif path in tables:
        place(params, path, "embedding", array)
      elif array.ndim == 1:
        place(params, path, "scale", array)
      else:
        place(params, path, "kernel", of_flattened(array, grids[path]) if path in grids else kernel(array))
    return params, stats

  return read


def as_weight(name: str, value: np.ndarray) -> np.ndarray:
  """A weight in float32; raises `DataError`, which names it, for anything but floats."""
  if not jnp.issubdtype(np.asarray(value).dtype, jnp.floating):
    raise DataError(f"{name} is {np.asarray(value).dtype}, not numbers in floating point, which weights are.")
  return np.asarray(value, np.float32)


def place(tree: dict[str, Any], path: str, leaf: str, array: np.ndarray) -> None:
  """Sets the leaf at a path of a tree, making what is on the way."""
  for part in path.split("/"):
    tree = tree.setdefault(part, {})
  tree[leaf] = array
