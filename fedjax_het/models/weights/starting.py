"""Models whose parameters and running statistics start from a weight file.

The library's own format is an .npz of arrays named "params/LAYER/.../kernel" and "stats/LAYER/.../mean", as
written by `save_weights` and `python -m fedjax_het.models.convert`. A .safetensors or .npz file with
PyTorch's names is converted through the `TORCH` table of the model's module.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from fedjax_het.errors import DataError, SettingError
from fedjax_het.models.model import Model, within
from fedjax_het.models.weights.files import Arrays, check_file, read_arrays, write_arrays

PyTree = Any
Reader = Callable[[Mapping[str, np.ndarray]], tuple[PyTree, PyTree]]

PARTS = ("params", "stats")
SHOWN = 3  # number of array names listed in a message


def by_name(params: PyTree, stats: PyTree = ()) -> dict[str, Any]:
  """Flattens parameters and statistics to a dictionary of leaves with the names of a weight file.

  A key is, for example, "params/fc1/kernel" or "stats/norm1/mean".
  """
  return {
    _name(part, path): leaf
    for part, tree in zip(PARTS, (params, stats))
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
  }


def save_weights(path: str | os.PathLike[str], params: PyTree, stats: PyTree = ()) -> None:
  """Writes parameters and running statistics, if any, to an .npz that the option `weights` reads.

  Arrays in bfloat16 are written as float32.
  """
  write_arrays(path, by_name(params, stats))


def read_weights(
  path: str | os.PathLike[str], reader: Reader | None = None, name: str = "the model"
) -> Arrays:
  """Reads a weight file and returns its arrays keyed by this library's names.

  Args:
    path: path of the file.
    reader: function that converts PyTorch's names, see `torch_names`; None if the model has none.
    name: name of the model, for error messages.

  Raises:
    SettingError: the file does not exist, its format is not supported (see `files.check_file`), or it has
      foreign names and `reader` is None.
    DataError: the file is damaged or has names that the model does not have.
  """
  arrays = read_arrays(path)
  if ours := {own: array for own, array in arrays.items() if own.partition("/")[0] in PARTS}:
    return ours  # a run's file also holds what the server sends besides the model and what the clients keep
  if reader is None:
    raise SettingError(
      "weights", os.fspath(path), f"has other names than this library's, and {name} knows none of PyTorch's",
      "Write params/LAYER/kernel and the like, see fh.models.save_weights.",
    )  # fmt: skip
  try:
    return by_name(*reader(arrays))
  except DataError as error:
    raise DataError(f"{os.fspath(path)}: {error}") from error


def with_weights(model: Model, path: str | os.PathLike[str], reader: Reader | None = None) -> Model:
  """Returns a model that starts from a file's parameters, whatever the key, and from its statistics.

  Layers of the head (`Model.head`) that the file lacks, and a last layer that the file has for another number
  of classes, are initialised at random; warnings list them and the arrays of the file that are not used.

  Args:
    model: any model.
    path: the file, .npz or .safetensors.
    reader: function that converts PyTorch's names, see `read_weights`.

  Raises:
    SettingError, DataError: see `read_weights`; also if arrays are missing, have other shapes, or are not
      finite numbers.
  """
  arrays = read_weights(check_file(path), reader, model.name)
  wanted = by_name(jax.eval_shape(model.init, jax.random.key(0)), model.stats)
  missing = [name for name in wanted if name not in arrays]
  different = [name for name in wanted if name in arrays and arrays[name].shape != wanted[name].shape]

  def for_others(name: str) -> bool:
    """Whether the file's array differs from the model's only in the number of classes, its last axis."""
    have, want = arrays[name].shape, wanted[name].shape
    return have[:-1] == want[:-1] and want[-1:] == (model.num_classes,) and len(have) == len(want)

  resized = [name for name in different if _within(name, model.head) and for_others(name)]
  absent = [name for name in missing if _within(name, model.head)]
  random = {layer_of(name) for name in (*absent, *resized)}
  wrong = [name for name in different if name not in resized]
  lost = [name for name in missing if name not in absent]
  shapes = {name: f"{name} {arrays[name].shape}, not {wanted[name].shape}" for name in different}
  for names, what in ((lost, "it lacks"), (wrong, "it has other shapes of")):
    if names:
      raise SettingError(
        "weights", os.fspath(path),
        f"not those of this {model.name}: {what} {_few([shapes.get(name, name) for name in names])}",
        "Use this model's file, or give the model the options that the file was made with.",
      )  # fmt: skip
  used = {name: arrays[name] for name in wanted if layer_of(name) not in random}
  check_floats(path, used)
  loaded = {name: own.astype(wanted[name].dtype) for name, own in used.items()}
  for names, what in ((absent, "has no %s for this model"), (resized, "has %s for other classes")):
    if layers := ", ".join(sorted({layer_of(name).partition("/")[2] for name in names})):
      logging.warning(f"%s {what}, which starts at random.", os.fspath(path), layers)
  if unused := [name for name in arrays if name not in loaded and layer_of(name) not in random]:
    logging.warning("%s: this model has no place for %s.", os.fspath(path), _few(unused))

  def init(key: jax.Array) -> PyTree:
    return jax.tree.map(jnp.asarray, _replaced(model.init(key), loaded, "params"))

  return model._replace(init=init, stats=_replaced(model.stats, loaded, "stats"))


def check_floats(path: str | os.PathLike[str], arrays: Mapping[str, Any]) -> None:
  """Raises `DataError` naming file and arrays unless all arrays are floats and finite in float32."""
  for name, own in arrays.items():
    if not jnp.issubdtype(own.dtype, jnp.floating):
      problem = f"{name} is {own.dtype}, not numbers in floating point, which weights are"
      raise DataError(f"{os.fspath(path)}: {problem}. Write the weights anew.")
  with np.errstate(over="ignore"):
    broken = [name for name, own in arrays.items() if not np.isfinite(np.asarray(own, np.float32)).all()]
  if broken:
    raise DataError(f"{os.fspath(path)}: {_few(broken)} is not finite. Write the weights anew.")


def layer_of(name: str) -> str:
  """Returns the name of an array's layer: "params/fc1" for "params/fc1/kernel"."""
  return name.rpartition("/")[0]


def _within(name: str, layers: tuple[str, ...]) -> bool:
  """Returns whether the array `name` belongs to one of the layers."""
  _, *path = name.split("/")
  return any(within(path, layer) for layer in layers)


def _few(names: list[str]) -> str:
  return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def _replaced(tree: PyTree, loaded: Mapping[str, np.ndarray], part: str) -> PyTree:
  return jax.tree_util.tree_map_with_path(lambda path, leaf: loaded.get(_name(part, path), leaf), tree)


def _name(part: str, path: Any) -> str:
  return f"{part}/{jax.tree_util.keystr(path, simple=True, separator='/')}"
