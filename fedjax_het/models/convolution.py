"""Convolution, max-pooling and adaptive pooling for stacks of clients in a compiled loop.

Clients that hold different kernels turn `lax.conv_general_dilated` under `jax.vmap` into a grouped
convolution, and XLA's CPU convolutions are slow inside a loop even one client at a time. Here a convolution
is a matrix product, which a stack of clients turns into a batched one:

  patches    y = P(x) K, where the row of P(x) for a pixel is its r x r x C window.
  winograd   the same along the columns; along the rows, Toom-Cook's F(2, r): two output rows from r + 1
             products instead of 2r, y = A^T [(G k) * (B^T d)] with A, G, B^{-1} Vandermonde matrices
             (Lavin & Gray, CVPR 2016, eq. 5). For r = 5: 6 products instead of 10, and 3/5 of the memory.

Both have gradients of their own, of the same matrix products, and work under jit, vmap and `jax.grad`.
Second derivatives work through `jax.grad` of `jax.grad` and `jax.jvp` of `jax.grad`; `jax.jvp` on its own is
defined neither for them nor for `max_pool2`.
"""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_het.errors import SettingError, check_choice

METHODS = ("auto", "winograd", "patches", "lax")
TILE = 2  # output rows of one Winograd tile
POINTS = (0.0, 1.0, -1.0, 0.5, -0.5)  # and infinity; as many as the tallest kernel has rows
_apart = lax.optimization_barrier  # keeps XLA from recomputing a value inside each fusion that reads it


def conv2d(x: jax.Array, kernel: jax.Array, padding: int = 0, method: str = "auto") -> jax.Array:
  """Cross-correlates with stride 1.

  y[b, i, j, o] = sum_{p, q, c} x[b, i + p - padding, j + q - padding, c] k[p, q, c, o].

  "auto" follows what was measured on CPU (`benchmarks/convolution.py`): "winograd" for 16 or more input
  channels and kernels 2 to 5 rows high, else "patches". On GPU and TPU it takes "patches", one batched
  product; that choice was not measured. The intermediate arrays of both take about height * width * C values
  a pixel, so evaluate in batches of a few hundred images.

  Args:
    x: images, float32 [B, H, W, C].
    kernel: float32 [height, width, C, O].
    padding: zeros added on all four sides, in pixels.
    method: one of `METHODS`. "winograd" agrees with the others to about 4e-6 of the largest value.

  Returns:
    float32 [B, H + 2 padding - height + 1, W + 2 padding - width + 1, O].

  Raises:
    SettingError: `method` is unknown, or "winograd" for a kernel of more than 5 rows.
  """
  check_choice("conv", method, METHODS)
  if method == "auto":
    method = choose(kernel.shape)
  if method == "lax":
    edges = [(padding, padding)] * 2
    return lax.conv_general_dilated(x, kernel, (1, 1), edges, dimension_numbers=("NHWC", "HWIO", "NHWC"))
  rows = x.shape[1] + 2 * padding - kernel.shape[0] + 1
  if method == "patches":
    return _patches_conv(_pad(x, padding), kernel)
  if kernel.shape[0] > len(POINTS):
    raise SettingError("conv", method, f"made for kernels of at most {len(POINTS)} rows", "Use 'patches'.")
  return _winograd_conv(_pad(x, padding, -rows % TILE), kernel)[:, :rows]


def halving_conv3(x: jax.Array, kernel: jax.Array, method: str = "auto") -> jax.Array:
  """Cross-correlates with stride 2 and padding 1, for a 3 x 3 kernel and even heights and widths.

  The image's four phases become channels, [B, H/2 + 1, W/2 + 1, 4C], and the kernel, with a row and a column
  of zeros, 2 x 2 on them: stride 1 and 16/9 of the work that is needed, not four times.

  Args:
    x: images, float32 [B, H, W, C].
    kernel: float32 [3, 3, C, O].
    method: see `conv2d`.

  Returns:
    float32 [B, H/2, W/2, O].
  """
  if method == "lax":
    edges = [(1, 1)] * 2
    return lax.conv_general_dilated(x, kernel, (2, 2), edges, dimension_numbers=("NHWC", "HWIO", "NHWC"))
  batch, height, width, channels = x.shape
  phases = _pad(x, 1).reshape(batch, height // 2 + 1, 2, width // 2 + 1, 2, channels)
  phases = phases.transpose(0, 1, 3, 2, 4, 5).reshape(batch, height // 2 + 1, width // 2 + 1, 4 * channels)
  taps = jnp.pad(kernel, ((0, 1), (0, 1), (0, 0), (0, 0))).reshape(2, 2, 2, 2, channels, -1)
  return conv2d(phases, taps.transpose(0, 2, 1, 3, 4, 5).reshape(2, 2, 4 * channels, -1), 0, method)


def choose(kernel_shape: Sequence[int]) -> str:
  """The method "auto" stands for, given the kernel's shape and JAX's default backend."""
  tall, deep = 2 <= kernel_shape[0] <= len(POINTS), kernel_shape[2] >= 16
  return "winograd" if jax.default_backend() == "cpu" and tall and deep else "patches"


def _pad(x: jax.Array, padding: int, below: int = 0, value: float = 0.0) -> jax.Array:
  """Pads rows and columns of [B, H, W, C], and `below` rows more at the bottom."""
  edges = ((0, 0), (padding, padding + below), (padding, padding), (0, 0))
  return jnp.pad(x, edges, constant_values=value)


def _columns(x: jax.Array, width: int) -> jax.Array:
  """Windows along the columns: [..., W, C] -> [..., W - width + 1, width, C]."""
  count = x.shape[-2] - width + 1
  return jnp.stack([x[..., j : j + count, :] for j in range(width)], axis=-2)


def _columns_adjoint(windows: jax.Array) -> jax.Array:
  """The adjoint of `_columns`: adds windows up where they overlap."""
  width, outer = windows.shape[-2], [(0, 0)] * (windows.ndim - 3)
  return _total(jnp.pad(windows[..., j, :], [*outer, (j, width - 1 - j), (0, 0)]) for j in range(width))


def _total(terms) -> jax.Array:
  """The sum, without the zero that Python's starts from."""
  first, *rest = terms
  return sum(rest, start=first)


# ------------------------------------------------------------------------------------------- patches


@jax.custom_vjp
def _patches_conv(x: jax.Array, kernel: jax.Array) -> jax.Array:
  return _patches_forward(x, kernel)[0]


def _patches_forward(x, kernel):
  height, width, _, features = kernel.shape
  rows, columns = x.shape[1] - height + 1, x.shape[2] - width + 1
  x = _apart(x)
  shifts = [x[:, i : i + rows, j : j + columns] for i in range(height) for j in range(width)]
  patches = jnp.stack(shifts, axis=3).reshape(len(x) * rows * columns, -1)
  y = _apart(patches @ kernel.reshape(-1, features))
  return y.reshape(len(x), rows, columns, features), (patches, kernel)


def _patches_backward(residuals, g):
  patches, kernel = residuals
  height, features = kernel.shape[0], kernel.shape[3]
  shape, g = g.shape, _apart(g).reshape(-1, features)
  kernel_bar = jnp.einsum("pk,po->ko", patches, g).reshape(kernel.shape)
  windows = (g @ kernel.reshape(-1, features).T).reshape(*shape[:3], *kernel.shape[:3])
  stripes = _total(
    jnp.pad(windows[:, :, :, i], ((0, 0), (i, height - 1 - i), (0, 0), (0, 0), (0, 0))) for i in range(height)
  )
  return _columns_adjoint(stripes), kernel_bar


_patches_conv.defvjp(_patches_forward, _patches_backward)


# ------------------------------------------------------------------------------------------ winograd


def _toom_cook(taps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """(A [n, 2], G [n, taps], B [n, n]) of F(2, taps), n = taps + 1: y = A^T [(G k) * (B^T d)].

  Polynomials of 2 and `taps` coefficients multiply by their values at n points: A and G evaluate (a
  Vandermonde row for each point, the leading coefficient for infinity), B = V_n^{-1} interpolates.
  Transposing that map turns the product of polynomials into the correlation.
  """

  def evaluate(terms: int) -> np.ndarray:
    return np.vstack([np.vander(POINTS[:taps], terms, increasing=True), np.eye(terms)[-1:]])

  return evaluate(TILE), evaluate(taps), np.linalg.inv(evaluate(taps + TILE - 1))


def _mix(coefficients: np.ndarray, values) -> jax.Array:
  """sum_k c_k v_k over the coefficients that are not zero."""
  return _total(v if c == 1 else np.float32(c) * v for c, v in zip(coefficients, values) if c)


@jax.custom_vjp
def _winograd_conv(x: jax.Array, kernel: jax.Array) -> jax.Array:
  return _winograd_forward(x, kernel)[0]


def _winograd_forward(x, kernel):
  height, width, channels, features = kernel.shape
  a, g, b = _toom_cook(height)
  tiles, points = (x.shape[1] - height + 1) // TILE, len(b)
  x = _apart(_pad(x, 0, x.shape[1] % TILE))
  x = x.reshape(len(x), -1, TILE, *x.shape[2:])
  rows = [x[:, k // TILE : k // TILE + tiles, k % TILE] for k in range(points)]
  values = _columns(_apart(jnp.stack([_mix(b[:, t], rows) for t in range(points)])), width)
  shape = (*values.shape[:4], features)  # points, B, tiles, columns, O
  values = values.reshape(points, -1, width * channels)
  weights = jnp.tensordot(g.astype(np.float32), kernel, 1).reshape(points, -1, features)
  products = _apart(values @ weights).reshape(shape)
  y = jnp.stack([_mix(a[:, i], products) for i in range(TILE)], axis=2)
  return y.reshape(len(x), TILE * tiles, *shape[3:]), (values, weights, kernel)


def _winograd_backward(residuals, y_bar):
  values, weights, kernel = residuals
  height, width, channels, features = kernel.shape
  a, g, b = _toom_cook(height)
  batch, rows, columns, _ = y_bar.shape
  tiles, points = rows // TILE, len(b)
  y_bar = _apart(y_bar).reshape(batch, tiles, TILE, columns, features)
  halves = [y_bar[:, :, i] for i in range(TILE)]
  products_bar = _apart(jnp.stack([_mix(a[t], halves) for t in range(points)])).reshape(points, -1, features)
  weights_bar = jnp.einsum("tpk,tpo->tko", values, products_bar).reshape(points, width, channels, features)
  kernel_bar = jnp.tensordot(g.T.astype(np.float32), weights_bar, 1)
  windows = _apart(products_bar @ _apart(weights.swapaxes(1, 2)))
  values_bar = _apart(_columns_adjoint(windows.reshape(points, batch, tiles, columns, width, channels)))

  last = (
    points - 1
  ) // TILE  # row k of a tile is row k % 2 of pair k // 2; pairs of neighbouring tiles overlap
  pairs = [
    _total(
      jnp.pad(_mix(b[k], values_bar), ((0, 0), (k // TILE, last - k // TILE), (0, 0), (0, 0)))
      for k in range(parity, points, TILE)
    )
    for parity in range(TILE)
  ]
  x_bar = jnp.stack(pairs, axis=2).reshape(batch, -1, columns + width - 1, channels)
  return x_bar[:, : rows + height - 1], kernel_bar


_winograd_conv.defvjp(_winograd_forward, _winograd_backward)


# ------------------------------------------------------------------------------------------- pooling


def _corners(x: jax.Array, padding: int) -> list[jax.Array]:
  """The four values of every 2 x 2 window, row-major: four arrays [B, rows, columns, C]."""
  x = _pad(x, padding, value=-jnp.inf)
  rows, columns = x.shape[1] // 2, x.shape[2] // 2
  x = x[:, : 2 * rows, : 2 * columns].reshape(len(x), rows, 2, columns, 2, -1)
  return [x[:, :, i, :, j] for i in (0, 1) for j in (0, 1)]


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def max_pool2(x: jax.Array, padding: int = 0) -> jax.Array:
  """Largest of each 2 x 2 window, stride 2; a window that would not fit is left out.

  Four slices and three maxima: on CPU the gradient of `lax.reduce_window` takes twelve times as long.
  Of equal values the first, row by row, receives the gradient, as in PyTorch and in `lax.reduce_window`.

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
  return (_apart(x_bar[:, padding : padding + height, padding : padding + width]),)


max_pool2.defvjp(_max_pool2_forward, _max_pool2_backward)


def adaptive_average_pool(x: jax.Array, size: tuple[int, int]) -> jax.Array:
  """Means over a grid of cells: rows floor(i H / h) to ceil((i + 1) H / h) - 1 for cell i, columns likewise.

  Args:
    x: float32 [B, H, W, C].
    size: (h, w), the grid; also larger than the image, whose pixels then repeat.

  Returns:
    float32 [B, h, w, C]; x itself when it has that size. As PyTorch's AdaptiveAvgPool2d.
  """
  for axis, cells in zip((1, 2), size):
    length = x.shape[axis]
    if length == cells:
      continue
    spans = [(i * length // cells, -(-(i + 1) * length // cells)) for i in range(cells)]
    x = _apart(x)
    means = [lax.slice_in_dim(x, start, stop, axis=axis).mean(axis, keepdims=True) for start, stop in spans]
    x = jnp.concatenate(means, axis)
  return x


# ----------------------------------------------------------------------------------------- depthwise


def depthwise(x: jax.Array, kernel: jax.Array, stride: int = 1, padding: int = 0) -> jax.Array:
  """Cross-correlates each channel with a kernel of its own: a sum of shifted products.

  y[b, i, j, c] = sum_{p, q} x[b, s i + p - padding, s j + q - padding, c] k[p, q, 0, c]

  Args:
    x: images, float32 [B, H, W, C].
    kernel: float32 [height, width, 1, C].
    stride: s >= 1, of both axes.
    padding: zeros added on all four sides, in pixels.

  Returns:
    float32 [B, (H + 2 padding - height) // s + 1, (W + 2 padding - width) // s + 1, C].
  """
  height, width = kernel.shape[:2]
  x = _pad(x, padding)
  rows, columns = (x.shape[1] - height) // stride + 1, (x.shape[2] - width) // stride + 1

  def shifted(i: int, j: int) -> jax.Array:
    last = i + stride * (rows - 1) + 1, j + stride * (columns - 1) + 1
    return x[:, i : last[0] : stride, j : last[1] : stride]

  return _total(shifted(i, j) * kernel[i, j, 0] for i in range(height) for j in range(width))
