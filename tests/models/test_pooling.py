"""Pooling against `lax.reduce_window` and NumPy, values and gradients, alone and stacked."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fedjax_het.models.layers.pooling import average_pool, max_pool


def value_and_pullback(f, x):
  y, pullback = jax.vjp(f, x)
  return y, pullback(jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape))[0]


@pytest.mark.parametrize(
  "shape, window, stride, padding, ceil, edges",
  [
    ((9, 8), 3, 2, 1, False, ((1, 1), (1, 1))),
    ((8, 6), 3, 2, 1, False, ((1, 1), (1, 1))),
    ((9, 8), 3, 1, 1, False, ((1, 1), (1, 1))),
    ((8, 13), 3, 2, 0, True, ((0, 1), (0, 0))),
    ((8, 9), (2, 3), (2, 3), 0, False, ((0, 0), (0, 0))),
    ((7, 6), 2, 2, 0, True, ((0, 1), (0, 0))),
    ((5, 5), 2, 3, 1, True, ((1, 1), (1, 1))),  # a window within the padding does not count
    ((21,), 4, 0, 0, False, ((0, 0),)),
  ],
)
@pytest.mark.parametrize("ties", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_max_pool_is_xlas(shape, window, stride, padding, ceil, edges, ties):
  x = jax.random.normal(jax.random.key(0), (2, 2, *shape, 3))
  x = jnp.round(x) if ties else x
  windows = (1, *np.broadcast_to(window, len(shape)), 1)
  steps = (1, *np.broadcast_to(stride or window, len(shape)), 1)

  def reference(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, windows, steps, ((0, 0), *edges, (0, 0)))

  def ours(x):
    return max_pool(x, window, stride, padding, ceil)

  found = jax.jit(jax.vmap(lambda x: value_and_pullback(ours, x)))(x)
  for i in range(2):
    for a, b in zip(found, value_and_pullback(reference, x[i]), strict=True):
      np.testing.assert_allclose(a[i], b, rtol=0, atol=1e-6)


@pytest.mark.parametrize("shape, window, stride", [((7, 9), (3, 2), 2), ((11,), 4, 0)])
def test_average_pool_is_the_mean_of_windows(shape, window, stride):
  x = np.random.default_rng(0).normal(size=(2, *shape, 3)).astype(np.float32)
  high, wide = (window, 1) if len(shape) == 1 else window
  down, right = (window, 1) if len(shape) == 1 else (stride, stride)
  images = x.reshape(2, shape[0], -1, 3)
  rows, columns = (images.shape[1] - high) // down + 1, (images.shape[2] - wide) // right + 1
  wanted = [
    [images[:, down * i : down * i + high, right * j : right * j + wide].mean((1, 2)) for j in range(columns)]
    for i in range(rows)
  ]
  found = average_pool(jnp.asarray(x), window, stride)
  np.testing.assert_allclose(
    found.reshape(2, rows, columns, 3), np.moveaxis(wanted, 2, 0), rtol=1e-5, atol=1e-6
  )
