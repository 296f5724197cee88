"""Max and average pooling of images and series, fast on CPUs for stacked clients in a compiled loop.

The gradient of `lax.reduce_window` is slow on a CPU. Here windows are read as slices, and gradients are
scattered by slices as well. Max pooling has a custom VJP only, so `jax.jvp` of it is not defined.
"""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_het.models.layers.convolution import both, pad, total
from fedjax_het.models.layers.product import apart


def _corners(x: jax.Array, padding: int) -> list[jax.Array]:
  """Returns the four values of every 2 x 2 window, row-major: four arrays [B, rows, columns, C]."""
  x = pad(x, padding, value=-jnp.inf)
  rows, columns = x.shape[1] // 2, x.shape[2] // 2
  x = x[:, : 2 * rows, : 2 * columns].reshape(len(x), rows, 2, columns, 2, -1)
  return [x[:, :, i, :, j] for i in (0, 1) for j in (0, 1)]


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def max_pool2(x: jax.Array, padding: int = 0) -> jax.Array:
  """Max-pools 2 x 2 windows with stride 2; a window that does not fit is left out.

  It takes four slices and three maxima: on CPU the gradient of `lax.reduce_window` takes twelve times as
  long. Among equal values, the first in row-major order receives the gradient, as in PyTorch and
  `lax.reduce_window`.

  Args:
    x: float32 [B, H, W, C].
    padding: 0 or 1, pixels of -inf added on all four sides.

  Returns:
    float32 [B, (H + 2 padding) // 2, (W + 2 padding) // 2, C].
  """
  return _max_pool2_forward(x, padding)[0]


def _max_pool2_forward(x, padding):
  a, b, c, d = _corners(x, padding)
  return jnp.maximum(jnp.maximum(a, b), jnp.maximum(c, d)), x


def _max_pool2_backward(padding, x, g):
  a, b, c, d = _corners(x, padding)
  upper, lower = jnp.where(a >= b, 0, 1), jnp.where(c >= d, 2, 3)
  first = jnp.where(jnp.maximum(a, b) >= jnp.maximum(c, d), upper, lower)
  corner = jnp.arange(4).reshape(1, 1, 2, 1, 2, 1)
  x_bar = jnp.where(first[:, :, None, :, None] == corner, g[:, :, None, :, None], 0.0)
  batch, rows, columns, channels = g.shape
  x_bar = x_bar.reshape(batch, 2 * rows, 2 * columns, channels)
  height, width = x.shape[1:3]
  left_out = [max(0, n + 2 * padding - m) for n, m in zip((height, width), x_bar.shape[1:3])]
  x_bar = jnp.pad(x_bar, ((0, 0), *((0, n) for n in left_out), (0, 0)))
  return (apart(x_bar[:, padding : padding + height, padding : padding + width]),)


max_pool2.defvjp(_max_pool2_forward, _max_pool2_backward)


def max_pool3(x: jax.Array) -> jax.Array:
  """Max-pools 3 x 3 windows with stride 2 and padding 1, first over three columns, then over three rows.

  Slices of pairs replace strided slices: on CPU a quarter of the time.

  Args:
    x: float32 [B, H, W, C].

  Returns:
    float32 [B, ⌈H/2⌉, ⌈W/2⌉, C].
  """
  return _max_of_three(_max_of_three(x, 2), 1)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _max_of_three(x: jax.Array, axis: int) -> jax.Array:
  """Computes max(x[2i - 1], x[2i], x[2i + 1]) along an axis, ignoring indices outside it."""
  return jnp.maximum(jnp.maximum(*(parts := _threes(x, axis))[:2]), parts[2])


def _threes(x, axis):
  """Returns x[2i - 1], x[2i] and x[2i + 1], padded by -inf, from slices of pairs, not strided slices."""
  missing = [(0, x.shape[axis] % 2 if own == axis else 0) for own in range(x.ndim)]
  x = jnp.pad(x, missing, constant_values=-jnp.inf)
  pairs = x.reshape(*x.shape[:axis], -1, 2, *x.shape[axis + 1 :])
  even, odd = (lax.index_in_dim(pairs, own, axis + 1, keepdims=False) for own in (0, 1))
  before = [(1, 0) if own == axis else (0, 0) for own in range(x.ndim)]
  earlier = jnp.pad(lax.slice_in_dim(odd, 0, -1, axis=axis), before, constant_values=-jnp.inf)
  return earlier, even, odd


def _max_of_three_forward(x, axis):
  return _max_of_three(x, axis), x


def _max_of_three_backward(axis, x, g):
  earlier, even, odd = _threes(x, axis)
  is_earlier, is_even = earlier >= jnp.maximum(even, odd), even >= odd
  to_earlier = lax.slice_in_dim(jnp.where(is_earlier, g, 0.0), 1, None, axis=axis)
  after = [(0, 1) if own == axis else (0, 0) for own in range(x.ndim)]
  to_even = jnp.where(is_even & ~is_earlier, g, 0.0)
  to_odd = jnp.where(is_even | is_earlier, 0.0, g) + jnp.pad(to_earlier, after)
  x_bar = jnp.stack([to_even, to_odd], axis + 1).reshape(*g.shape[:axis], -1, *g.shape[axis + 1 :])
  return (apart(lax.slice_in_dim(x_bar, 0, x.shape[axis], axis=axis)),)


_max_of_three.defvjp(_max_of_three_forward, _max_of_three_backward)


def adaptive_average_pool(x: jax.Array, size: tuple[int, int]) -> jax.Array:
  """Averages over the cells of a grid, like PyTorch's AdaptiveAvgPool2d.

  Cell i covers the rows floor(i H / h) to ceil((i + 1) H / h) - 1; columns likewise.

  Args:
    x: float32 [B, H, W, C].
    size: (h, w), the grid; if it is larger than the image, pixels repeat.

  Returns:
    float32 [B, h, w, C]; x itself if it already has that size.
  """
  for axis, cells in zip((1, 2), size):
    length = x.shape[axis]
    if length == cells:
      continue
    spans = [(i * length // cells, -(-(i + 1) * length // cells)) for i in range(cells)]
    x = apart(x)
    means = [lax.slice_in_dim(x, start, stop, axis=axis).mean(axis, keepdims=True) for start, stop in spans]
    x = jnp.concatenate(means, axis)
  return x


def average_pool(x: jax.Array, window: int | Sequence[int], stride: int | Sequence[int] = 0) -> jax.Array:
  """Average-pools windows, like PyTorch's AvgPool2d; a window that does not fit is left out.

  Args:
    x: float32 [B, H, W, C], or [B, L, C].
    window: side of the window in pixels, or (height, width).
    stride: stride of both axes, or one per axis; 0 means the window's size.

  Returns:
    float32 [B, (H - height) // stride + 1, (W - width) // stride + 1, C].
  """
  if x.ndim == 3:
    return average_pool(x[:, :, None], (line(window), 1), (line(stride), 1))[:, :, 0]
  strides = [s or w for s, w in zip(both(stride), both(window))]
  sizes = [(n - w) // s + 1 for n, w, s in zip(x.shape[1:3], both(window), strides)]
  values = _windows(x, both(window), strides, sizes)
  return total(values) / len(values)


def max_pool(
  x: jax.Array,
  window: int | Sequence[int],
  stride: int | Sequence[int] = 0,
  padding: int | Sequence[int] = 0,
  ceil: bool = False,
) -> jax.Array:
  """Max-pools windows, like PyTorch's MaxPool2d.

  Among equal values, the first in row-major order receives the gradient, as in PyTorch.

  Args:
    x: float32 [B, H, W, C], or [B, L, C].
    window: side of the window in pixels, or (height, width).
    stride: stride of both axes, or one per axis; 0 means the window's size.
    padding: pixels of -inf added on all four sides, or (above and below, left and right).
    ceil: whether a last window that extends past the edge also counts, as PyTorch's ceil_mode.

  Returns:
    float32 [B, (H + 2 padding - height) / stride + 1, (W + 2 padding - width) / stride + 1, C], rounded down,
    or up with `ceil`.
  """
  if x.ndim == 3:
    pooled = max_pool(x[:, :, None], (line(window), 1), (line(stride), 1), (line(padding), 0), ceil)
    return pooled[:, :, 0]
  window, sides = both(window), both(padding)
  strides = tuple(s or w for s, w in zip(both(stride), window))
  if (window, strides, ceil) == ((2, 2), (2, 2), False) and sides in ((0, 0), (1, 1)):
    return max_pool2(x, sides[0])
  if (window, strides, sides, ceil) == ((3, 3), (2, 2), (1, 1), False):
    return max_pool3(x)
  sizes, edges = [], [(0, 0, 0)]
  for n, w, s, p in zip(x.shape[1:3], window, strides, sides):
    size = (n + 2 * p - w) // s + 1
    if (
      ceil and (n + 2 * p - w) % s and size * s < n + p
    ):  # a last partial window counts if it starts before the padding's end
      size += 1
    sizes.append(size)
    edges.append((p, (size - 1) * s + w - n - p, 0))
  return _max_pool(
    lax.pad(x, jnp.full((), -jnp.inf, x.dtype), [*edges, (0, 0, 0)]), window, strides, tuple(sizes)
  )


def line(setting: int | Sequence[int]) -> int:
  """Returns the setting of a series' single axis, given as a number or as (number,)."""
  return setting if isinstance(setting, int) else setting[0]


def _windows(x, window, strides, sizes) -> list[jax.Array]:
  """Returns the values of every window, row-major: one array [B, *sizes, C] per position in the window."""
  ends = [(n - 1) * s + 1 for n, s in zip(sizes, strides)]
  return [
    x[:, i : i + ends[0] : strides[0], j : j + ends[1] : strides[1]]
    for i in range(window[0]) for j in range(window[1])
  ]  # fmt: skip


@partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def _max_pool(x, window, strides, sizes):
  return _max_pool_forward(x, window, strides, sizes)[0]


def _max_pool_forward(x, window, strides, sizes):
  y, *rest = _windows(x, window, strides, sizes)
  for value in rest:
    y = jnp.maximum(y, value)
  return y, (x, y)


def _max_pool_backward(window, strides, sizes, residuals, g):
  x, y = residuals
  free, spread = jnp.ones(y.shape, bool), []
  places = [(i, j) for i in range(window[0]) for j in range(window[1])]
  for (i, j), value in zip(places, _windows(x, window, strides, sizes)):
    first = free & (value == y)
    free = free & ~first
    edges = [
      (start, n - start - (size - 1) * s - 1, s - 1)
      for start, n, size, s in zip((i, j), x.shape[1:3], sizes, strides)
    ]  # zeros for the pixels between window starts
    spread.append(lax.pad(jnp.where(first, g, 0.0), jnp.zeros((), g.dtype), [(0, 0, 0), *edges, (0, 0, 0)]))
  return (apart(total(spread)),)


_max_pool.defvjp(_max_pool_forward, _max_pool_backward)
