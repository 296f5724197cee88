"""SimpleCNN against NumPy's sums over windows, and its normalisation alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het import models
from fedjax_het.errors import SettingError
from fedjax_het.models.zoo.simple_cnn import local_response_norm


def normal(seed, *shape):
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def windows(x, size):
  """[B, H, W, size, size, C] of an image with padding size // 2, NaN beyond the edge."""
  edge = size // 2
  x = np.pad(x, ((0, 0), (edge, edge), (edge, edge), (0, 0)), constant_values=np.nan)
  return np.moveaxis(np.lib.stride_tricks.sliding_window_view(x, (size, size), axis=(1, 2)), 3, -1)


def conv5(x, layer):
  return np.einsum("bhwijc,ijco->bhwo", np.nan_to_num(windows(x, 5)), layer["kernel"]) + layer["bias"]


def pool3(x):
  return np.nanmax(windows(x, 3)[:, ::2, ::2], (3, 4))


def norm(x):
  """torch.nn.LocalResponseNorm(9, 0.001)."""
  squares = [np.square(x[..., max(0, c - 4) : c + 5]).sum(-1) for c in range(x.shape[-1])]
  return x / (1.0 + 1e-3 / 9 * np.stack(squares, -1)) ** 0.75


def grid6(x):
  """Means over six rows and columns of cells that cover the image."""
  for axis in (1, 2):
    n = x.shape[axis]
    cells = [np.arange(i * n // 6, -(-(i + 1) * n // 6)) for i in range(6)]
    x = np.stack([x.take(own, axis).mean(axis) for own in cells], axis)
  return x


def logits(params, x):
  p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
  relu = lambda h: np.maximum(h, 0.0)  # noqa: E731
  h = norm(pool3(relu(conv5(x, p["conv1"]))))
  h = pool3(norm(relu(conv5(h, p["conv2"]))))
  h = grid6(h).reshape(len(x), -1)
  for name in ("fc1", "fc2"):
    h = relu(h @ p[name]["kernel"] + p[name]["bias"])
  return h @ p["fc3"]["kernel"] + p["fc3"]["bias"]


@pytest.mark.parametrize(
  "shape, hidden", [((13, 10, 2), 12), pytest.param((32, 32, 3), 64, marks=pytest.mark.slow)]
)
def test_the_network_is_the_papers(shape, hidden):
  model = models.make("simple_cnn", shape, 10, hidden=hidden)
  params = jax.tree.map(lambda p: p + 0.02 * normal(2, *p.shape), model.init(jax.random.key(0)))
  x = 20.0 * normal(1, 2, *shape)  # so that the normalisation counts
  found = jax.jit(model.apply)(params, x)
  np.testing.assert_allclose(found, logits(params, x.astype(np.float64)), rtol=2e-4, atol=2e-4)
  assert model.head == ("fc3",) and params["fc3"]["kernel"].shape == (192, 10)


def test_parameters():
  params = jax.eval_shape(models.make("simple_cnn", (32, 32, 3), 10).init, jax.random.key(0))
  assert models.count_parameters(params) == 1_068_298


def test_the_gradient_of_the_normalisation_is_that_of_differences():
  x = 30.0 * normal(3, 1, 1, 2, 11).astype(np.float64)
  weights = normal(4, *x.shape)
  found = jax.grad(lambda x: (local_response_norm(x) * weights).sum())(jnp.asarray(x, jnp.float32))
  step = 1e-4 * np.eye(x.size).reshape(-1, *x.shape)
  wanted = [((norm(x + d) - norm(x - d)) * weights).sum() / 2e-4 for d in step]
  np.testing.assert_allclose(found.ravel(), wanted, rtol=2e-3, atol=2e-4)


def test_what_is_refused():
  for call, word in (
    (lambda: models.simple_cnn((784,)), "two_nn"),
    (lambda: models.simple_cnn(conv="patch"), "patches"),
    (lambda: models.simple_cnn(hidden=0), "hidden"),
  ):
    with pytest.raises(SettingError, match=word):
      call()
