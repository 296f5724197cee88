"""Our layers against Flax's own, with the same parameters: values and gradients, alone and stacked."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from fedjax_het.errors import SettingError
from fedjax_het.models.layers import basic as layers
from fedjax_het.models.layers import norms

IMAGE, ODD, SERIES = (3, 8, 6, 4), (2, 9, 7, 4), (3, 19, 4)
PAIRS = [
  (layers.Dense(5), nn.Dense(5), (3, 7)),
  (layers.Dense(5), nn.Dense(5), (30, 7)),
  (layers.Dense(5, use_bias=False), nn.Dense(5, use_bias=False), (2, 3, 7)),
  (layers.Conv(5, (3, 3), padding=1), nn.Conv(5, (3, 3)), IMAGE),
  (layers.Conv(5, (5, 5), use_bias=False), nn.Conv(5, (5, 5), padding="VALID", use_bias=False), IMAGE),
  (layers.Conv(5, (3, 3), 2, 1), nn.Conv(5, (3, 3), 2, padding=1), IMAGE),
  (layers.Conv(5, (1, 1), 2), nn.Conv(5, (1, 1), 2, padding=0), IMAGE),
  (layers.DepthwiseConv(), nn.Conv(4, (3, 3), padding=1, feature_group_count=4), IMAGE),
  (layers.DepthwiseConv((3, 3), 2, 0, False),
   nn.Conv(4, (3, 3), 2, padding=0, feature_group_count=4, use_bias=False), IMAGE),
  (layers.DepthwiseConv((5, 3), 2, 2), nn.Conv(4, (5, 3), 2, padding=2, feature_group_count=4), IMAGE),
  (norms.GroupNorm(2), nn.GroupNorm(2, epsilon=1e-5), IMAGE),
  (norms.GroupNorm(4, affine=False), nn.GroupNorm(4, epsilon=1e-5, use_bias=False, use_scale=False), IMAGE),
  (norms.GroupNorm(2), nn.GroupNorm(2, epsilon=1e-5), SERIES),
  (layers.Conv(5, (5, 3), (3, 2), (2, 1)), nn.Conv(5, (5, 3), (3, 2), padding=(2, 1)), ODD),
  (layers.Conv(5, (3, 3), 1, 2, dilation=2), nn.Conv(5, (3, 3), padding=2, kernel_dilation=2), ODD),
  (layers.Conv(5, (2, 3), 2, 1, False, dilation=(3, 2)),
   nn.Conv(5, (2, 3), 2, padding=1, use_bias=False, kernel_dilation=(3, 2)), ODD),
  (layers.Conv(5, (1, 1), 2, 1), nn.Conv(5, (1, 1), 2, padding=1), ODD),
  (layers.Conv(5, (8,), 4, 2), nn.Conv(5, (8,), 4, padding=2), SERIES),
  (layers.Conv(5, (3,), 1, 1, dilation=2), nn.Conv(5, (3,), padding=1, kernel_dilation=2), SERIES),
  (layers.DepthwiseConv((3, 2), (1, 2), 1, dilation=(2, 1)),
   nn.Conv(4, (3, 2), (1, 2), padding=1, kernel_dilation=(2, 1), feature_group_count=4), ODD),
  (layers.DepthwiseConv((5,), 2, 2), nn.Conv(4, (5,), 2, padding=2, feature_group_count=4), SERIES),
]  # fmt: skip


QUICK = (0, 3, 10)  # one of a kind; the others are left to --all
CASES = [
  pytest.param(
    *pair,
    marks=[] if i in QUICK else [pytest.mark.slow, *([pytest.mark.by_hand] if i % 3 else [])],
    id=f"{type(pair[0]).__name__}{i}",
  )
  for i, pair in enumerate(PAIRS)
]


@pytest.mark.parametrize("ours, flax, shape", CASES)
def test_a_layer_is_flax_s(ours, flax, shape):
  x = jax.random.normal(jax.random.key(0), (2, *shape))
  drawn = jax.vmap(lambda key: ours.init(key, x[0]).get("params", {}))(jax.random.split(jax.random.key(1), 2))
  params = jax.tree.map(lambda leaf: leaf + 0.1 * jnp.cos(jnp.arange(leaf.size)).reshape(leaf.shape), drawn)
  chex.assert_trees_all_equal_shapes(
    jax.tree.map(lambda leaf: leaf[0], params), flax.init(jax.random.key(0), x[0]).get("params", {})
  )

  def value_and_gradients(module):
    def of(params, x):
      y, back = jax.vjp(lambda params, x: module.apply({"params": params}, x), params, x)
      return y, back(jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape))

    return of

  wanted = [value_and_gradients(flax)(jax.tree.map(lambda leaf: leaf[i], params), x[i]) for i in range(2)]
  found = jax.jit(jax.vmap(value_and_gradients(ours)))(params, x)
  chex.assert_trees_all_close(found, jax.tree.map(lambda *own: jnp.stack(own), *wanted), rtol=1e-4, atol=1e-4)


def test_spectral_dense_has_norm_one():
  layer = layers.Dense(5, spectral=True)
  params = layer.init(jax.random.key(0), jnp.ones((1, 7)))["params"]
  kernel = np.asarray(params["kernel"], np.float64)
  x = np.random.default_rng(0).normal(size=(3, 7))
  expected = x @ (kernel / np.linalg.norm(kernel, 2)) + np.asarray(params["bias"])
  np.testing.assert_allclose(layer.apply({"params": params}, x), expected, rtol=1e-3, atol=1e-3)


def test_what_comes_before_the_bias():
  layer = layers.Conv(2, (1, 1), before_bias=lambda h: 0.0 * h)
  params = layer.init(jax.random.key(0), jnp.ones((1, 2, 2, 3)))["params"]
  params = {**params, "bias": jnp.asarray([1.0, 2.0])}
  np.testing.assert_array_equal(layer.apply({"params": params}, jnp.ones((1, 2, 2, 3)))[0, 0, 0], [1.0, 2.0])


@pytest.mark.parametrize("layer, fans", [(layers.Dense(300), 200 + 300), (layers.Conv(30, (5, 5)), 25 * 230)])
def test_kernels_are_xavier_normal(layer, fans):
  x = jnp.ones((1, 200)) if isinstance(layer, layers.Dense) else jnp.ones((1, 5, 5, 200))
  params = layer.init(jax.random.key(0), x)["params"]
  assert float(params["kernel"].std()) == pytest.approx((2 / fans) ** 0.5, rel=0.02)
  assert float(jnp.abs(params["kernel"]).max()) > 3 * float(params["kernel"].std())  # not truncated
  assert not params["bias"].any()


@pytest.mark.parametrize("layer, shape", [(layers.Dense(3), (2, 5)), (layers.Conv(3), (2, 5, 5, 1))])
def test_whole_numbers_are_refused(layer, shape):
  with pytest.raises(SettingError, match=r"x = 'int32': .* take a model of texts"):
    layer.init(jax.random.key(0), np.ones(shape, np.int32))
