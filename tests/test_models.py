"""The models: parameter counts, convolution and pooling against XLA's own, pooling against NumPy, errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fedjax_het import models
from fedjax_het.errors import SettingError
from fedjax_het.models.base import SMALL_BATCH, matmul
from fedjax_het.models.convolution import adaptive_average_pool, choose, conv2d, max_pool2


def normal(seed, *shape):
  return jax.random.normal(jax.random.key(seed), shape)


def close(actual, wanted, tolerance=1e-5):
  """Every leaf within `tolerance` of the wanted leaf's largest value."""
  for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(wanted), strict=True):
    scale = max(1.0, float(jnp.abs(b).max()))
    np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * scale)


def value_and_pullback(f, *args):
  y, pullback = jax.vjp(f, *args)
  return y, pullback(jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape))


@pytest.mark.parametrize(
  "name,shape,classes,count",
  [
    ("two_nn", (28, 28, 1), 10, 199_210),
    ("two_cnn", (28, 28, 1), 10, 1_663_370),
    ("two_cnn", (32, 32, 3), 10, 1_664_970),
    ("logistic_regression", (15,), 1, 16),
  ],
)
def test_parameters_and_logits(name, shape, classes, count):
  model = models.make(name, shape, classes)
  params = model.init(jax.random.key(0))
  assert model.name == name
  assert models.count_parameters(params) == count
  assert all(set(layer) == {"kernel", "bias"} for layer in params.values())
  assert model.apply(params, normal(1, 3, *shape)).shape == (3, classes)


def test_initial_kernels_are_xavier_normal():
  params = models.two_cnn().init(jax.random.key(0))
  kernel = params["conv2"]["kernel"]
  assert float(kernel.std()) == pytest.approx((2 / (25 * (32 + 64))) ** 0.5, rel=0.02)
  assert float(jnp.abs(kernel).max()) > 3 * float(kernel.std())  # not truncated
  assert not any(jnp.any(layer["bias"]) for layer in params.values())


@pytest.mark.parametrize("method", ["patches", "winograd", "auto"])
@pytest.mark.parametrize(
  "image,kernel,padding",
  [
    ((3, 16, 16, 32), (5, 5, 32, 64), 1),
    ((2, 12, 9, 3), (5, 5, 3, 8), 0),
    ((2, 11, 13, 16), (3, 3, 16, 4), 1),
    ((2, 7, 8, 4), (4, 3, 4, 5), 2),
    ((2, 6, 6, 3), (1, 1, 3, 2), 0),
  ],
)
def test_convolution_is_xlas(method, image, kernel, padding):
  x, k = normal(0, *image), normal(1, *kernel)
  ours = jax.jit(lambda x, k: value_and_pullback(lambda x, k: conv2d(x, k, padding, method), x, k))(x, k)
  close(ours, value_and_pullback(lambda x, k: conv2d(x, k, padding, "lax"), x, k))


@pytest.mark.parametrize("method", ["patches", "winograd"])
def test_convolution_of_stacked_clients(method):
  x, k = normal(0, 3, 2, 10, 9, 4), normal(1, 3, 5, 5, 4, 6)

  def both(x, k):
    return value_and_pullback(lambda x, k: conv2d(x, k, 1, method), x, k)

  rows = [both(x[i], k[i]) for i in range(3)]
  close(jax.jit(jax.vmap(both))(x, k), jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows))
  summed = jax.grad(lambda k: jax.vmap(lambda x, k: conv2d(x, k, 1, method))(x, k).sum())(k)
  close(summed, jax.grad(lambda k: jax.vmap(lambda x, k: conv2d(x, k, 1, "lax"))(x, k).sum())(k))


def test_the_method_chosen_on_cpu(monkeypatch):
  monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
  assert choose((5, 5, 32, 64)) == "winograd"
  assert choose((5, 5, 3, 32)) == choose((7, 7, 32, 64)) == "patches"
  monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
  assert choose((5, 5, 32, 64)) == "patches"


@pytest.mark.parametrize("height,width", [(14, 14), (9, 12), (7, 5)])
@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("ties", [False, True])
def test_max_pool_is_xlas(height, width, padding, ties):
  x = normal(0, 2, height, width, 3)
  x = jnp.round(x) if ties else x
  edges = ((0, 0), (padding, padding), (padding, padding), (0, 0))

  def reference(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), edges)

  ours = value_and_pullback(lambda x: max_pool2(x, padding), x)
  close(ours, value_and_pullback(reference, x), 1e-7)
  stacked = jax.vmap(lambda x: value_and_pullback(lambda x: max_pool2(x, padding), x))(jnp.stack([x, -x]))
  close(jax.tree.map(lambda leaf: leaf[0], stacked), ours, 1e-7)


@pytest.mark.parametrize("shape", [(8, 8), (14, 9), (7, 7), (3, 7), (16, 10)])
def test_adaptive_pool_is_the_mean_over_cells(shape):
  x = np.asarray(normal(0, 2, *shape, 3))
  wanted = np.empty((2, 7, 7, 3), np.float32)
  rows, columns = ([(n * i // 7, -(-n * (i + 1) // 7)) for i in range(7)] for n in shape)
  for i, (top, bottom) in enumerate(rows):
    for j, (left, right) in enumerate(columns):
      wanted[:, i, j] = x[:, top:bottom, left:right].mean((1, 2))
  close(adaptive_average_pool(jnp.asarray(x), (7, 7)), wanted, 1e-6)


@pytest.mark.parametrize("batch", [1, 10, SMALL_BATCH + 1])
def test_dense_gradient(batch):
  x, kernel = normal(0, batch, 12), normal(1, 12, 5)
  close(value_and_pullback(matmul, x, kernel), value_and_pullback(lambda x, kernel: x @ kernel, x, kernel))


def test_methods_agree_on_the_whole_network():
  x = normal(1, 4, 20, 20, 3)

  def gradient(conv):
    model = models.two_cnn((20, 20, 3), 5, hidden=16, conv=conv)
    params = model.init(jax.random.key(0))
    return jax.jit(jax.grad(lambda params: jnp.square(model.apply(params, x)).mean()))(params)

  wanted = gradient("lax")
  for conv in ("auto", "patches", "winograd"):
    close(gradient(conv), wanted)


@pytest.mark.parametrize(
  "call,word",
  [
    (lambda: models.make("two_cn", (28, 28, 1), 10), "two_cnn"),
    (lambda: models.make("two_nn", (28, 28, 1), 10, hiden=3), "hidden"),
    (lambda: models.two_cnn(conv="patch"), "patches"),
    (lambda: models.two_cnn(shape=(784,)), "two_nn"),
    (lambda: conv2d(normal(0, 1, 9, 9, 2), normal(1, 7, 7, 2, 2), 0, "winograd"), "patches"),
  ],
)
def test_errors_name_the_remedy(call, word):
  with pytest.raises(SettingError, match=word):
    call()


@pytest.mark.parametrize("shape", [(28, 28, 1), (32, 32, 3), (30, 25, 2)])
def test_two_cnn_is_pytorchs(shape):
  """The authors' network, written with PyTorch's layers and given the same parameters."""
  torch = pytest.importorskip("torch", reason="the PyTorch oracle needs PyTorch")
  functional = torch.nn.functional
  model = models.two_cnn(shape)
  params = model.init(jax.random.key(0))
  params = jax.tree.map(lambda p: p + 0.01 * normal(2, *p.shape), params)
  x = normal(1, 4, *shape)
  weights = {
    name: {k: torch.tensor(np.asarray(v)) for k, v in layer.items()} for name, layer in params.items()
  }
  for layer in weights.values():
    for value in layer.values():
      value.requires_grad_()
  h = torch.tensor(np.asarray(x)).permute(0, 3, 1, 2)
  for name in ("conv1", "conv2"):
    h = functional.conv2d(h, weights[name]["kernel"].permute(3, 2, 0, 1), weights[name]["bias"], padding=1)
    h = functional.max_pool2d(functional.relu(h), 2, padding=1)
  h = functional.adaptive_avg_pool2d(h, 7).permute(0, 2, 3, 1).flatten(1)
  h = functional.relu(h @ weights["fc1"]["kernel"] + weights["fc1"]["bias"])
  logits = h @ weights["fc2"]["kernel"] + weights["fc2"]["bias"]
  logits.square().mean().backward()
  close(model.apply(params, x), logits.detach().numpy())
  ours = jax.grad(lambda params: jnp.square(model.apply(params, x)).mean())(params)
  close(ours, jax.tree.map(lambda value: value.grad.numpy(), weights))
