"""LEAF's networks and M5, written out once more with XLA's convolutions and pooling."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fedjax_het as fh
from fedjax_het.errors import SettingError
from fedjax_het.models import leaf_cnn, m5


def normal(seed, *shape):
  return jax.random.normal(jax.random.key(seed), shape)


def drawn(model):
  """Parameters of which none is 0 or 1."""
  shapes = jax.eval_shape(model.init, jax.random.key(0))
  return jax.tree.map(lambda leaf: 0.5 * normal(leaf.size, *leaf.shape), shapes)


def moved(stats):
  """Running statistics that are not those of the start."""
  return jax.tree.map(lambda leaf: leaf + 0.3 * np.abs(normal(leaf.size, *leaf.shape)), stats)


@pytest.mark.parametrize(
  "name, shape, classes, options, count",
  [
    ("leaf_cnn", (84, 84, 3), 2, {}, 29_569),
    ("leaf_cnn", (84, 84, 3), 2, dict(norm="batch"), 29_569),
    ("leaf_cnn", (84, 84, 3), 2, dict(norm="none"), 29_569 - 4 * 2 * 32),
    ("femnist_cnn", (28, 28, 1), 62, {}, 6_603_710),
    ("m5", (16_000,), 35, {}, 150_819),
    ("m5", (16_000, 1), 35, dict(norm="group"), 150_819),
  ],
)
def test_parameters(name, shape, classes, options, count):
  model = fh.models.make(name, shape, classes, **options)
  assert model.name == name
  assert fh.models.count_parameters(jax.eval_shape(model.init, jax.random.key(0))) == count


def convolved(x, kernel, stride=1, padding=0):
  """[B, ..., C] by XLA, of one axis or two."""
  axes = "HW"[: x.ndim - 2]
  return lax.conv_general_dilated(
    x, kernel, (stride,) * len(axes), [(padding, padding)] * len(axes),
    dimension_numbers=(f"N{axes}C", f"{axes}IO", f"N{axes}C"),
  )  # fmt: skip


def pooled(x, window, padding=0):
  size = (1, *(window,) * (x.ndim - 2), 1)
  edges = [(0, 0), *[(padding, padding)] * (x.ndim - 2), (0, 0)]
  return lax.reduce_window(x, -jnp.inf, lax.max, size, size, edges)


def normalised(x, layer, mean, variance):
  return (x - mean) / np.sqrt(variance + 1e-5) * layer["scale"] + layer["bias"]


@pytest.mark.slow
@pytest.mark.parametrize("training", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_m5_is_its_description(training):
  model = m5((1300,), 3, width=4)
  x = normal(1, 4, 1300)
  params = drawn(model)
  stats = moved(model.stats)
  real = jnp.array([1.0, 1.0, 1.0, 0.0])
  h, rows = x[..., None], slice(3) if training else slice(4)
  for i, (stride, padding) in enumerate([(4, 0), (1, 1), (1, 1), (1, 1)], 1):
    layer = params[f"conv{i}"]
    h = convolved(h, layer["kernel"], stride, padding) + layer["bias"]
    running = stats[f"norm{i}"]
    own = (h[rows].mean((0, 1)), h[rows].var((0, 1))) if training else (running["mean"], running["var"])
    h = pooled(jax.nn.relu(normalised(h, params[f"norm{i}"], *own)), 4)
  wanted = (h.mean(1) @ params["fc"]["kernel"] + params["fc"]["bias"])[rows]
  if training:
    found = jax.jit(model.train)(params, stats, x, real, jax.random.key(0))[0][rows]
  else:
    found = jax.jit(model.apply)(params, x, stats)
  np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3 * float(jnp.abs(wanted).max()))


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["group", pytest.param("batch", marks=pytest.mark.slow)])
def test_leaf_cnn_is_its_description(norm):
  model = leaf_cnn((20, 18, 3), 2, width=8, norm=norm)
  x = normal(1, 3, 20, 18, 3)
  params = drawn(model)
  stats = moved(model.stats)
  h = x
  for i in range(4):
    h, layer = convolved(h, params[f"conv{i + 1}"]["kernel"], 1, 1), params[f"norm{i + 1}"]
    if norm == "batch":
      running = stats[f"norm{i + 1}"]
      h = normalised(h, layer, running["mean"], running["var"])
    else:
      groups = 8 // 2**i
      parts = h.reshape(3, -1, groups, 8 // groups)
      mean, variance = (
        np.repeat(f(parts, axis=(1, 3)), 8 // groups, axis=1)[:, None, None] for f in (np.mean, np.var)
      )
      h = normalised(h, layer, mean, variance)
    h = jax.nn.relu(pooled(h, 2, 1))
  rows, columns = ([(n * i // 5, -(-n * (i + 1) // 5)) for i in range(5)] for n in h.shape[1:3])
  cells = np.array([[h[:, a:b, c:d].mean((1, 2)) for c, d in columns] for a, b in rows])
  wanted = np.moveaxis(cells, 2, 0).reshape(3, -1) @ params["fc"]["kernel"] + params["fc"]["bias"]
  found = jax.jit(model.apply)(params, x, *([stats] if norm == "batch" else []))
  np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3 * float(jnp.abs(wanted).max()))


@pytest.mark.parametrize(
  "call, word",
  [
    (lambda: m5((1000,)), "1100"),
    (lambda: m5((28, 28, 1)), "shape"),
    (lambda: m5(norm="layer"), "norm"),
    (lambda: leaf_cnn(width=12), "8"),
    (lambda: leaf_cnn((784,)), "shape"),
    (lambda: leaf_cnn(conv="x"), "conv"),
    (lambda: fh.models.femnist_cnn(dense=0), "dense"),
  ],
)
def test_what_cannot_be_is_named(call, word):
  with pytest.raises(SettingError, match=word):
    call()
