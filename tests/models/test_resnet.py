"""ResNet-10 against XLA's own convolutions, written out once more."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fedjax_het.errors import SettingError
from fedjax_het.models import count_parameters, make
from fedjax_het.models.layers.norms import GroupNorm
from fedjax_het.models.layers.strided_convolution import convolve
from fedjax_het.models.zoo.resnet10 import resnet10


def xla(x, kernel, stride=1):
  edge = kernel.shape[0] // 2
  return lax.conv_general_dilated(
    x, kernel, (stride, stride), [(edge, edge)] * 2, dimension_numbers=("NHWC", "HWIO", "NHWC")
  )


@pytest.mark.parametrize("channels", [3, 16])
@pytest.mark.parametrize("method", ["auto", "patches", "winograd"])
def test_halving_is_xlas(channels, method):
  x = jax.random.normal(jax.random.key(0), (2, 8, 6, channels))
  kernel = jax.random.normal(jax.random.key(1), (3, 3, channels, 5))
  np.testing.assert_allclose(
    convolve(x, kernel, 2, 1, method=method), xla(x, kernel, 2), rtol=1e-4, atol=1e-4
  )


def group_norm(layer, x, groups):
  return GroupNorm(groups).apply({"params": layer}, x)


def test_group_norm_is_the_formula():
  x = np.random.default_rng(0).normal(size=(2, 3, 4, 6)).astype(np.float32)
  layer = {"scale": jnp.arange(1.0, 7.0), "bias": jnp.arange(6.0)}
  found = np.asarray(group_norm(layer, x, 2))
  for b in range(2):
    for g in range(2):
      own = x[b, :, :, 3 * g : 3 * g + 3].astype(float)
      expected = (own - own.mean()) / np.sqrt(own.var() + 1e-5) * np.arange(1, 7)[3 * g : 3 * g + 3]
      expected = expected + np.arange(6)[3 * g : 3 * g + 3]
      np.testing.assert_allclose(found[b, :, :, 3 * g : 3 * g + 3], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("channels, count", [(3, 4_981_066), (1, 4_979_914)])
def test_parameters(channels, count):
  model = make("resnet10", (32, 32, channels), 10)
  assert count_parameters(jax.eval_shape(model.init, jax.random.key(0))) == count


@pytest.mark.slow
@pytest.mark.parametrize("spectral", [True, False])
def test_the_network_is_its_description(spectral):
  model = resnet10((8, 16, 3), 5, width=8, spectral=spectral)
  params = model.init(jax.random.key(0))
  params = jax.tree.map(
    lambda leaf: leaf + 0.1 * jax.random.normal(jax.random.key(leaf.size), leaf.shape), params
  )
  x = jax.random.normal(jax.random.key(1), (3, 8, 16, 3))
  h = jax.nn.silu(group_norm(params["stem_norm"], xla(x, params["stem"]["kernel"]), 2))
  for b, planes in enumerate((8, 16, 32, 64), 1):
    block, stride = params[f"block{b}"], 1 if b == 1 else 2
    inner = group_norm(block["norm1"], xla(h, block["conv1"]["kernel"], stride), planes // 2)
    inner = group_norm(block["norm2"], xla(jax.nn.silu(inner), block["conv2"]["kernel"]), planes // 2)
    if b > 1:
      h = group_norm(block["skip_norm"], xla(h, block["skip"]["kernel"], 2), planes // 2)
    h = h + inner
  kernel = params["fc"]["kernel"]
  kernel = kernel / np.linalg.norm(kernel, 2) if spectral else kernel
  expected = jax.nn.silu(group_norm(params["norm"], h, 8)).reshape(3, -1) @ kernel + params["fc"]["bias"]
  np.testing.assert_allclose(model.apply(params, x), expected, rtol=2e-3, atol=2e-3)
  for convolution in ("patches", "lax"):
    other = resnet10((8, 16, 3), 5, width=8, conv=convolution, spectral=spectral)
    np.testing.assert_allclose(other.apply(params, x), model.apply(params, x), rtol=1e-3, atol=1e-3)


def test_what_cannot_be_is_named():
  for changes, word in (
    (dict(width=6), "width"),
    (dict(shape=(28, 28, 1)), "shape"),
    (dict(conv="x"), "conv"),
  ):
    with pytest.raises(SettingError, match=word):
      resnet10(**{"shape": (32, 32, 1), **changes})
