"""Flax layers that stay fast under `jax.vmap` over clients, with Flax's own parameter names.

Each layer computes the function of the `flax.linen` layer of its name by another route: when clients hold
different parameters, `vmap` turns a convolution into a grouped convolution and a small product into a batched
one, both of which XLA runs slowly on a CPU. Kernels are initialised Xavier-normal, N(0, 2 / (fan_in +
fan_out)), as in the authors' code; biases are 0.
"""

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from fedjax_het.errors import SettingError
from fedjax_het.models.layers.product import product, quotient
from fedjax_het.models.layers.strided_convolution import Sides, convolve, depthwise, doubled

XAVIER = nn.initializers.variance_scaling(1.0, "fan_avg", "normal")
POWER_ITERATIONS = 8


def flatten(x: jax.Array) -> jax.Array:
  """Reshapes [B, ...] to [B, D], row-major."""
  return x.reshape(x.shape[0], -1)


def spectral_norm(kernel: jax.Array) -> jax.Array:
  """Estimates the largest singular value of a kernel [inputs, outputs]; float32 scalar.

  Runs `POWER_ITERATIONS` power iterations on the Gram matrix [outputs, outputs] from a fixed vector.
  Gradients treat the two singular vectors as constants, d‖W‖ = u·dW·v (Miyato et al., Spectral Normalization,
  ICLR 2018).
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
  """Raises `SettingError` for an integer array, which the model would read as quantities and train to NaN."""
  if not jnp.issubdtype(x.dtype, jnp.inexact):
    remedy = "Give numbers as float32; for token ids take a model of texts, such as stacked_lstm."
    raise SettingError(
      "x", str(x.dtype), "this model takes floating-point inputs; integers are token ids", remedy
    )


def check_declared(x: Any, dtype: Any) -> None:
  """Refuses images of whole numbers for a module made for floats, because nothing scales them; else warns.

  Args:
    x: examples, [B, ...] or a tree of such, as the module receives them.
    dtype: dtype that the module was made for, or a tree of dtypes. Tables of whole numbers, [B, D], may be
      amounts and pass.

  Raises:
    SettingError: x are whole numbers of four axes or more, and `dtype` is floating-point.
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
  """Adds the layer's bias [features], initialised to 0, to h [..., features]."""
  return h + layer.param("bias", nn.initializers.zeros, (h.shape[-1],), jnp.float32)


class Dense(nn.Module):
  """Affine map x W + b, [..., inputs] -> [..., features], like `linen.Dense`.

  Attributes:
    features: number of outputs.
    use_bias: whether b is added.
    spectral: whether W is divided by its spectral norm.
    kernel_init: (key, shape, dtype) -> W [inputs, features].
  """

  features: int
  use_bias: bool = True
  spectral: bool = False
  kernel_init: Callable[..., jax.Array] = XAVIER

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Returns x W + b, float32 [..., features]; integer x raises `SettingError`."""
    check_numbers(x)
    kernel = self.param("kernel", self.kernel_init, (x.shape[-1], self.features), jnp.float32)
    if self.spectral:
      kernel = quotient(kernel, jnp.maximum(spectral_norm(kernel), 1e-12))
    h = product(x, kernel)
    return biased(self, h) if self.use_bias else h


class Conv(nn.Module):
  """Cross-correlation of images, [B, H, W, C] -> [B, H', W', features], or of series, like `linen.Conv`.

  Attributes:
    features: number of output channels.
    kernel_size: (height, width), or (length,) for series [B, L, C].
    stride: stride of both axes, or one per axis.
    padding: zeros added on all four sides, in pixels, or (above and below, left and right).
    use_bias: whether a bias is added.
    method: convolution algorithm, see `convolution.conv2d`.
    before_bias: function applied before the bias is added: a norm, or a max-pool, after which the bias is
      added to fewer values.
    dilation: dilation of both axes, or one per axis.
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
    """Returns the convolution of x with the kernel, float32 [B, H', W', features].

    `before_bias` is applied before the bias is added. An integer x raises `SettingError`.
    """
    check_numbers(x)
    shape = (*self.kernel_size, x.shape[-1], self.features)
    kernel = self.param("kernel", self.kernel_init, shape, jnp.float32)
    h = convolve(x, kernel, self.stride, self.padding, self.dilation, self.method)
    if self.before_bias is not None:
      h = self.before_bias(h)
    return biased(self, h) if self.use_bias else h


class ConvTranspose(nn.Module):
  """Upsampling transposed convolution, [B, H, W, C] -> [B, 2H, 2W, features].

  It is PyTorch's ConvTranspose2d(C, O, 4, 2, 1): kernel 4 x 4, stride 2, padding 1.

  Attributes:
    features: number of output channels.
    use_bias: whether a bias is added.
    method: convolution algorithm, see `convolution.conv2d`.
    kernel_init: (key, shape, dtype) -> kernel [4, 4, C, features].
  """

  features: int
  use_bias: bool = True
  method: str = "auto"
  kernel_init: Callable[..., jax.Array] = XAVIER

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Returns the transposed convolution of x [B, H, W, C], float32 [B, 2H, 2W, features]."""
    kernel = self.param("kernel", self.kernel_init, (4, 4, x.shape[-1], self.features), jnp.float32)
    h = doubled(x, kernel, self.method)
    return biased(self, h) if self.use_bias else h


class DepthwiseConv(nn.Module):
  """Depthwise convolution, [B, H, W, C] -> [B, H', W', C], like `linen.Conv` with C groups.

  It is computed as a sum of height x width shifted products, which `vmap` over clients leaves free of grouped
  convolutions.

  Attributes:
    kernel_size: (height, width), or (length,) for series [B, L, C].
    stride: stride of both axes, or one per axis.
    padding: zeros added on all four sides, in pixels, or (above and below, left and right).
    use_bias: whether a bias is added.
    dilation: dilation of both axes, or one per axis.
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
    """Returns each channel of x convolved with a separate kernel, float32 [B, H', W', C]."""
    kernel = self.param("kernel", self.kernel_init, (*self.kernel_size, 1, x.shape[-1]), jnp.float32)
    h = depthwise(x, kernel, self.stride, self.padding, self.dilation)
    return biased(self, h) if self.use_bias else h


class Perceptron(nn.Module):
  """Multilayer perceptron with dense layers fc1, fc2, ..., [B, ...] -> [B, widths[-1]].

  Attributes:
    widths: widths of the hidden layers and of the output.
    activation: nonlinearity between two layers.
    use_bias: whether layers have biases.
    spectral: whether the last layer's kernel is divided by its spectral norm.
  """

  widths: Sequence[int]
  activation: Callable[[jax.Array], jax.Array] = nn.relu
  use_bias: bool = True
  spectral: bool = False

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Flattens x to [B, D] and returns the last layer's outputs, float32 [B, widths[-1]]."""
    *hidden, outputs = self.widths
    h = flatten(x)
    for i, width in enumerate(hidden, 1):
      h = self.activation(Dense(width, self.use_bias, name=f"fc{i}")(h))
    return Dense(outputs, self.use_bias, self.spectral, name=f"fc{len(self.widths)}")(h)


class Layers(nn.Module):
  """Module whose layers are those that a function calls.

  Attributes:
    function: examples [B, ...] -> outputs.
  """

  function: Callable[[jax.Array], jax.Array]

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Returns the function of the examples."""
    return self.function(x)


Network = tuple[Callable[[jax.Array], Any], Callable[[Any, jax.Array], jax.Array]]


def network(
  module: nn.Module | Callable[[jax.Array], jax.Array], shape: Sequence[int], dtype: Any = jnp.float32
) -> Network:
  """Returns a module's (init, apply): (key) -> params and (params, x [B, *shape]) -> outputs.

  A function that calls named layers serves as a module too.
  """
  module = module if isinstance(module, nn.Module) else Layers(module)
  example = jax.ShapeDtypeStruct((1, *shape), dtype)

  @functools.partial(jax.jit, inline=True)  # traced once, though called several times
  def init(key: jax.Array) -> Any:
    return module.lazy_init(key, example)["params"]

  def apply(params: Any, x: jax.Array) -> Any:
    return module.apply({"params": params}, x)

  return init, apply
