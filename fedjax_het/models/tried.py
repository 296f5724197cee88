"""Tries a model's training mode and gradient on abstract arrays, before anything is compiled."""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.errors import SettingError
from fedjax_het.models.model import Model

PyTree = Any
REMEDIES = (  # pairs of words in an error and the remedy
  (
    "unbound axis name",
    "Leave axis_name out, of BatchNorm for example: a client trains by itself, and its batches are not cut.",
  ),
  (
    "collection",
    "Keep nothing but parameters and batch statistics: other collections are neither averaged nor kept.",
  ),
  (
    "Could not find parameter",
    "Make the same layers in training and in use: parameters are drawn as the module is used.",
  ),
)
OTHERWISE = "Mend it, so that it can be called and differentiated where it is told that it trains."


def check_training(model: Model, examples: PyTree, used: Any) -> None:
  """Raises `SettingError` for a model that cannot be trained, or whose outputs change shape in training.

  Args:
    model: the model; without a function `train`, training uses `apply`.
    examples: a batch of two examples as `jax.ShapeDtypeStruct`, or a tree of such.
    used: the outputs of `apply` for this batch, as `jax.ShapeDtypeStruct`.
  """
  params, key = jax.eval_shape(model.init, jax.random.key(0)), jax.random.key(0)

  def total(params: PyTree, x: PyTree) -> tuple[jax.Array, tuple[PyTree, PyTree]]:
    outputs, stats = model.in_training(params, model.stats, x, jnp.ones(2), key)
    leaves = [leaf for leaf in jax.tree.leaves(outputs) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return sum(map(jnp.sum, leaves), jnp.float32(0.0)), (outputs, stats)

  with mistakes_in_training(model, "module"):
    _, (outputs, stats) = jax.eval_shape(jax.grad(total, has_aux=True), params, examples)
  _check_alike(model, outputs, used, "module")
  check_statistics(model, stats, "module")


@contextlib.contextmanager
def mistakes_in_training(model: Model, setting: str = "model") -> Iterator[None]:
  """Context manager that turns an exception of a model's training step into a `SettingError`.

  Args:
    model: the model.
    setting: the name of the user's argument, for the error.
  """
  try:
    yield
  except (SettingError, FloatingPointError, MemoryError, jax.errors.JaxRuntimeError):
    raise  # with `jax_disable_jit`, numerical and memory errors occur here
  except Exception as error:  # whatever the model raises
    text = str(error)
    said = f"{type(error).__name__}: {text.partition(chr(10))[0][:300]}".rstrip(".")
    remedy = next((own for words, own in REMEDIES if words in text), OTHERWISE)
    raise SettingError(setting, model.name, f"cannot be trained ({said})", remedy) from error


def check_outputs(model: Model, params: PyTree, stats: PyTree, x: PyTree, outputs: Any) -> None:
  """Raises `SettingError` if a batch's outputs have another shape in training than in inference.

  Training outputs [B, ..., C] with C = `model.num_classes` are accepted without tracing the inference mode.
  """
  rows, shape = jax.tree.leaves(x)[0].shape[:1], getattr(outputs, "shape", ())
  if model.train is None or (shape[:1] == rows and shape[1:][-1:] == (model.num_classes,)):
    return
  used = jax.eval_shape(lambda *own: model.logits(model.joined(*own[:2]), own[2]), params, stats, x)
  _check_alike(model, outputs, getattr(used, "outputs", used), "model")  # of `features.with_features`


def _check_alike(model: Model, outputs: Any, used: Any, setting: str) -> None:
  if _shapes(outputs) != _shapes(used):
    problem = f"makes {_shapes(outputs)} in training and {_shapes(used)} in use, of the same batch"
    raise SettingError(
      setting, model.name, problem,
      "Let it return the logits alone in both: a task's loss is of these, and has no place for others.",
    )  # fmt: skip


def check_statistics(model: Model, stats: PyTree, setting: str = "model") -> None:
  """Raises `SettingError` if a training step changes structure, shapes or dtypes of the statistics."""
  if _shapes(stats) != _shapes(model.stats):
    problem = f"its statistics become {_shapes(stats)} in training, and are {_shapes(model.stats)}"
    raise SettingError(setting, model.name, problem, "Keep the same ones in training and in use.")


def _shapes(tree: PyTree) -> PyTree:
  """Returns the shapes of a tree's arrays, or of a single array its shape."""
  return jax.tree.map(lambda leaf: tuple(np.shape(leaf)), tree)
