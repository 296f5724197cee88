"""Stride-1 convolution for stacks of clients in a compiled loop, as matrix products or XLA's own kernel.

When clients hold different kernels, `jax.vmap` turns `lax.conv_general_dilated` into a grouped convolution,
which XLA computes by plain loops on a CPU; so it does with gradients. Here a convolution is a matrix product,
which `vmap` turns into a batched product, or XLA's convolution in the one form that it runs fast:

  patches    y = P(x) K, where the row of P(x) for a pixel is its r x r x C window.
  winograd   patches along the columns; along the rows, Toom-Cook's F(2, r): two output rows from r + 1
             products instead of 2r, y = A^T [(G k) * (B^T d)] with A, G, B^{-1} Vandermonde matrices
             (Lavin & Gray, CVPR 2016, eq. 5). For r = 5: 6 products instead of 10, and 3/5 of the memory.
  lax        XLA's own convolution; on a CPU one client after another, see `xla_convolution.py`.

On CPU, patches and winograd process a few images at a time if the windows of all images exceed a core's
cache, and recompute the windows for the gradient, which is faster than reading them back from memory.

All methods work under jit, vmap and `jax.grad`. Second derivatives work through `jax.grad` of `jax.grad` and
`jax.jvp` of `jax.grad`; a plain `jax.jvp` is not defined for patches and winograd. `strided_convolution.py`
reduces other strides, dilations and numbers of axes to this case.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_het.errors import SettingError, check_choice
from fedjax_het.models.layers.product import apart
from fedjax_het.models.layers.xla_convolution import CACHE, correlate, split
from fedjax_het.settings import Choice

METHODS = ("auto", "winograd", "patches", "lax")
ConvMethod = Annotated[str, Choice(METHODS)]
TILE = 2  # output rows per Winograd tile
POINTS = (0.0, 1.0, -1.0, 0.5, -0.5)  # finite interpolation points; a kernel of r rows uses the first r


def conv2d(
  x: jax.Array, kernel: jax.Array, padding: int | Sequence[int] = 0, method: str = "auto"
) -> jax.Array:
  """Cross-correlates images with a kernel at stride 1.

  y[b, i, j, o] = sum_{p, q, c} x[b, i + p - padding, j + q - padding, c] k[p, q, c, o].

  On CPUs "auto" follows measurements (`benchmarks/speed/convolution_choice.py`), see `choose`. On GPU and TPU
  it takes "patches", one batched product: on a GPU a small CNN's round took 0.95 of its time by "winograd"
  and 0.45 of that by "lax", which `vmap` over clients turns into a grouped convolution (docs/results/gpu.md).
  The intermediate arrays of "patches" and "winograd" take about height * width * C values per pixel there:
  evaluate in batches of a few hundred images.

  Args:
    x: images, float32 [B, H, W, C].
    kernel: float32 [height, width, C, O].
    padding: zeros added on all four sides, in pixels, or (above and below, left and right).
    method: one of `METHODS`. "winograd" agrees with the others to about 4e-6 of the largest value.

  Returns:
    float32 [B, H + 2 padding - height + 1, W + 2 padding - width + 1, O].

  Raises:
    SettingError: `method` is unknown, or it is "winograd" and the kernel has more than 5 rows.
  """
  check_choice("conv", method, METHODS)
  rows, columns = (n + 2 * p - k + 1 for n, p, k in zip(x.shape[1:3], both(padding), kernel.shape))
  if method == "auto":
    method = choose(kernel.shape, len(x), (rows, columns))
  if method == "lax":
    return correlate(x, kernel, padding=both(padding))
  if method == "patches":
    return _few_at_a_time(PATCHES, pad(x, padding), kernel, kernel.shape[0])
  if kernel.shape[0] > len(POINTS):
    raise SettingError("conv", method, f"it takes kernels of at most {len(POINTS)} rows", "Use 'patches'.")
  points = kernel.shape[0] + TILE - 1
  y = _few_at_a_time(WINOGRAD, pad(x, padding, -rows % TILE), kernel, points, 1 / TILE)
  return y[:, :rows]


def choose(
  kernel_shape: Sequence[int], images: int, sides: Sequence[int], strides: Sequence[int] = (1, 1)
) -> str:
  """Returns the method that "auto" selects on JAX's default backend; always "patches" if it is not a CPU.

  With y the output, of O channels, the choice on a CPU is:

  - "lax" for strides above 1 that are smaller than the kernel, if C >= 8 and y has at least three rows and
    columns; and for kernels from 3 x 3 if O <= C, O <= 64, 32 divides C and y has at least eight rows and
    columns, or if O <= 2 C, O is 64 or at most 32, C >= 16, and y has at least 5,000 pixels in total from at
    least eight images;
  - else "winograd" for kernels of h = 2 to 5 rows, if C >= 8 or C >= 2 O / (5 h), so that its transform of y
    costs less than it saves, and y has at least 2 O / (h - 1) pixels in total, so that its transform of the
    kernel does;
  - else "patches".

  Args:
    kernel_shape: (height, width, C, O).
    images: B, the number of images.
    sides: (rows, columns) of y.
    strides: strides of both axes. Unless both are 1, an answer other than "lax" refers to the stride-1
      convolution that `strided_convolution.convolve` derives.
  """
  height, width, channels, features = kernel_shape
  if jax.default_backend() != "cpu":
    return "patches"
  if max(strides) > 1:
    overlap = all(k > s for k, s in zip(kernel_shape, strides))
    return "lax" if overlap and channels >= 8 and min(sides) >= 3 else "patches"
  pixels = images * sides[0] * sides[1]
  narrowing = channels % 32 == 0 and features <= min(channels, 64) and min(sides) >= 8
  many = images >= 8 and pixels >= 5000
  fast = channels >= 16 and features <= 2 * channels and (features <= 32 or features == 64)
  if min(height, width) >= 3 and (narrowing or (many and fast)):
    return "lax"
  deep = channels >= 8 or 5 * height * channels >= 2 * features
  saves = 2 <= height <= len(POINTS) and deep and pixels * (height - 1) >= 2 * features
  return "winograd" if saves else "patches"


def both(setting: int | Sequence[int]) -> tuple[int, int]:
  """Expands a setting to a pair, one number per axis; a single number applies to both axes."""
  first, second = (setting, setting) if isinstance(setting, int) else setting
  return first, second


def pad(x: jax.Array, padding: int | Sequence[int], below: int = 0, value: float = 0.0) -> jax.Array:
  """Pads rows and columns of [B, H, W, C] by `value`, with `below` extra rows at the bottom."""
  rows, columns = both(padding)
  edges = ((0, 0), (rows, rows + below), (columns, columns), (0, 0))
  return jnp.pad(x, edges, constant_values=value)


def _columns(x: jax.Array, width: int) -> jax.Array:
  """Gathers sliding windows along the columns, [..., W, C] -> [..., W - width + 1, width, C]."""
  count = x.shape[-2] - width + 1
  return jnp.stack([x[..., j : j + count, :] for j in range(width)], axis=-2)


def _columns_adjoint(windows: jax.Array) -> jax.Array:
  """Adjoint of `_columns`: adds up overlapping windows, [..., W', width, C] -> [..., W' + width - 1, C]."""
  width, outer = windows.shape[-2], [(0, 0)] * (windows.ndim - 3)
  return total(jnp.pad(windows[..., j, :], [*outer, (j, width - 1 - j), (0, 0)]) for j in range(width))


def total(terms: Iterable[jax.Array]) -> jax.Array:
  """Sums the terms without starting from 0, so that no addition of zero is compiled."""
  first, *rest = terms
  return sum(rest, start=first)


# ------------------------------------------------------------------------------------ a few at a time


class Form(NamedTuple):
  """A convolution algorithm as a pair of functions, forward and backward pass.

  Attributes:
    forward: (x, kernel) -> (y, residuals).
    backward: (residuals, cotangent of y) -> (cotangent of x, cotangent of the kernel).
  """

  forward: Callable[[jax.Array, jax.Array], tuple[jax.Array, Any]]
  backward: Callable[[Any, jax.Array], tuple[jax.Array, jax.Array]]


def _few_at_a_time(form: Form, x: jax.Array, kernel: jax.Array, taps: int, share: float = 1.0) -> jax.Array:
  """Convolves x by an algorithm; on CPU in chunks of images whose size `chunk` gives."""
  height, width, channels, features = kernel.shape
  rows, columns = x.shape[1] - height + 1, x.shape[2] - width + 1
  windows, weights = rows * columns * width * channels, width * channels * features
  size = chunk(len(x), 4 * int(share * taps * windows), 4 * taps * weights)
  return _convolved(form, len(x) if jax.default_backend() != "cpu" else size, x, kernel)


def chunk(images: int, windows: int, weights: int) -> int:
  """Returns the number of images convolved at a time: all if their windows fit in eight caches.

  Args:
    images: B, the number of images.
    windows: bytes of one image's windows.
    weights: bytes of the kernel. A chunk's windows take at least four times as many bytes; otherwise reading
      the kernel would dominate.
  """
  count = images * windows // max(CACHE, 4 * weights)
  return images if count < 8 else -(-images // count)


def _join(parts: jax.Array, count: int) -> jax.Array:
  """Concatenates the chunks and drops padding: [chunks, size, ...] -> [count, ...]."""
  return parts.reshape(-1, *parts.shape[2:])[:count]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _convolved(form: Form, size: int, x: jax.Array, kernel: jax.Array) -> jax.Array:
  return _forward(form, size, x, kernel)[0]


def _forward(form, size, x, kernel):
  if size == len(x):
    return form.forward(x, kernel)
  y = lax.map(lambda part: form.forward(part, kernel)[0], split(size, apart(x)))
  return _join(y, len(x)), (x, kernel)


def _backward(form, size, residuals, g):
  if size == len(g):
    return form.backward(residuals, g)
  x, kernel = residuals

  def add(kernel_bar, part):
    x_bar, own = form.backward(form.forward(part[0], kernel)[1], part[1])
    return kernel_bar + own, x_bar

  kernel_bar, x_bar = lax.scan(add, jnp.zeros_like(kernel), (split(size, x), split(size, apart(g))))
  return _join(x_bar, len(x)), kernel_bar


_convolved.defvjp(_forward, _backward)


# ------------------------------------------------------------------------------------------- patches


def _windows(x: jax.Array, height: int, width: int) -> jax.Array:
  """Gathers the window of every output pixel, [B, H, W, C] -> [B rows columns, height width C].

  On CPU it stacks slices; elsewhere it gathers by index: on a GPU 0.71 to 0.99 of a convolution's time.
  """
  return (_by_slices if jax.default_backend() == "cpu" else _by_places)(x, height, width)


def _by_slices(x, height, width):
  rows, columns = x.shape[1] - height + 1, x.shape[2] - width + 1
  shifts = [x[:, i : i + rows, j : j + columns] for i in range(height) for j in range(width)]
  return jnp.stack(shifts, axis=3).reshape(len(x) * rows * columns, -1)


def _by_places(x, height, width):
  rows, columns, channels = x.shape[1] - height + 1, x.shape[2] - width + 1, x.shape[3]
  corners, taps = (
    (np.arange(many)[:, None] * x.shape[2] + np.arange(few)).reshape(-1).astype(np.int32)
    for many, few in ((rows, columns), (height, width))
  )
  pixels = x.reshape(len(x), -1, channels)
  windows = pixels.at[:, corners[:, None] + taps].get(mode="promise_in_bounds")
  return windows.reshape(len(x) * rows * columns, -1)


def _patches_forward(x, kernel):
  height, width, _, features = kernel.shape
  rows, columns = x.shape[1] - height + 1, x.shape[2] - width + 1
  patches = _windows(apart(x), height, width)
  y = apart(patches @ kernel.reshape(-1, features))
  return y.reshape(len(x), rows, columns, features), (patches, kernel)


def _patches_backward(residuals, g):
  patches, kernel = residuals
  height, features = kernel.shape[0], kernel.shape[3]
  shape, g = g.shape, apart(g).reshape(-1, features)
  kernel_bar = jnp.einsum("pk,po->ko", patches, g).reshape(kernel.shape)
  windows = (g @ kernel.reshape(-1, features).T).reshape(*shape[:3], *kernel.shape[:3])
  stripes = total(
    jnp.pad(windows[:, :, :, i], ((0, 0), (i, height - 1 - i), (0, 0), (0, 0), (0, 0))) for i in range(height)
  )
  return _columns_adjoint(stripes), kernel_bar


PATCHES = Form(_patches_forward, _patches_backward)


# ------------------------------------------------------------------------------------------ winograd


def _toom_cook(taps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns A [n, 2], G [n, taps], B [n, n] of Toom-Cook's F(2, taps), n = taps + 1.

  The transform is y = A^T [(G k) * (B^T d)]. Polynomials of 2 and `taps` coefficients multiply by their
  values at n points: A and G evaluate (a Vandermonde row for each point, the leading coefficient for
  infinity), B = V_n^{-1} interpolates. Transposing that map turns the product of polynomials into the
  correlation.
  """

  def evaluate(terms: int) -> np.ndarray:
    return np.vstack([np.vander(POINTS[:taps], terms, increasing=True), np.eye(terms)[-1:]])

  return evaluate(TILE), evaluate(taps), np.linalg.inv(evaluate(taps + TILE - 1))


def _mix(coefficients: np.ndarray, values) -> jax.Array:
  """Computes sum_k c_k v_k over the nonzero coefficients."""
  return total(v if c == 1 else np.float32(c) * v for c, v in zip(coefficients, values) if c)


def _winograd_forward(x, kernel):
  height, width, channels, features = kernel.shape
  a, g, b = _toom_cook(height)
  tiles, points = (x.shape[1] - height + 1) // TILE, len(b)
  x = apart(pad(x, 0, x.shape[1] % TILE))
  x = x.reshape(len(x), -1, TILE, *x.shape[2:])
  rows = [x[:, k // TILE : k // TILE + tiles, k % TILE] for k in range(points)]
  values = _columns(apart(jnp.stack([_mix(b[:, t], rows) for t in range(points)])), width)
  shape = (*values.shape[:4], features)  # points, B, tiles, columns, O
  values = values.reshape(points, -1, width * channels)
  weights = jnp.tensordot(g.astype(np.float32), kernel, 1).reshape(points, -1, features)
  products = apart(values @ weights).reshape(shape)
  y = jnp.stack([_mix(a[:, i], products) for i in range(TILE)], axis=2)
  return y.reshape(len(x), TILE * tiles, *shape[3:]), (values, weights, kernel)


def _winograd_backward(residuals, y_bar):
  values, weights, kernel = residuals
  height, width, channels, features = kernel.shape
  a, g, b = _toom_cook(height)
  batch, rows, columns, _ = y_bar.shape
  tiles, points = rows // TILE, len(b)
  y_bar = apart(y_bar).reshape(batch, tiles, TILE, columns, features)
  halves = [y_bar[:, :, i] for i in range(TILE)]
  products_bar = apart(jnp.stack([_mix(a[t], halves) for t in range(points)])).reshape(points, -1, features)
  weights_bar = jnp.einsum("tpk,tpo->tko", values, products_bar).reshape(points, width, channels, features)
  kernel_bar = jnp.tensordot(g.T.astype(np.float32), weights_bar, 1)
  windows = apart(products_bar @ apart(weights.swapaxes(1, 2)))
  values_bar = apart(_columns_adjoint(windows.reshape(points, batch, tiles, columns, width, channels)))

  last = (
    points - 1
  ) // TILE  # row k of a tile is row k % 2 of pair k // 2; pairs of neighbouring tiles overlap
  pairs = [
    total(
      jnp.pad(_mix(b[k], values_bar), ((0, 0), (k // TILE, last - k // TILE), (0, 0), (0, 0)))
      for k in range(parity, points, TILE)
    )
    for parity in range(TILE)
  ]
  x_bar = jnp.stack(pairs, axis=2).reshape(batch, -1, columns + width - 1, channels)
  return x_bar[:, : rows + height - 1], kernel_bar


WINOGRAD = Form(_winograd_forward, _winograd_backward)
