"""Features of a model: the input of its last layer, for methods that look at or send representations."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import traverse_util

from fedjax_het.errors import SettingError
from fedjax_het.models.model import Model, within

PyTree = Any


class Featured(NamedTuple):
  """A batch's outputs and features.

  Attributes:
    outputs: the model's outputs, float32 [B, ...].
    features: z, the input of the last layer of the model's head, float32 [B, d].
  """

  outputs: jax.Array
  features: jax.Array


class LinearHead(NamedTuple):
  """The last layer of a model, z W + b.

  Attributes:
    kernel: W, float32 [d, C].
    bias: b, float32 [C].
  """

  kernel: jax.Array
  bias: jax.Array

  def __call__(self, features: jax.Array) -> jax.Array:
    """Returns the logits z W + b, float32 [B, C], of features z [B, d]."""
    return features @ self.kernel + self.bias


def with_features(model: Model) -> Any:
  """Returns a model whose `apply` and `train` return `Featured`, the outputs together with the features.

  The last layer is the last one of `Model.head`. In a model made of a `linen` module the input of that layer
  is taken as it is computed. For other models the features are a second pass with the identity in the place
  of W and 0 in that of b.

  Raises:
    SettingError: the model names no head; or, when it is called, its last layer is no linear one that reads
      [B, d].
  """
  layer = last_layer(model)
  used, trained = model.apply, model.train

  def apply(params: PyTree, x: Any, *stats: Any) -> Any:
    return _seen(model, layer, lambda own: used(own, x, *stats), params)

  def train(params: PyTree, stats: PyTree, x: Any, real: jax.Array, key: jax.Array) -> Any:
    after: list[PyTree] = []

    def run(own: PyTree) -> jax.Array:
      assert trained is not None
      outputs, now = trained(own, stats, x, real, key)
      after.append(now)
      return outputs

    return _seen(model, layer, run, params), after[0]

  return model._replace(apply=apply, train=train if trained else None)


def last_layer(model: Model) -> str:
  """Returns the name of the model's last layer; raises `SettingError` if the model names no head."""
  if not model.head:
    problem = "names no head, and the method reads the features before the last layer"
    raise SettingError("model", model.name, problem, 'Give it one, such as from_flax(..., head=("fc2",)).')
  return model.head[-1]


def linear_head(model: Model) -> Callable[[PyTree], LinearHead]:
  """Returns (params) -> the last layer's weights.

  When it is called, it raises `SettingError` if the model names no head, or the last layer is not one kernel
  [d, C] with or without a bias.
  """

  def of(params: PyTree) -> LinearHead:
    layer = last_layer(model)
    own = _weights(layer, params)
    if not {"kernel"} <= {*own} <= {"kernel", "bias"} or own["kernel"].ndim != 2:
      problem = f"has a last layer {layer} of {sorted(own)}, and the method needs z W + b alone"
      raise SettingError("model", model.name, problem, "Use a model that ends in a dense layer.")
    kernel = own["kernel"]
    return LinearHead(kernel, own.get("bias", jnp.zeros(kernel.shape[1], kernel.dtype)))

  return of


def with_shift(model: Model) -> Callable[[PyTree, jax.Array], PyTree]:
  """Returns (params, s [d]) -> parameters of the model whose last layer reads z + s in the place of z.

  They differ in the last layer's bias alone, which becomes b + s W. When it is called, it raises
  `SettingError` if the model names no head, or its last layer has no bias or is no dense one.
  """

  def of(params: PyTree, shift: jax.Array) -> PyTree:
    layer = last_layer(model)
    kernel, flat = linear_head(model)(params).kernel, traverse_util.flatten_dict(params)
    biases = [path for path in flat if within(path, layer) and path[-1] == "bias"]
    if not biases:
      problem = f"has a last layer {layer} without a bias, and the method moves its features"
      raise SettingError("model", model.name, problem, "Use a model that ends in a dense layer with a bias.")
    return traverse_util.unflatten_dict(flat | {path: flat[path] + shift @ kernel for path in biases})

  return of


def feature_size(model: Model) -> int:
  """Returns d, the length of the model's features."""
  return linear_head(model)(jax.eval_shape(model.init, jax.random.key(0))).kernel.shape[0]


def _weights(layer: str, params: PyTree) -> dict[str, Any]:
  flat = traverse_util.flatten_dict(params)
  return {"/".join(map(str, path[layer.count("/") + 1 :])): own for path, own in flat.items()
          if within(path, layer)}  # fmt: skip


def _seen(model: Model, layer: str, run: Callable[[PyTree], jax.Array], params: PyTree) -> Featured:
  """Returns the outputs `run(params)`, and the input of `layer` on the way to them."""
  found: list[jax.Array] = []

  def look(call: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
    inside = context.method_name == "__call__" and context.module.scope is not None
    if inside and "/".join(context.module.path) == layer:
      found.append(args[0])
    return call(*args, **kwargs)

  with nn.intercept_methods(look):
    outputs = run(params)
  if not found:
    kernel = linear_head(model)(params).kernel
    flat = traverse_util.flatten_dict(params)
    plain = {"kernel": jnp.eye(len(kernel), dtype=kernel.dtype), "bias": jnp.zeros(len(kernel), kernel.dtype)}
    flat |= {path: plain[path[-1]] for path in flat if within(path, layer)}
    found.append(run(traverse_util.unflatten_dict(flat)))
  features = found[-1]
  if features.ndim != 2 or features.shape[0] != outputs.shape[0]:
    problem = f"has features {[*features.shape]} for outputs {[*outputs.shape]}, and not one row an example"
    raise SettingError("model", model.name, problem, "Use a model whose last layer reads [B, d].")
  return Featured(outputs, features.astype(jnp.float32))
