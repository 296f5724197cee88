"""XLA's own convolution on CPUs, restricted to the one form that is fast: one client, channels last.

XLA's CPU backend has a fast kernel for images [B, H, W, C] and kernels [h, w, C, O] with C and O the last
axes and no image smaller than the kernel. In a compiled loop, such as training, the convolutions that JAX
emits for gradients (kernel transposed, batch in the place of channels) go through plain loops, tens of times
slower; so does, anywhere, what `jax.vmap` makes of a stack of kernels (a grouped convolution). Here,
therefore, gradients are convolutions of the fast form as well, of arrays transposed beforehand, and a stack
of kernels is processed one kernel after another.

The convolution is a bilinear primitive whose transposes are the primitive itself with other strides, padding
and dilations; so it has derivatives of every order, forward and reverse.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from fedjax_het.models.layers.product import apart

CACHE = 1 << 20  # minimum bytes that a core processes at a time
DIMENSIONS = ("NHWC", "HWIO", "NHWC")


class Window(NamedTuple):
  """Geometry of a convolution along one axis: stride, padding, and dilations of the input and the kernel.

  Attributes:
    stride: s.
    padding: zeros added before and after the axis; negative values crop.
    spread: a, the dilation of the input: an axis of n values is extended to a (n - 1) + 1.
    dilation: d, the dilation of the kernel: k taps extend over d (k - 1) + 1.
  """

  stride: int
  padding: tuple[int, int]
  spread: int
  dilation: int

  def sides(self, n: int, k: int) -> tuple[int, int]:
    """Returns the dilated lengths of an axis of n values and of a kernel of k taps."""
    return self.spread * (n - 1) + 1, self.dilation * (k - 1) + 1

  def result(self, n: int, k: int) -> int:
    """Returns the output length for an axis of n values and a kernel of k taps."""
    axis, kernel = self.sides(n, k)
    return (axis + sum(self.padding) - kernel) // self.stride + 1

  def of_image(self, n: int, k: int) -> "Window":
    """Returns the window of the convolution (output cotangent, flipped kernel) -> input cotangent."""
    axis, kernel = self.sides(n, k)
    before = kernel - self.padding[0] - 1
    after = axis + kernel - 2 - self.stride * (self.result(n, k) - 1) - before
    return Window(self.spread, (before, after), self.stride, self.dilation)

  def of_kernel(self, n: int, k: int) -> "Window":
    """Returns the window of the convolution (input, output cotangent) -> kernel cotangent."""
    axis, kernel = self.sides(n, k)
    after = self.stride * (self.result(n, k) - 1) + 1 - axis + kernel - self.padding[0] - 1
    return Window(self.dilation, (self.padding[0], after), self.spread, self.stride)


def plain_windows(
  strides: Sequence[int], padding: Sequence[int], dilations: Sequence[int]
) -> tuple[Window, ...]:
  """Returns the `Window` of each axis for symmetric padding and an undilated input."""
  return tuple(Window(s, (p, p), 1, d) for s, p, d in zip(strides, padding, dilations))


def correlate(
  x: jax.Array,
  kernel: jax.Array,
  strides: Sequence[int] = (1, 1),
  padding: Sequence[int] = (0, 0),
  dilations: Sequence[int] = (1, 1),
) -> jax.Array:
  """Cross-correlates images with a kernel: `lax.conv_general_dilated`, or on CPU this module's primitive.

  Args:
    x: float32 [B, H, W, C].
    kernel: float32 [height, width, C, O].
    strides: strides of the rows and of the columns.
    padding: zeros above and below, and left and right.
    dilations: dilations of the kernel's rows and columns.

  Returns:
    float32 [B, H', W', O] with H' = (H + 2 padding - d (height - 1) - 1) // s + 1 and W' likewise.
  """
  windows = plain_windows(strides, padding, dilations)
  compute = _correlate.bind if jax.default_backend() == "cpu" else _compute
  return compute(x, kernel, windows=windows)


def _compute(x: jax.Array, kernel: jax.Array, *, windows: tuple[Window, ...]) -> jax.Array:
  zero = jnp.zeros((), x.dtype)
  padding, spread = [window.padding for window in windows], [window.spread for window in windows]
  small = any(n < k for n, k in zip(x.shape[1:3], kernel.shape))
  if small or min(p for edges in padding for p in edges) < 0:
    edges = [(*window.padding, window.spread - 1) for window in windows]
    x = apart(lax.pad(x, zero, [(0, 0, 0), *edges, (0, 0, 0)]))
    padding, spread = [(0, 0)] * 2, [1, 1]
  return lax.conv_general_dilated(
    x, kernel, [window.stride for window in windows], padding, spread,
    [window.dilation for window in windows], dimension_numbers=DIMENSIONS,
  )  # fmt: skip


def _shape(x: Any, kernel: Any, *, windows: tuple[Window, ...]) -> jax.core.ShapedArray:
  sides = [window.result(n, k) for window, n, k in zip(windows, x.shape[1:3], kernel.shape)]
  return x.update(shape=(x.shape[0], *sides, kernel.shape[3]))


def _image_cotangent(g: jax.Array, x: Any, kernel: jax.Array, *, windows: tuple[Window, ...]) -> jax.Array:
  turned = apart(kernel[::-1, ::-1].swapaxes(2, 3))
  own = tuple(window.of_image(n, k) for window, n, k in zip(windows, x.aval.shape[1:3], kernel.shape))
  return _correlate.bind(apart(g), turned, windows=own)


def _kernel_cotangent(g: jax.Array, x: jax.Array, kernel: Any, *, windows: tuple[Window, ...]) -> jax.Array:
  """Computes the kernel's cotangent as a convolution with the channels in the place of the batch.

  The sum over images is accumulated in chunks of a few images, which fit the cache.
  """
  own = tuple(window.of_kernel(n, k) for window, n, k in zip(windows, x.shape[1:3], kernel.aval.shape))

  def of(x: jax.Array, g: jax.Array) -> jax.Array:
    images, kernels = apart(x.transpose(3, 1, 2, 0)), apart(g.transpose(1, 2, 0, 3))
    return _correlate.bind(images, kernels, windows=own).transpose(1, 2, 0, 3)

  count = -(-4 * x.size // CACHE)
  images = -(-len(x) // count // 2) * 2  # an odd number of images takes up to three times as long
  if count == 1 or len(x) <= images:
    return of(x, g)
  parts = split(images, apart(x)), split(images, apart(g))
  nothing = jnp.zeros(kernel.aval.shape, g.dtype)
  return lax.scan(lambda sofar, part: (sofar + of(*part), None), nothing, parts)[0]


def split(size: int, x: jax.Array) -> jax.Array:
  """Splits the batch into chunks, [B, ...] -> [chunks, size, ...]; zeros pad the last chunk."""
  x = jnp.pad(x, ((0, -len(x) % size), *[(0, 0)] * (x.ndim - 1)))
  return x.reshape(-1, size, *x.shape[1:])


def _batched(args: Sequence[jax.Array], axes: Sequence[int | None], *, windows: tuple[Window, ...]) -> Any:
  """Batching rule: many clients' images with one kernel become one batch; stacked kernels are looped over."""
  x, kernel = (value if axis is None else jnp.moveaxis(value, axis, 0) for value, axis in zip(args, axes))
  bind = partial(_correlate.bind, windows=windows)
  if axes[1] is None:
    y = bind(x.reshape(-1, *x.shape[2:]), kernel)
    return y.reshape(*x.shape[:2], *y.shape[1:]), 0
  if axes[0] is None:
    return lax.map(lambda one: bind(x, one), kernel), 0
  return lax.map(lambda pair: bind(*pair), (x, kernel)), 0


_correlate = Primitive("correlate")
_correlate.def_impl(jax.jit(_compute, static_argnames="windows"))
_correlate.def_abstract_eval(_shape)
mlir.register_lowering(_correlate, mlir.lower_fun(_compute, multiple_results=False))
ad.defbilinear(_correlate, _image_cotangent, _kernel_cotangent)
batching.primitive_batchers[_correlate] = _batched
