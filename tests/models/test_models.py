"""The models: parameter counts, convolution and pooling against XLA's own, pooling against NumPy, errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fedjax_het import models
from fedjax_het.errors import SettingError
from fedjax_het.models.layers import convolution
from fedjax_het.models.layers.convolution import choose, conv2d
from fedjax_het.models.layers.pooling import adaptive_average_pool, max_pool2
from fedjax_het.models.layers.product import SMALL_BATCH, product


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
    pytest.param("two_cnn", (28, 28, 1), 10, 1_663_370, marks=pytest.mark.slow),
    pytest.param("two_cnn", (32, 32, 3), 10, 1_664_970, marks=pytest.mark.slow),
    ("logistic_regression", (15,), 1, 16),
    ("logistic_regression", (15,), 3, 48),
    ("text_pair", (2, 64), 1, 133_217),
  ],
)
def test_parameters_and_logits(name, shape, classes, count):
  model = models.make(name, shape, classes)
  params = model.init(jax.random.key(0))
  assert model.name == name
  assert models.count_parameters(params) == count
  names = {path[-1].key for path, _ in jax.tree_util.tree_leaves_with_path(params)}
  assert names <= {"kernel", "bias", "embedding"}
  x = jnp.ones((3, *shape), jnp.int32) if name == "text_pair" else normal(1, 3, *shape)
  assert model.apply(params, x).shape == (3, classes)


@pytest.mark.slow
@pytest.mark.parametrize(
  "name,shape", [("logistic_regression", (15,)), ("two_nn", (4,)), ("text_pair", (2, 8))]
)
def test_a_binary_task_has_one_logit(name, shape):
  binary, one = models.make(name, shape, 2), models.make(name, shape, 1)
  close(binary.init(jax.random.key(0)), one.init(jax.random.key(0)), 0)
  x = jnp.ones((3, *shape), jnp.int32 if name == "text_pair" else jnp.float32)
  assert binary.apply(binary.init(jax.random.key(0)), x).shape == (3, 1)
  pair = models.MODELS[name](shape, 2)
  assert pair.apply(pair.init(jax.random.key(0)), x).shape == (3, 2)


def test_initial_kernels_are_xavier_normal():
  params = models.two_cnn().init(jax.random.key(0))
  kernel = params["conv2"]["kernel"]
  assert float(kernel.std()) == pytest.approx((2 / (25 * (32 + 64))) ** 0.5, rel=0.02)
  assert float(jnp.abs(kernel).max()) > 3 * float(kernel.std())  # not truncated
  assert not any(jnp.any(layer["bias"]) for layer in params.values())


def xla(x, kernel, padding=1):
  edges = [(padding, padding)] * 2
  return lax.conv_general_dilated(x, kernel, (1, 1), edges, dimension_numbers=("NHWC", "HWIO", "NHWC"))


@pytest.mark.slow
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
  close(ours, value_and_pullback(lambda x, k: xla(x, k, padding), x, k))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["patches", "winograd"])
def test_convolution_of_stacked_clients(method):
  x, k = normal(0, 3, 2, 10, 9, 4), normal(1, 3, 5, 5, 4, 6)

  def both(x, k):
    return value_and_pullback(lambda x, k: conv2d(x, k, 1, method), x, k)

  rows = [both(x[i], k[i]) for i in range(3)]
  close(jax.jit(jax.vmap(both))(x, k), jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows))
  summed = jax.grad(lambda k: jax.vmap(lambda x, k: conv2d(x, k, 1, method))(x, k).sum())(k)
  close(summed, jax.grad(lambda k: jax.vmap(lambda x, k: xla(x, k, 1))(x, k).sum())(k))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["patches", pytest.param("winograd", marks=pytest.mark.slow)])
@pytest.mark.parametrize("images", [9, pytest.param(17, marks=pytest.mark.slow)])
def test_convolution_of_a_few_images_at_a_time(method, images, monkeypatch):
  """The last chunk is not full; of stacked clients; and differentiated once more."""
  monkeypatch.setattr(convolution, "chunk", lambda count, *_: 4)
  x, k = normal(0, 2, images, 7, 6, 3), normal(1, 2, 3, 3, 3, 5)

  def ours(x, k):
    return conv2d(x, k, 1, method)

  def both(f):
    return jax.vmap(lambda x, k: value_and_pullback(f, x, k))

  assert "while" in jax.jit(both(ours)).lower(x, k).as_text()
  close(jax.jit(both(ours))(x, k), both(xla)(x, k))

  def second(f):
    slope = jax.grad(lambda k: (f(x[0], k) ** 2).mean())
    return jax.grad(lambda k: (slope(k) ** 2).sum())(k[0]), jax.jvp(slope, (k[0],), (k[1],))[1]

  close(second(ours), second(xla), 1e-4)


def test_how_many_images_at_a_time():
  cache = convolution.CACHE
  assert convolution.chunk(64, cache // 8, 0) == 8  # eight times the cache: in eight
  assert convolution.chunk(63, cache // 8, 0) == 63
  assert convolution.chunk(64, cache // 2, cache) == 8  # whose kernel is four caches: in eight
  assert convolution.chunk(50, cache, 0) == convolution.chunk(1, cache * 50, 0) == 1
  assert convolution.chunk(50, cache // 3, 0) == 4


def test_the_method_chosen_on_cpu(monkeypatch):
  monkeypatch.setattr(jax, "default_backend", lambda: "cpu")

  def chosen(shape, pixels):
    return choose(shape, pixels, (1, 1))

  assert chosen((5, 5, 32, 64), 32) == chosen((3, 3, 8, 8), 8) == chosen((2, 2, 8, 8), 16) == "winograd"
  assert chosen((5, 5, 3, 37), 99) == chosen((3, 3, 3, 22), 99) == chosen((5, 5, 1, 12), 99) == "winograd"
  assert chosen((5, 5, 3, 38), 99) == chosen((3, 3, 3, 23), 99) == chosen((5, 5, 1, 13), 99) == "patches"
  assert chosen((7, 7, 32, 64), 99) == "patches"
  assert chosen((5, 5, 32, 64), 31) == chosen((3, 3, 8, 8), 7) == chosen((2, 2, 8, 8), 15) == "patches"
  monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
  assert chosen((5, 5, 32, 64), 99) == "patches"


def test_few_pixels_are_not_transformed(monkeypatch):
  """Of all images together, whatever is cut off by the padding."""
  monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
  asked = []
  monkeypatch.setattr(convolution, "choose", lambda *own: asked.append(own) or "lax")
  convolution.conv2d(jnp.ones((5, 4, 6, 8)), jnp.ones((3, 2, 8, 16)), (1, 0))
  assert asked == [((3, 2, 8, 16), 5, (4, 5))]


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(8, 8), (14, 9), (7, 7), (3, 7), (16, 10)])
def test_adaptive_pool_is_the_mean_over_cells(shape):
  x = np.asarray(normal(0, 2, *shape, 3))
  wanted = np.empty((2, 7, 7, 3), np.float32)
  rows, columns = ([(n * i // 7, -(-n * (i + 1) // 7)) for i in range(7)] for n in shape)
  for i, (top, bottom) in enumerate(rows):
    for j, (left, right) in enumerate(columns):
      wanted[:, i, j] = x[:, top:bottom, left:right].mean((1, 2))
  close(adaptive_average_pool(jnp.asarray(x), (7, 7)), wanted, 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 10, SMALL_BATCH + 1])
def test_dense_gradient(batch):
  x, kernel = normal(0, batch, 12), normal(1, 12, 5)
  close(value_and_pullback(product, x, kernel), value_and_pullback(lambda x, kernel: x @ kernel, x, kernel))


@pytest.mark.slow
def test_methods_agree_on_the_whole_network():
  x = normal(1, 4, 20, 20, 3)

  def gradient(conv):
    model = models.two_cnn((20, 20, 3), 5, hidden=16, conv=conv)
    params = model.init(jax.random.key(0))
    return jax.jit(jax.grad(lambda params: jnp.square(model.apply(params, x)).mean()))(params)

  wanted = gradient("lax")
  for conv in ("auto", "patches", "winograd"):
    close(gradient(conv), wanted)


def ids(seed, *shape):
  return np.random.default_rng(seed).integers(0, 50, shape).astype(np.int32)


@pytest.mark.slow
def test_text_pair_is_the_formula():
  model = models.text_pair((2, 7), 3, vocabulary=50, embedding=4, hidden=5)
  params = jax.tree.map(lambda p: p + 0.1 * normal(2, *p.shape), model.init(jax.random.key(0)))
  x = ids(0, 6, 2, 7)
  x[:, :, 5:], x[0, 1] = 0, 0  # padding, and a text without a word
  own = jax.tree.map(np.asarray, params)
  e, first, second = own["embed"], own["head"]["fc1"], own["head"]["fc2"]
  wanted = []
  for pair in x:
    u, v = (e["embedding"][t[t > 0]].sum(0) / max((t > 0).sum(), 1) + e["bias"] for t in pair)
    h = np.concatenate([np.abs(u - v), u * v]) @ first["kernel"] + first["bias"]
    wanted.append(np.maximum(h, 0) @ second["kernel"] + second["bias"])
  close(jax.jit(model.apply)(params, x), np.array(wanted))
  close(model.apply(params, x[:, ::-1]), np.array(wanted))
  longer = np.pad(x, ((0, 0), (0, 0), (0, 9)))
  close(model.apply(params, longer), np.array(wanted))


@pytest.mark.slow
def test_text_pair_of_stacked_clients_and_its_gradient():
  model = models.text_pair((2, 7), vocabulary=50, embedding=4, hidden=5)
  params = jax.vmap(model.init)(jax.random.split(jax.random.key(0), 3))
  x = ids(1, 3, 6, 2, 7)
  x[..., 4:] = 0

  def gradient(params, x):
    return jax.grad(lambda params: jnp.square(model.apply(params, x)).sum())(params)

  rows = [gradient(jax.tree.map(lambda leaf: leaf[i], params), x[i]) for i in range(3)]
  stacked = jax.jit(jax.vmap(gradient))(params, x)
  close(stacked, jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows))
  assert not jnp.any(stacked["embed"]["embedding"][:, 0])  # padding learns nothing
  assert jnp.any(stacked["embed"]["embedding"][:, 1:])


def test_text_pair_is_drawn_anew_from_its_key_alone_and_refuses_larger_ids():
  model = models.text_pair()
  one, same, other = (model.init(jax.random.key(seed)) for seed in (0, 0, 1))
  close(one, same, 0)
  assert not np.array_equal(one["embed"]["embedding"], other["embed"]["embedding"])
  assert float(one["embed"]["embedding"].std()) == pytest.approx(1.0, rel=0.02)
  x = np.full((1, 2, 64), 4095, np.int32)
  assert jnp.isfinite(model.apply(one, x)).all()
  assert jnp.isnan(model.apply(one, x + 1)).all()


@pytest.mark.parametrize(
  "call,word",
  [
    (lambda: models.make("two_cn", (28, 28, 1), 10), "two_cnn"),
    (lambda: models.make("two_nn", (28, 28, 1), 10, hiden=3), "hidden"),
    (lambda: models.two_cnn(conv="patch"), "patches"),
    (lambda: models.two_cnn(shape=(784,)), "two_nn"),
    (lambda: models.two_cnn(hidden=np.inf), "hidden = inf: must be a whole number"),
    (lambda: models.two_nn(hidden=2.5), "hidden = 2.5: must be a whole number"),
    (lambda: models.make("text_pair", (64,), 2), "two texts"),
    (lambda: models.make("text_pair", (2, 64), 2, vocabulry=9), "vocabulary"),
    (lambda: conv2d(normal(0, 1, 9, 9, 2), normal(1, 7, 7, 2, 2), 0, "winograd"), "patches"),
  ],
)
def test_errors_name_the_remedy(call, word):
  with pytest.raises(SettingError, match=word):
    call()


@pytest.mark.slow
@pytest.mark.parametrize(
  "shape, options",
  [
    ((28, 28, 1), {}), ((32, 32, 3), {}), ((30, 25, 2), {}),
    ((28, 28, 3), {"dense": 200, "layers": 2, "bias": False}),
  ],
)  # fmt: skip
def test_two_cnn_is_pytorchs(shape, options):
  """The authors' network, written with PyTorch's layers and given the same parameters."""
  torch = pytest.importorskip("torch", reason="the PyTorch oracle needs PyTorch")
  functional = torch.nn.functional
  model = models.two_cnn(shape, **options)
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
    h = functional.conv2d(
      h, weights[name]["kernel"].permute(3, 2, 0, 1), weights[name].get("bias"), padding=1
    )
    h = functional.max_pool2d(functional.relu(h), 2, padding=1)
  h = functional.adaptive_avg_pool2d(h, 7).permute(0, 2, 3, 1).flatten(1)
  *hidden, last = (layer for name, layer in sorted(weights.items()) if name.startswith("fc"))
  for layer in hidden:
    h = functional.relu(h @ layer["kernel"] + layer.get("bias", 0.0))
  logits = h @ last["kernel"] + last.get("bias", 0.0)
  logits.square().mean().backward()
  close(model.apply(params, x), logits.detach().numpy())
  ours = jax.grad(lambda params: jnp.square(model.apply(params, x)).mean())(params)
  close(ours, jax.tree.map(lambda value: value.grad.numpy(), weights))


@pytest.mark.slow
def test_two_cnn_of_superfeds_code():
  """By NumPy, convolutions as sums of shifted products; its parameters are counted in test_personal.py."""
  model = models.make("two_cnn", (8, 8, 2), 3, hidden=2, dense=5, layers=2, bias=False)
  params = model.init(jax.random.key(0))
  assert all(set(layer) == {"kernel"} for layer in params.values()) and model.head == ("fc3",)
  x = normal(1, 3, 8, 8, 2)
  h = np.asarray(x, float)
  for name in ("conv1", "conv2"):
    kernel = np.asarray(params[name]["kernel"], float)
    h, size = np.pad(h, ((0, 0), (1, 1), (1, 1), (0, 0))), h.shape[1] - 2
    h = sum(h[:, i : i + size, j : j + size] @ kernel[i, j] for i in range(5) for j in range(5))
    h = np.pad(np.maximum(h, 0.0), ((0, 0), (1, 1), (1, 1), (0, 0)))  # ReLU first: zeros are the least
    size = h.shape[1] // 2 * 2
    h = h[:, :size, :size].reshape(3, size // 2, 2, size // 2, 2, -1).max((2, 4))
  h = np.asarray(adaptive_average_pool(jnp.asarray(h, jnp.float32), (7, 7)), float).reshape(3, -1)
  for name in ("fc1", "fc2"):
    h = np.maximum(h @ np.asarray(params[name]["kernel"], float), 0.0)
  close(model.apply(params, x), h @ np.asarray(params["fc3"]["kernel"], float))


def test_two_nn_of_superfeds_code():
  model = models.make("two_nn", (28, 28, 1), 10, layers=3, bias=False)
  params = model.init(jax.random.key(0))
  assert models.count_parameters(params) == 238_800
  assert all(set(layer) == {"kernel"} for layer in params.values())
  x = jax.random.normal(jax.random.key(1), (2, 28, 28, 1))
  h = x.reshape(2, -1)
  for name in ("fc1", "fc2", "fc3"):
    h = jnp.maximum(h @ params[name]["kernel"], 0.0)
  np.testing.assert_allclose(model.apply(params, x), h @ params["fc4"]["kernel"], rtol=1e-5, atol=1e-5)


def test_standardized_inputs():
  x = jnp.linspace(0.0, 1.0, 12).reshape(3, 4)
  plain = models.make("logistic_regression", (4,), 3)
  shown = models.make("logistic_regression", (4,), 3, mean=0.25, std=0.5)
  params = plain.init(jax.random.key(0))
  np.testing.assert_allclose(shown.apply(params, x), plain.apply(params, (x - 0.25) / 0.5), rtol=1e-6)
  for settings in ({"std": 0.0}, {"std": np.inf}, {"mean": -np.inf}, {"mean": np.nan}):
    with pytest.raises(SettingError, match=f"{next(iter(settings))} = .*out of range"):
      models.make("logistic_regression", (4,), 3, **settings)
