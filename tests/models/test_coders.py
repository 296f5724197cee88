"""The convolutional networks of FedCVAE and FedCGAN, against XLA's own convolutions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het.errors import SettingError
from fedjax_het.models.layers.basic import network
from fedjax_het.models.layers.strided_convolution import doubled
from fedjax_het.models.zoo.coders import Discriminator, decoder, encoder, generator
from fedjax_het.models.zoo.generative import cgan_conv, cvae_conv

Z = jax.random.normal(jax.random.key(5), (5, 3))


def test_a_doubling_convolution_scatters_each_pixel():
  """y[2 i + p - 1, 2 j + q - 1] += x[i, j] k[p, q]; what falls outside is lost."""
  x = np.asarray(jax.random.normal(jax.random.key(0), (2, 3, 2, 3)), float)
  kernel = np.asarray(jax.random.normal(jax.random.key(1), (4, 4, 3, 5)), float)
  wanted = np.zeros((2, 3 * 2 + 2, 2 * 2 + 2, 5))
  for i, j, p, q in np.ndindex(3, 2, 4, 4):
    wanted[:, 2 * i + p, 2 * j + q] += x[:, i, j] @ kernel[p, q]
  for method in ("auto", "patches", "lax"):
    found = doubled(jnp.float32(x), jnp.float32(kernel), method)
    np.testing.assert_allclose(found, wanted[:, 1:-1, 1:-1], rtol=1e-4, atol=1e-5)


def halved(h, kernel):
  dimensions = ("NHWC", "HWIO", "NHWC")
  return jax.lax.conv_general_dilated(h, kernel, (2, 2), [(1, 1)] * 2, dimension_numbers=dimensions)


def scattered(h, kernel):
  """PyTorch's transposed convolution by XLA's own."""
  return jax.lax.conv_general_dilated(
    h,
    kernel[::-1, ::-1],
    (1, 1),
    [(2, 2)] * 2,
    lhs_dilation=(2, 2),
    dimension_numbers=("NHWC", "HWIO", "NHWC"),
  )


def grouped(h, own):
  """Normalised in groups of eight channels, or of all where there are fewer."""
  groups = np.asarray(h).reshape(*h.shape[:3], -1, min(8, h.shape[3]))
  mean, std = groups.mean((1, 2, 4), keepdims=True), groups.std((1, 2, 4), keepdims=True)
  return ((groups - mean) / np.sqrt(std**2 + 1e-5)).reshape(h.shape) * own["scale"] + own["bias"]


def changed(params):
  """As drawn, but for biases and scales, which would go unseen."""
  return jax.tree.map(lambda leaf: leaf + 0.1 * jnp.arange(leaf.size).reshape(leaf.shape) % 0.7, params)


def leaky(h):
  return jnp.where(h > 0, h, 0.2 * h)


@pytest.mark.slow
def test_the_autoencoder_s_networks_are_laxs_convolutions():
  init, apply = network(encoder(6, 4), (32, 16, 2))
  params = changed(init(jax.random.key(0)))
  h = x = jax.random.uniform(jax.random.key(1), (3, 32, 16, 2))
  for i in "1234":
    h = jax.nn.relu(
      grouped(halved(h, params[f"conv{i}"]["kernel"]) + params[f"conv{i}"]["bias"], params[f"norm{i}"])
    )
  wanted = h.reshape(3, -1) @ params["fc"]["kernel"] + params["fc"]["bias"]
  np.testing.assert_allclose(apply(params, x), wanted, rtol=1e-4, atol=1e-4)
  init, apply = network(decoder((32, 16, 2), 4), (3,))
  params = changed(init(jax.random.key(0)))
  h = jax.nn.relu(Z @ params["fc"]["kernel"] + params["fc"]["bias"]).reshape(5, 2, 1, 16)
  for i in "123":
    h = jax.nn.relu(
      grouped(scattered(h, params[f"conv{i}"]["kernel"]) + params[f"conv{i}"]["bias"], params[f"norm{i}"])
    )
  wanted = scattered(h, params["conv4"]["kernel"]) + params["conv4"]["bias"]
  np.testing.assert_allclose(apply(params, Z), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_the_adversaries_networks_are_laxs_convolutions():
  init, apply = network(generator((16, 8, 2), 4), (3,))
  params = changed(init(jax.random.key(0)))
  h = leaky(grouped((Z @ params["fc"]["kernel"]).reshape(5, 2, 1, 16), params["norm0"]))
  for i in "12":
    h = leaky(grouped(scattered(h, params[f"conv{i}"]["kernel"]), params[f"norm{i}"]))
  np.testing.assert_allclose(apply(params, Z), scattered(h, params["conv3"]["kernel"]), rtol=1e-4, atol=1e-4)
  init, apply = network(Discriminator(3, 4), (16, 8, 2))
  params = changed(init(jax.random.key(0)))
  x = jax.random.uniform(jax.random.key(1), (3, 16, 8, 2))
  h = leaky(halved(x, params["conv1"]["kernel"]))
  for i in "23":
    h = leaky(grouped(halved(h, params[f"conv{i}"]["kernel"]), params[f"norm{i}"]))
  h = h.reshape(3, -1) @ params["fc1"]["kernel"]
  wanted = h @ params["fc2"]["kernel"] + params["fc2"]["bias"]
  np.testing.assert_allclose(apply(params, x), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
  "factory, counts",
  [
    (cvae_conv, {"encoder": 987_904, "decoder": 867_075}),
    (cgan_conv, {"generator": 1_224_576, "discriminator": 1_710_603}),
  ],
)
def test_image_generators_have_the_authors_sizes(factory, counts):
  params = jax.eval_shape(factory().init, jax.random.key(0))
  parts = params.get("autoencoder", params)
  assert {name: sum(leaf.size for leaf in jax.tree.leaves(own)) for name, own in parts.items()} == counts


@pytest.mark.slow
def test_the_discriminator_drops_half_of_what_it_sees():
  """Its losses change with the key also where the fakes do not, and those dropped are twice as strong."""
  model = Discriminator(3, 4)
  x = jax.random.uniform(jax.random.key(1), (64, 8, 8, 1))
  params = jax.jit(model.init)(jax.random.key(0), x)["params"]

  def hidden(key):
    rngs = None if key is None else {"dropout": key}
    found = model.apply({"params": params}, x, key is not None, rngs=rngs, capture_intermediates=True)
    return np.asarray(found[1]["intermediates"]["Dropout_0"]["__call__"][0])

  whole, dropped = hidden(None), hidden(jax.random.key(2))
  kept = dropped != 0
  assert 0.45 < kept.mean() < 0.55
  np.testing.assert_allclose(dropped[kept], 2.0 * whole[kept], rtol=1e-5)
  conv = cgan_conv((8, 8, 1), 2, latent=4, width=4)
  params, ones = jax.jit(conv.init)(jax.random.key(0)), jnp.ones(64)
  own = params["generator"]  # whose fakes are all one image
  own = {
    **own,
    "fc": jax.tree.map(jnp.zeros_like, own["fc"]),
    "norm0": jax.tree.map(jnp.ones_like, own["norm0"]),
  }
  still = {**params, "generator": own}
  each = {
    part: jax.jit(lambda key, loss=loss: loss(still, x, jnp.zeros(64, int), ones, key))
    for part, loss in conv.losses.items()
  }
  losses = {part: {float(loss(jax.random.key(i))) for i in range(3)} for part, loss in each.items()}
  assert {part: len(found) for part, found in losses.items()} == {"discriminator": 3, "generator": 3}


@pytest.mark.slow
@pytest.mark.parametrize("factory", [cvae_conv, cgan_conv])
def test_image_generators_learn_on_one_batch(factory):
  model = factory((16, 16, 1), 2, latent=4, width=4)
  params, key = model.init(jax.random.key(0)), jax.random.key(1)
  x, y, ones = jax.random.uniform(key, (6, 16, 16, 1)), jnp.array([0, 1, 0, 1, 0, 1]), jnp.ones(6)
  assert model.generate(params, key, y).shape == x.shape
  for part, loss in model.losses.items():
    descend = jax.jit(
      lambda p, loss=loss, part=part: {
        **p,
        part: jax.tree.map(lambda a, g: a - 0.05 * g, p[part], jax.grad(loss)(p, x, y, ones, key)[part]),
      }
    )
    moved = params
    for _ in range(10):
      moved = descend(moved)
    assert loss(moved, x, y, ones, key) < loss(params, x, y, ones, key) - 1e-3


@pytest.mark.parametrize("factory, shape", [(cvae_conv, (24, 32, 1)), (cgan_conv, (28, 32, 1))])
def test_sizes_that_cannot_be(factory, shape):
  for settings in ({"width": 0}, {"width": 4.0}, {"shape": shape}):
    with pytest.raises(SettingError, match=next(iter(settings))):
      factory(**settings)
