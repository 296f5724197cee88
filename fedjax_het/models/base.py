"""What the engine knows of a model: two pure functions.

Parameters are a dict of layers, each a dict {"kernel", "bias"}: a method that treats layers one by one
(SuPerFed-LM draws one mixing constant a layer) takes the top level of the tree for its layers.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp

from fedjax_het.errors import check_range

Layer = dict[str, jax.Array]
Params = dict[str, Layer]
SMALL_BATCH = 20  # examples up to which the kernel's gradient is a sum of outer products


class Init(Protocol):
  """Draws the parameters."""

  def __call__(self, key: jax.Array, /) -> Params:
    """Returns fresh parameters, a pytree of float32 arrays, from a typed key."""


class Apply(Protocol):
  """Computes the logits."""

  def __call__(self, params: Params, x: jax.Array, /) -> jax.Array:
    """Returns logits float32 [B, C] of a batch x, float32 [B, *shape]."""


Network = tuple[Init, Apply]


class Model(NamedTuple):
  """A model as the engine sees it; stacks of clients are `jax.vmap` of these two functions.

  Attributes:
    init: (key) -> params.
    apply: (params, x [B, *shape] float32) -> logits [B, C].
    name: for reports and configs.
    shape: of one example; () where a model does not say.
    num_classes: C, the number of logits; 0 where a model does not say.
  """

  init: Init
  apply: Apply
  name: str = ""
  shape: tuple[int, ...] = ()
  num_classes: int = 0


def standardized(model: Model, mean: float = 0.0, std: float = 1.0) -> Model:
  """The same model, shown (x - mean) / std; MNIST's pixels in [0, 1], for example, have 0.1307 and 0.3081.

  Args:
    model: any model of floats.
    mean: what is subtracted from every input.
    std: > 0, what it is then divided by.

  Raises:
    SettingError: a std that is not above 0.
  """
  check_range("std", std, above=0.0)
  return model._replace(apply=lambda params, x: model.apply(params, (x - mean) / std))


def xavier_layer(key: jax.Array, shape: tuple[int, ...], bias: bool = True) -> Layer:
  """A layer with Xavier-normal kernel and zero bias, as the authors' code initialises every model.

  kernel ~ N(0, 2 / (fan_in + fan_out)), where fan_in = receptive field * inputs and fan_out = receptive
  field * outputs.

  Args:
    key: a typed key.
    shape: the kernel's, [..., inputs, outputs]; the leading axes are the receptive field.
    bias: whether the layer has one.
  """
  field = math.prod(shape[:-2])
  deviation = math.sqrt(2.0 / (field * (shape[-2] + shape[-1])))
  kernel = deviation * jax.random.normal(key, shape, jnp.float32)
  return {"kernel": kernel} | ({"bias": jnp.zeros(shape[-1], jnp.float32)} if bias else {})


def xavier(shapes: Mapping[str, tuple[int, ...]], bias: bool = True) -> Init:
  """The `init` of a model whose layers have kernels of these shapes; layer i uses `fold_in(key, i)`."""

  def init(key: jax.Array) -> Params:
    return {
      name: xavier_layer(jax.random.fold_in(key, i), shape, bias)
      for i, (name, shape) in enumerate(shapes.items())
    }

  return init


def dense(layer: Layer, x: jax.Array) -> jax.Array:
  """x W + b, or x W without a bias: [B, inputs] -> [B, outputs]."""
  product = matmul(x, layer["kernel"])
  return product + layer["bias"] if "bias" in layer else product


@jax.custom_vjp
def matmul(x: jax.Array, kernel: jax.Array) -> jax.Array:
  """x W, [B, inputs] x [inputs, outputs], whose kernel gradient melts into the step that uses it.

  The gradient x^T g of a small batch is written as a sum of B outer products, which XLA fuses with the
  optimiser's arithmetic: one pass over the kernel instead of three (on CPU a TwoNN step of batch 10
  takes 0.63 of the time, of 20 0.85, of 32 the same). Larger batches take the ordinary product.
  """
  return x @ kernel


def _matmul_forward(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
  return x @ kernel, (x, kernel)


def _matmul_backward(residuals: tuple[jax.Array, jax.Array], g: jax.Array) -> tuple[jax.Array, jax.Array]:
  x, kernel = residuals
  kernel_bar = x.T @ g
  if len(x) <= SMALL_BATCH:
    first, *rest = (x[b, :, None] * g[b, None, :] for b in range(len(x)))
    kernel_bar = sum(rest, start=first)
  return g @ kernel.T, kernel_bar


matmul.defvjp(_matmul_forward, _matmul_backward)


def perceptron(widths: Sequence[int], last: Callable[[Layer, jax.Array], jax.Array] = dense) -> Network:
  """Dense layers of these widths with Swish between them, [B, ...] -> [B, widths[-1]].

  Args:
    widths: of the flattened input, the hidden layers and the output.
    last: what applies the last layer.
  """
  names = [f"fc{i + 1}" for i in range(len(widths) - 1)]
  init = xavier(dict(zip(names, itertools.pairwise(widths))))

  def apply(params: Params, x: jax.Array) -> jax.Array:
    h = flatten(x)
    for name in names[:-1]:
      h = jax.nn.swish(dense(params[name], h))
    return last(params[names[-1]], h)

  return init, apply


def flatten(x: jax.Array) -> jax.Array:
  """[B, ...] -> [B, D], row-major."""
  return x.reshape(x.shape[0], -1)


def count_parameters(params: object) -> int:
  """The number of scalars in a tree of arrays (or of `jax.ShapeDtypeStruct`)."""
  return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))
