"""Convolution and pooling (simple version; being optimised)."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_het.errors import check_choice

METHODS = ("auto", "winograd", "patches", "lax")
TILE = 2  # rows of output that one Winograd tile gives
POINTS = (0.0, 1.0, -1.0, 0.5, -0.5)  # enough for kernels of height 5
_apart = lax.optimization_barrier  # keeps XLA from computing a value anew inside each of its consumers


def conv2d(x: jax.Array, kernel: jax.Array, padding: int = 0, method: str = "auto") -> jax.Array:
  """NHWC, HWIO, stride 1, symmetric padding."""
  check_choice("conv", method, METHODS)
  if method == "auto":
    method = automatic(kernel.shape)
  if method == "lax":
    return lax.conv_general_dilated(
      x, kernel, (1, 1), [(padding, padding)] * 2, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
  x = jnp.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
  if method == "patches":
    return _patches_conv(x, kernel)
  rows = x.shape[1] - kernel.shape[0] + 1
  odd = rows % TILE
  return _winograd_conv(jnp.pad(x, ((0, 0), (0, odd), (0, 0), (0, 0))), kernel)[:, :rows]


def automatic(kernel_shape) -> str:
  return "winograd" if kernel_shape[2] >= 16 and 3 <= kernel_shape[0] <= 5 else "patches"


def _patches(x: jax.Array, height: int, width: int) -> jax.Array:
  """Every height x width window of [B, H, W, C]: [B * rows * columns, height * width * C]."""
  rows, columns = x.shape[1] - height + 1, x.shape[2] - width + 1
  shifts = [x[:, i : i + rows, j : j + columns] for i in range(height) for j in range(width)]
  return jnp.stack(shifts, axis=3).reshape(x.shape[0] * rows * columns, -1)


def _columns(x: jax.Array, width: int) -> jax.Array:
  """Windows along the columns: [..., W, C] -> [..., columns, width, C]."""
  columns = x.shape[-2] - width + 1
  return jnp.stack([x[..., j : j + columns, :] for j in range(width)], axis=-2)


def _columns_adjoint(windows: jax.Array) -> jax.Array:
  """The adjoint of `_columns`: adds the windows back up."""
  width = windows.shape[-2]
  outer = [(0, 0)] * (windows.ndim - 3)
  return sum(
    jnp.pad(windows[..., j, :], [*outer, (j, width - 1 - j), (0, 0)]) for j in range(width)
  )


@jax.custom_vjp
def _patches_conv(x: jax.Array, kernel: jax.Array) -> jax.Array:
  return _patches_forward(x, kernel)[0]


def _patches_forward(x, kernel):
  height, width, channels, features = kernel.shape
  patches = _patches(_apart(x), height, width)
  y = _apart(patches @ kernel.reshape(-1, features))
  return y.reshape(x.shape[0], x.shape[1] - height + 1, x.shape[2] - width + 1, features), (patches, kernel)


def _patches_backward(residuals, g):
  patches, kernel = residuals
  height, width, channels, features = kernel.shape
  batch, rows, columns, _ = g.shape
  g = _apart(g).reshape(-1, features)
  kernel_bar = jnp.einsum("pk,po->ko", patches, g).reshape(kernel.shape)
  windows = (g @ kernel.reshape(-1, features).T).reshape(batch, rows, columns, height, width, channels)
  x_bar = sum(
    jnp.pad(windows[:, :, :, i], ((0, 0), (i, height - 1 - i), (0, 0), (0, 0), (0, 0))) for i in range(height)
  )
  return _columns_adjoint(x_bar), kernel_bar


_patches_conv.defvjp(_patches_forward, _patches_backward)


def _toom_cook(taps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  def powers(terms: int) -> np.ndarray:
    at_infinity = np.eye(terms)[-1:]
    return np.vstack([np.vander(POINTS[:taps], terms, increasing=True), at_infinity])

  return powers(TILE), powers(taps), np.linalg.inv(powers(TILE + taps - 1))


def _mix(coefficients, values):
  return sum(np.float32(c) * v for c, v in zip(coefficients, values) if c)


@jax.custom_vjp
def _winograd_conv(x: jax.Array, kernel: jax.Array) -> jax.Array:
  return _winograd_forward(x, kernel)[0]


def _winograd_forward(x, kernel):
  height, width, channels, features = kernel.shape
  outputs, taps, inputs = _toom_cook(height)
  batch, tiles, points = x.shape[0], (x.shape[1] - height + 1) // TILE, len(taps)
  x = _apart(x).reshape(batch, -1, TILE, *x.shape[2:])
  rows = [x[:, k // TILE : k // TILE + tiles, k % TILE] for k in range(points)]
  values = _apart(jnp.stack([_mix(inputs[:, t], rows) for t in range(points)]))
  values = _columns(values, width)
  columns = values.shape[3]
  values = values.reshape(points, batch * tiles * columns, width * channels)
  weights = jnp.tensordot(jnp.asarray(taps, kernel.dtype), kernel, 1).reshape(points, width * channels, features)
  products = _apart(values @ weights).reshape(points, batch, tiles, columns, features)
  y = jnp.stack([_mix(outputs[:, i], products) for i in range(TILE)], axis=2)
  return y.reshape(batch, TILE * tiles, columns, features), (values, weights, kernel)


def _winograd_backward(residuals, g):
  values, weights, kernel = residuals
  height, width, channels, features = kernel.shape
  outputs, taps, inputs = _toom_cook(height)
  batch, rows, columns, _ = g.shape
  tiles, points = rows // TILE, len(taps)
  g = _apart(g).reshape(batch, tiles, TILE, columns, features)
  g = jnp.stack([_mix(outputs[t], [g[:, :, i] for i in range(TILE)]) for t in range(points)])
  g = _apart(g).reshape(points, -1, features)
  weights_bar = jnp.einsum("tpk,tpo->tko", values, g)
  kernel_bar = jnp.tensordot(jnp.asarray(taps.T, kernel.dtype), weights_bar.reshape(points, width, channels, features), 1)
  windows = _apart(jnp.einsum("tpo,tko->tpk", g, weights)).reshape(points, batch, tiles, columns, width, channels)
  values_bar = _apart(_columns_adjoint(windows))
  extra = (height - 1) // TILE

  def plane(q):
    return sum(
      jnp.pad(_mix(inputs[TILE * a + q], values_bar), ((0, 0), (a, extra - a), (0, 0), (0, 0))) for a in range(-(-(points-q) // TILE))
    )

  x_bar = jnp.stack([plane(q) for q in range(TILE)], axis=2)
  return x_bar.reshape(batch, rows + height - 1, *x_bar.shape[3:]), kernel_bar


_winograd_conv.defvjp(_winograd_forward, _winograd_backward)


def _corners(x: jax.Array, padding: int) -> list[jax.Array]:
  """The four values of every 2 x 2 window, row-major: four times [B, ceil-free h, w, C]."""
  edge = ((0, 0), (padding, padding), (padding, padding), (0, 0))
  x = jnp.pad(x, edge, constant_values=-jnp.inf)
  rows, columns = x.shape[1] // 2, x.shape[2] // 2
  x = x[:, : 2 * rows, : 2 * columns].reshape(x.shape[0], rows, 2, columns, 2, x.shape[3])
  return [x[:, :, i, :, j] for i in (0, 1) for j in (0, 1)]


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def max_pool2(x: jax.Array, padding: int = 0) -> jax.Array:
  """2 x 2 max-pooling with stride 2 of NHWC."""
  a, b, c, d = _corners(x, padding)
  return jnp.maximum(jnp.maximum(a, b), jnp.maximum(c, d))


def _max_pool2_forward(x: jax.Array, padding: int) -> tuple[jax.Array, jax.Array]:
  return max_pool2(x, padding), x


def _max_pool2_backward(padding: int, x: jax.Array, g: jax.Array) -> tuple[jax.Array]:
  a, b, c, d = _corners(x, padding)
  upper, lower = jnp.where(a >= b, 0, 1), jnp.where(c >= d, 2, 3)
  first = jnp.where(jnp.maximum(a, b) >= jnp.maximum(c, d), upper, lower)
  corner = jnp.arange(4).reshape(1, 1, 2, 1, 2, 1)
  full = jnp.where(first[:, :, None, :, None] == corner, g[:, :, None, :, None], 0.0)
  batch, rows, columns, channels = g.shape
  full = full.reshape(batch, 2 * rows, 2 * columns, channels)
  below, right = (max(0, n + 2 * padding - m) for n, m in zip(x.shape[1:3], full.shape[1:3]))
  full = jnp.pad(full, ((0, 0), (0, below), (0, right), (0, 0)))
  return (full[:, padding : padding + x.shape[1], padding : padding + x.shape[2]],)


max_pool2.defvjp(_max_pool2_forward, _max_pool2_backward)


def adaptive_average_pool(x: jax.Array, size: tuple[int, int]) -> jax.Array:
  """Average pooling to `size`: cell i averages rows floor(i H / h) ... ceil((i + 1) H / h) - 1."""
  for axis, cells in zip((1, 2), size):
    length = x.shape[axis]
    if length != cells:
      weights = np.zeros((length, cells), np.float32)
      for i in range(cells):
        start, stop = i * length // cells, -(-(i + 1) * length // cells)
        weights[start:stop, i] = 1.0 / (stop - start)
      x = jnp.moveaxis(jnp.tensordot(x, jnp.asarray(weights), ((axis,), (0,))), -1, axis)
  return x
