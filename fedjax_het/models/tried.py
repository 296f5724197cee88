"""Whether a model can be trained: its training mode and its gradient, tried on shapes before any compile."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.errors import SettingError
from fedjax_het.models.model import Model

PyTree = Any
REMEDIES = (  # words of an error -> what to do
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
OTHERWISE = "Mend the module, so that it can be called and differentiated where it is told that it trains."


def check_training(model: Model, examples: PyTree, used: Any) -> None:
  """Raises `SettingError` for a model that cannot be trained, or has other outputs in training than in use.

  Args:
    model: the model; one without a `train` of its own trains as it is used.
    examples: a batch of two as `jax.ShapeDtypeStruct`, or a tree of such.
    used: the outputs that `apply` makes of it, likewise.
  """
  params, key = jax.eval_shape(model.init, jax.random.key(0)), jax.random.key(0)

  def total(params: PyTree, x: PyTree) -> tuple[jax.Array, tuple[PyTree, PyTree]]:
    outputs, stats = model.in_training(params, model.stats, x, jnp.ones(2), key)
    leaves = [leaf for leaf in jax.tree.leaves(outputs) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return sum(map(jnp.sum, leaves), jnp.float32(0.0)), (outputs, stats)

  try:
    _, (outputs, stats) = jax.eval_shape(jax.grad(total, has_aux=True), params, examples)
  except SettingError:
    raise
  except Exception as error:  # whatever the module raises
    text = str(error)
    said = f"{type(error).__name__}: {text.partition(chr(10))[0][:300]}".rstrip(".")
    remedy = next((own for words, own in REMEDIES if words in text), OTHERWISE)
    raise SettingError("module", model.name, f"cannot be trained ({said})", remedy) from error
  if _shapes(outputs) != _shapes(used):
    raise SettingError(
      "module", model.name,
      f"makes {_shapes(outputs)} in training and {_shapes(used)} in use, of a batch of two",
      "Let it return the logits alone in both: a task's loss is of these, and has no place for others.",
    )  # fmt: skip
  if _shapes(stats) != _shapes(model.stats):
    problem = f"its statistics become {_shapes(stats)} in training, and are {_shapes(model.stats)}"
    raise SettingError("module", model.name, problem, "Keep the same ones in training and in use.")


def _shapes(tree: PyTree) -> PyTree:
  """The shapes of a tree's arrays; of one array its shape."""
  return jax.tree.map(lambda leaf: tuple(np.shape(leaf)), tree)
