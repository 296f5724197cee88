"""Converts PyTorch's parameter names and array layouts to this library's.

A model's module maps model names to functions (state) -> (params, stats) in its dictionary `TORCH`.
`named(renames)` makes such a function for models of convolutions, dense layers and norms.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedjax_het.errors import DataError
from fedjax_het.models.weights.starting import Reader

State = Mapping[str, np.ndarray]
STATISTICS = {"running_mean": "mean", "running_var": "var"}
IGNORED = ("num_batches_tracked",)
SHOWN = 20  # number of patterns listed in a message


def kernel(weight: np.ndarray) -> np.ndarray:
  """Transposes a dense or convolution weight [outputs, inputs, ...] to the layout [..., inputs, outputs]."""
  return np.moveaxis(weight, (0, 1), (-1, -2))


def of_flattened(weight: np.ndarray, grid: Sequence[int]) -> np.ndarray:
  """Converts a dense weight [outputs, C·h·w] on an image flattened as [C, *grid] to [h·w·C, outputs].

  PyTorch flattens an image channels-first, [C, *grid]; this library flattens it channels-last, [*grid, C].
  """
  split = weight.reshape(len(weight), -1, *grid)
  return np.moveaxis(split, (0, 1), (-1, -2)).reshape(-1, len(weight))


def named(
  renames: Sequence[tuple[str, str]],
  grids: Mapping[str, Sequence[int]] | None = None,
  ignored: Sequence[str] = (),
  tables: Collection[str] = (),
) -> Reader:
  """Returns a function from a PyTorch state dict to (params, stats), nested dictionaries of float32 arrays.

  Args:
    renames: pairs (pattern, path). The first pattern that fully matches a module's PyTorch name, such as
      "layer1.0", gives its path with slashes in this library, expanded as in `re.sub`.
    grids: path -> (height, width) of the image that a dense layer reads flattened.
    ignored: patterns of PyTorch modules that have no counterpart in this library and are skipped.
    tables: paths of embedding tables.

  The returned function raises:
    DataError: no pattern matches a name.
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


def conv_norm(conv: str, norm: str, path: str) -> list[tuple[str, str]]:
  """Returns the renames of a convolution and its norm to the layers `conv` and `norm` below `path`."""
  return [(conv, f"{path}/conv"), (norm, f"{path}/norm")]


def torchvision_blocks(blocks: str, path: str, parts: Sequence[str]) -> list[tuple[str, str]]:
  """Returns the renames of torchvision's inverted residuals: the i-th part is `blocks`.block.i.

  Args:
    blocks: pattern of the blocks' names, whose groups `path` refers to.
    path: path of a block.
    parts: names of its layers, in order; "se" is squeeze and excitation, all others are `ConvNorm`.
  """
  found = []
  for i, part in enumerate(parts):
    where, ours = rf"{blocks}\.block\.{i}", f"{path}/{part}"
    if part == "se":
      found += [(rf"{where}\.fc1", f"{ours}/reduce"), (rf"{where}\.fc2", f"{ours}/expand")]
    else:
      found += conv_norm(rf"{where}\.0", rf"{where}\.1", ours)
  return found


def as_weight(name: str, value: np.ndarray) -> np.ndarray:
  """Converts a weight to float32; raises `DataError` naming it for anything but floats."""
  if not jnp.issubdtype(np.asarray(value).dtype, jnp.floating):
    raise DataError(f"{name} is {np.asarray(value).dtype}, not numbers in floating point, which weights are.")
  return np.asarray(value, np.float32)


def place(tree: dict[str, Any], path: str, leaf: str, array: np.ndarray) -> None:
  """Sets tree[path][leaf] = array, creating the nested dictionaries along `path`."""
  for part in path.split("/"):
    tree = tree.setdefault(part, {})
  tree[leaf] = array
