"""Flax layers that stay fast when clients are stacked, with Flax's own parameter names.

Each is what the layer of the same name in `flax.linen` is, computed otherwise: clients that hold different
parameters turn a convolution into a grouped one and a small product into a batched one, for which XLA's ways
are slow on a CPU. Kernels are Xavier-normal, N(0, 2 / (fan_in + fan_out)), as in the authors' code, biases 0.
"""

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from fedjax_het.errors import SettingError
from fedjax_het.models.product import product
from fedjax_het.models.strided import Sides, convolve, depthwise, doubled

XAVIER = nn.initializers.variance_scaling(1.0, "fan_avg", "normal")
POWER_ITERATIONS = 8


def flatten(x: jax.Array) -> jax.Array:
  """[B, ...] -> [B, D], row-major."""
  return x.reshape(x.shape[0], -1)


def spectral_norm(kernel: jax.Array) -> jax.Array:
  """The largest singular value of a kernel [inputs, outputs], float32 scalar.

  Power iterations on the small Gram matrix [outputs, outputs], from a fixed vector; the two singular vectors
  count as constants in gradients, d‖W‖ = u·dW·v (Miyato et al., Spectral Normalization, ICLR 2018).
  """
  fixed = jax.lax.stop_gradient(kernel)
  gram = fixed.T @ fixed
  v = jnp.cos(jnp.arange(gram.shape[0], dtype=kernel.dtype))
  for _ in range(POWER_ITERATIONS):
    v = gram @ v
    v = v / jnp.maximum(jnp.linalg.norm(v), 1e-12)
  u = fixed @ v
  u = u / jnp.maximum(jnp.linalg.norm(u), 1e-12)
  return u @ (kernel @ v)


def check_numbers(x: jax.Array) -> None:
  """Raises `SettingError` for whole numbers, which would be taken for amounts and train to NaN."""
  if not jnp.issubdtype(x.dtype, jnp.inexact):
    remedy = "Give numbers as float32; for token ids take a model of texts, such as stacked_lstm."
    raise SettingError("x", str(x.dtype), "this model reads numbers, and whole ones are read as ids", remedy)


def check_declared(x: Any, dtype: Any) -> None:
  """Refuses images of whole numbers, which nobody scales, where a module was made for floats; else warns.

  Args:
    x: examples, [B, ...] or a tree of such, as the module is given them.
    dtype: what it was made for, or a tree of such. Tables of whole numbers, [B, D], may be amounts and pass.

  Raises:
    SettingError: whole numbers of four axes or more, where floats were said.
  """
  for leaf, wanted in zip(jax.tree.leaves(x), jax.tree.leaves(jax.tree.broadcast(dtype, x))):
    if not jnp.issubdtype(wanted, jnp.floating) or not jnp.issubdtype(leaf.dtype, jnp.integer):
      continue
    problem = f"the module was made for {jnp.dtype(wanted)}, and whole numbers are not scaled"
    remedy = (
      "Images: say what they are multiplied by, such as federate(..., scale=1/255). Ids: from_flax(..., "
      "dtype=jnp.int32)."
    )
    if leaf.ndim > 3:
      raise SettingError("x", str(leaf.dtype), problem, remedy)
    if leaf.ndim > 2:
      warnings.warn(f"x = {leaf.dtype}: {problem}. {remedy}", stacklevel=2)


def biased(layer: nn.Module, h: jax.Array) -> jax.Array:
  """h [..., features] with the layer's bias [features], at first 0."""
  return h + layer.param("bias", nn.initializers.zeros, (h.shape[-1],), jnp.float32)


class Dense(nn.Module):
  """x W + b, [..., inputs] -> [..., features]; `linen.Dense`.

  Attributes:
    features: outputs.
    use_bias: whether there is a b.
    spectral: whether W is divided by its spectral norm.
    kernel_init: (key, shape, dtype) -> W [inputs, features].
  """

  features: int
  use_bias: bool = True
  spectral: bool = False
  kernel_init: Callable[..., jax.Array] = XAVIER

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Computes it."""
    check_numbers(x)
    kernel = self.param("kernel", self.kernel_init, (x.shape[-1], self.features), jnp.float32)
    if self.spectral:
      kernel = kernel / jnp.maximum(spectral_norm(kernel), 1e-12)
    h = product(x, kernel)
    return biased(self, h) if self.use_bias else h


class Conv(nn.Module):
  """Cross-correlation of images or series, [B, H, W, C] -> [B, H', W', features]; `linen.Conv`.

  Attributes:
    features: output channels.
    kernel_size: (height, width); or of series [B, L, C] (length,).
    stride: of both axes, or of each.
    padding: zeros on all four sides, in pixels; or (above and below, left and right).
    use_bias: whether a bias is added.
    method: how to convolve, see `convolution.conv2d`.
    before_bias: what comes before the bias: a norm, or a maximum over pixels, which leaves it less to do.
    dilation: of both axes, or of each.
    kernel_init: (key, shape, dtype) -> kernel [height, width, C, features], or [length, C, features].
  """

  features: int
  kernel_size: tuple[int, ...] = (3, 3)
  stride: Sides = 1
  padding: Sides = 0
  use_bias: bool = True
  method: str = "auto"
  before_bias: Callable[[jax.Array], jax.Array] | None = None
  dilation: Sides = 1
  kernel_init: Callable[..., jax.Array] = XAVIER

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Computes it."""
    check_numbers(x)
    shape = (*self.kernel_size, x.shape[-1], self.features)
    kernel = self.param("kernel", self.kernel_init, shape, jnp.float32)
    h = convolve(x, kernel, self.stride, self.padding, self.dilation, self.method)
    if self.before_bias is not None:
      h = self.before_bias(h)
    return biased(self, h) if self.use_bias else h


class ConvTranspose(nn.Module):
  """A doubling convolution, [B, H, W, C] -> [B, 2H, 2W, features]; PyTorch's ConvTranspose2d(C, O, 4, 2, 1).

  Attributes:
    features: output channels.
    use_bias: whether a bias is added.
    method: how to convolve, see `convolution.conv2d`.
    kernel_init: (key, shape, dtype) -> kernel [4, 4, C, features].
  """

  features: int
  use_bias: bool = True
  method: str = "auto"
  kernel_init: Callable[..., jax.Array] = XAVIER

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Computes it."""
    kernel = self.param("kernel", self.kernel_init, (4, 4, x.shape[-1], self.features), jnp.float32)
    h = doubled(x, kernel, self.method)
    return biased(self, h) if self.use_bias else h


class DepthwiseConv(nn.Module):
  """Each channel by a kernel of its own, [B, H, W, C] -> [B, H', W', C]; `linen.Conv` with C groups.

  A sum of height x width shifted products, which maps over clients without a grouped convolution.

  Attributes:
    kernel_size: (height, width); or of series [B, L, C] (length,).
    stride: of both axes, or of each.
    padding: zeros on all four sides, in pixels; or (above and below, left and right).
    use_bias: whether a bias is added.
    dilation: of both axes, or of each.
    kernel_init: (key, shape, dtype) -> kernel [height, width, 1, C], or [length, 1, C].
  """

  kernel_size: tuple[int, ...] = (3, 3)
  stride: Sides = 1
  padding: Sides = 1
  use_bias: bool = True
  dilation: Sides = 1
  kernel_init: Callable[..., jax.Array] = XAVIER

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Computes it."""
    kernel = self.param("kernel", self.kernel_init, (*self.kernel_size, 1, x.shape[-1]), jnp.float32)
    h = depthwise(x, kernel, self.stride, self.padding, self.dilation)
    return biased(self, h) if self.use_bias else h


class Perceptron(nn.Module):
  """Dense layers fc1, fc2, ... with an activation between them, [B, ...] -> [B, widths[-1]].

  Attributes:
    widths: of the hidden layers and the output.
    activation: between two layers.
    use_bias: whether layers have biases.
    spectral: whether the last layer has spectral norm 1.
  """

  widths: Sequence[int]
  activation: Callable[[jax.Array], jax.Array] = nn.relu
  use_bias: bool = True
  spectral: bool = False

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Computes it."""
    *hidden, outputs = self.widths
    h = flatten(x)
    for i, width in enumerate(hidden, 1):
      h = self.activation(Dense(width, self.use_bias, name=f"fc{i}")(h))
    return Dense(outputs, self.use_bias, self.spectral, name=f"fc{len(self.widths)}")(h)


Network = tuple[Callable[[jax.Array], Any], Callable[[Any, jax.Array], jax.Array]]


def network(module: nn.Module, shape: Sequence[int], dtype: Any = jnp.float32) -> Network:
  """A module's (init, apply) for examples of `shape`: (key) -> params, (params, x [B, *shape]) -> outputs."""
  example = jax.ShapeDtypeStruct((1, *shape), dtype)

  @functools.partial(jax.jit, inline=True)  # Python goes through it once
  def init(key: jax.Array) -> Any:
    return module.lazy_init(key, example)["params"]

  def apply(params: Any, x: jax.Array) -> Any:
    return module.apply({"params": params}, x)

  return init, apply
