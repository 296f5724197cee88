"""Strided, dilated, one-dimensional, transposed and depthwise convolutions, reduced to stride 1 or to sums.

The phases of an image are its sub-images (s i + a, s j + b) for each a, b < s. A stride s is a sum over
phases, which become channels; a dilation d keeps phases apart, and they become examples. Both are thus the
matrix products of `convolution.py`, which `vmap` over clients turns into batched products. XLA's own
convolution needs neither reduction.
"""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_het.models.layers.convolution import both, choose, conv2d, pad, total
from fedjax_het.models.layers.pooling import line
from fedjax_het.models.layers.product import apart, product
from fedjax_het.models.layers.xla_convolution import correlate, plain_windows

Sides = int | Sequence[int]


def convolve(
  x: jax.Array,
  kernel: jax.Array,
  stride: Sides = 1,
  padding: Sides = 0,
  dilation: Sides = 1,
  method: str = "auto",
) -> jax.Array:
  """Cross-correlates images or series, as PyTorch's Conv2d and Conv1d do.

  y[b, i, j, o] = sum_{p, q, c} x[b, s i + d p - padding, s j + d q - padding, c] k[p, q, c, o]

  Args:
    x: float32 [B, H, W, C], or [B, L, C].
    kernel: float32 [height, width, C, O], or [length, C, O].
    stride: s >= 1, stride of both axes, or one per axis.
    padding: zeros added on all four sides, in pixels, or (above and below, left and right).
    dilation: d >= 1, dilation of both axes, or one per axis.
    method: convolution algorithm, see `convolution.conv2d`; "lax" is XLA's own.

  Returns:
    float32 [B, H', W', O] with H' = (H + 2 padding - d (height - 1) - 1) // s + 1 and W' likewise, or [B, L',
    O].

  Raises:
    SettingError: `method` is unknown or does not support such a kernel.
  """
  if x.ndim == 3:  # a series is an image with one column
    settings = (line(stride), 1), (line(padding), 0), (line(dilation), 1)
    return convolve(x[:, :, None], kernel[:, None], *settings, method)[:, :, 0]
  strides, sides, dilations = both(stride), both(padding), both(dilation)
  if method == "auto" and strides != (1, 1):
    windows = plain_windows(strides, sides, dilations)
    size = [window.result(n, k) for window, n, k in zip(windows, x.shape[1:3], kernel.shape)]
    method = "lax" if choose(kernel.shape, len(x), size, strides) == "lax" else "auto"
  if method == "lax":
    return correlate(x, kernel, strides, sides, dilations)
  if kernel.shape[:2] == (1, 1):
    x = pad(x, sides)[:, :: strides[0], :: strides[1]]
    return apart(product(x, kernel[0, 0]))  # without the barrier, XLA computes y's gradient column by column
  if strides != (1, 1):
    return _strided(x, _spread(kernel, dilations), strides, sides, method)
  return (
    conv2d(x, kernel, sides, method) if dilations == (1, 1) else _dilated(x, kernel, sides, dilations, method)
  )


def _spread(kernel: jax.Array, dilations: tuple[int, int]) -> jax.Array:
  """Dilates the kernel explicitly: inserts d - 1 zeros between its rows and between its columns."""
  return lax.pad(
    kernel, jnp.zeros((), kernel.dtype), [*((0, 0, d - 1) for d in dilations), (0, 0, 0), (0, 0, 0)]
  )


def _phases(x: jax.Array, steps: tuple[int, int], sides: tuple[int, int], counts: Sequence[int]) -> jax.Array:
  """Splits x, padded or cropped, into phases [B, rows, step, columns, step', C], (rows, columns) = counts."""
  edges = [(p, step * n - p - size, 0) for p, step, n, size in zip(sides, steps, counts, x.shape[1:3])]
  x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *edges, (0, 0, 0)])
  return x.reshape(len(x), counts[0], steps[0], counts[1], steps[1], -1)


def _strided(x, kernel, strides, sides, method):
  channels, features = kernel.shape[2:]
  taps = [-(-k // s) for k, s in zip(kernel.shape, strides)]
  counts = [
    (n + 2 * p - k) // s + t
    for n, p, k, s, t in zip(x.shape[1:3], sides, kernel.shape, strides, taps)
  ]  # fmt: skip
  deep = strides[0] * strides[1] * channels
  phases = _phases(x, strides, sides, counts).transpose(0, 1, 3, 2, 4, 5).reshape(len(x), *counts, deep)
  edges = [(0, t * s - k) for t, s, k in zip(taps, strides, kernel.shape)]
  split = (taps[0], strides[0], taps[1], strides[1], channels, features)
  kernel = jnp.pad(kernel, (*edges, (0, 0), (0, 0))).reshape(split).transpose(0, 2, 1, 3, 4, 5)
  return conv2d(phases, kernel.reshape(*taps, deep, features), 0, method)


def _dilated(x, kernel, sides, dilations, method):
  sizes = [n + 2 * p - d * (k - 1) for n, p, d, k in zip(x.shape[1:3], sides, dilations, kernel.shape)]
  counts = [-(-size // d) + k - 1 for size, d, k in zip(sizes, dilations, kernel.shape)]
  phases = _phases(x, dilations, sides, counts).transpose(0, 2, 4, 1, 3, 5)
  y = conv2d(phases.reshape(-1, *counts, x.shape[3]), kernel, 0, method)
  rows, columns = y.shape[1:3]
  y = y.reshape(len(x), *dilations, rows, columns, -1).transpose(0, 3, 1, 4, 2, 5)
  y = y.reshape(len(x), rows * dilations[0], columns * dilations[1], -1)
  return y[:, : sizes[0], : sizes[1]]


def doubled(x: jax.Array, kernel: jax.Array, method: str = "auto") -> jax.Array:
  """Transposed 4 x 4 convolution with stride 2 and padding 1, like PyTorch's ConvTranspose2d.

  y[b, i, j, o] = sum_{p, q, c} x[b, (i + 1 - p) / 2, (j + 1 - q) / 2, c] k[p, q, c, o]

  over those p, q for which both indices are integers. An output pixel depends on 2 x 2 input pixels: each of
  y's four phases is a convolution with a 2 x 2 kernel, and one convolution with four times the channels
  computes all four.

  Args:
    x: float32 [B, H, W, C].
    kernel: float32 [4, 4, C, O].
    method: convolution algorithm, see `convolution.conv2d`.

  Returns:
    float32 [B, 2H, 2W, O].
  """
  (batch, height, width, channels), features = x.shape, kernel.shape[3]
  taps = kernel[::-1, ::-1].reshape(2, 2, 2, 2, channels, features).transpose(0, 2, 4, 1, 3, 5)
  y = conv2d(x, taps.reshape(2, 2, channels, 4 * features), 1, method)
  y = y.reshape(batch, height + 1, width + 1, 2, 2, features)
  rows = [
    jnp.stack([y[:, a : a + height, b : b + width, a, b] for b in (0, 1)], axis=3) for a in (0, 1)
  ]  # [B, H, W, 2, O]
  return jnp.stack(rows, axis=2).reshape(batch, 2 * height, 2 * width, features)


def depthwise(
  x: jax.Array, kernel: jax.Array, stride: Sides = 1, padding: Sides = 0, dilation: Sides = 1
) -> jax.Array:
  """Depthwise convolution: correlates each channel with a separate kernel, as a sum of shifted products.

  y[b, i, j, c] = sum_{p, q} x[b, s i + d p - padding, s j + d q - padding, c] k[p, q, 0, c]

  Its gradient is custom, a sum of shifted products as well.

  Args:
    x: float32 [B, H, W, C], or [B, L, C].
    kernel: float32 [height, width, 1, C], or [length, 1, C].
    stride: s >= 1, stride of both axes, or one per axis.
    padding: zeros added on all four sides, in pixels, or (above and below, left and right).
    dilation: d >= 1, dilation of both axes, or one per axis.

  Returns:
    float32 of the shape that `convolve` returns, with C for O.
  """
  if x.ndim == 3:
    settings = (line(stride), 1), (line(padding), 0), (line(dilation), 1)
    return depthwise(x[:, :, None], kernel[:, None], *settings)[:, :, 0]
  return _depthwise(x, kernel, both(stride), both(padding), both(dilation))


def _spans(x, size, strides, dilations) -> list[int]:
  """Returns the numbers of rows and of columns of the padded image that one kernel tap ranges over."""
  return [(n - d * (k - 1) - 1) // s * s + 1 for n, d, k, s in zip(x.shape[1:3], dilations, size, strides)]


def _shifted(x, size, strides, dilations) -> list[jax.Array]:
  """Returns the strided slice of the padded image that each kernel tap multiplies, row-major."""
  spans = _spans(x, size, strides, dilations)
  places = [(dilations[0] * i, dilations[1] * j) for i in range(size[0]) for j in range(size[1])]
  return [x[:, i : i + spans[0] : strides[0], j : j + spans[1] : strides[1]] for i, j in places]


def _tap_gradients(x, g, size, strides, dilations) -> jax.Array:
  """Returns the kernel's gradient, one row per tap in row-major order, [taps, C].

  On CPU the taps run one after another in one loop: unrolled, XLA materialises each tap's slice before
  summing and compiles a program per tap. One loop is as fast or faster.
  """
  if jax.default_backend() != "cpu":
    return jnp.stack([(value * g).sum((0, 1, 2)) for value in _shifted(x, size, strides, dilations)])
  spans = _spans(x, size, strides, dilations)

  def one(tap: jax.Array) -> jax.Array:
    place = 0, dilations[0] * (tap // size[1]), dilations[1] * (tap % size[1]), 0
    value = lax.dynamic_slice(x, place, (len(x), *spans, x.shape[3]))[:, :: strides[0], :: strides[1]]
    return (value * g).sum((0, 1, 2))

  return lax.map(one, jnp.arange(size[0] * size[1]))


@partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _depthwise(x, kernel, strides, sides, dilations):
  return _depthwise_forward(x, kernel, strides, sides, dilations)[0]


def _depthwise_forward(x, kernel, strides, sides, dilations):
  x, taps = apart(x), kernel.reshape(-1, kernel.shape[3])
  values = _shifted(pad(x, sides), kernel.shape[:2], strides, dilations)
  return total(value * tap for value, tap in zip(values, taps)), (x, kernel)


def _depthwise_backward(strides, sides, dilations, residuals, g):
  x, kernel = residuals
  g = apart(g)  # every tap reads it
  kernel_bar = _tap_gradients(pad(x, sides), g, kernel.shape[:2], strides, dilations).reshape(kernel.shape)
  edges = [
    (d * (k - 1) - p, n + p - (size - 1) * s - 1, s - 1)
    for d, k, p, n, size, s in zip(dilations, kernel.shape, sides, x.shape[1:3], g.shape[1:3], strides)
  ]  # correlates the flipped kernel with g, dilated by the strides
  spread = lax.pad(g, jnp.zeros((), g.dtype), [(0, 0, 0), *edges, (0, 0, 0)])
  return _depthwise(spread, kernel[::-1, ::-1], (1, 1), (0, 0), dilations), kernel_bar


_depthwise.defvjp(_depthwise_forward, _depthwise_backward)
