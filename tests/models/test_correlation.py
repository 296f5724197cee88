"""XLA's convolution in its fast form: its numbers, its derivatives, and that nothing leaves the form."""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fedjax_het.models.layers.convolution import choose
from fedjax_het.models.layers.strided_convolution import convolve
from fedjax_het.models.layers.xla_convolution import CACHE, correlate

SHAPES = [((7, 6), (3, 3)), ((2, 3), (3, 2)), ((9, 9), (1, 3)), ((1, 5), (2, 3))]
SETTINGS = [
  ((1, 1), (0, 0), (1, 1)), ((1, 1), (2, 1), (1, 1)), ((2, 2), (1, 1), (1, 1)), ((2, 1), (2, 0), (1, 2)),
  ((3, 2), (3, 3), (2, 1)), ((4, 4), (1, 1), (1, 1)),
]  # fmt: skip
CASES = [
  case
  for case in itertools.product(SHAPES, SETTINGS)
  if all(
    n + 2 * p > d * (k - 1) for n, k, p, d in zip(case[0][0], case[0][1], case[1][1], case[1][2])
  )
]  # fmt: skip


def drawn(sides, size, images=2, channels=3, features=4):
  rng = np.random.default_rng(0)
  return (
    jnp.asarray(rng.normal(size=(images, *sides, channels)), jnp.float32),
    jnp.asarray(rng.normal(size=(*size, channels, features)), jnp.float32),
  )


def plain(x, kernel, strides, padding, dilations):
  """By its definition, float64."""
  x, kernel = np.asarray(x, np.float64), np.asarray(kernel, np.float64)
  x = np.pad(x, ((0, 0), *((p, p) for p in padding), (0, 0)))
  sides = [
    (n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(x.shape[1:3], kernel.shape, strides, dilations)
  ]
  y = np.zeros((len(x), *sides, kernel.shape[3]))
  for i, j in itertools.product(*map(range, sides)):
    for p, q in itertools.product(*map(range, kernel.shape[:2])):
      y[:, i, j] += x[:, strides[0] * i + dilations[0] * p, strides[1] * j + dilations[1] * q] @ kernel[p, q]
  return y


def xla(x, kernel, strides, padding, dilations):
  edges = [(p, p) for p in padding]
  return lax.conv_general_dilated(
    x, kernel, strides, edges, rhs_dilation=dilations, dimension_numbers=("NHWC", "HWIO", "NHWC")
  )


def near(ours, theirs):
  for own, their in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
    assert own.shape == their.shape
    np.testing.assert_allclose(own, their, rtol=0, atol=2e-5 * max(1.0, np.abs(their).max()))


@pytest.mark.parametrize(
  ("shapes", "settings"),
  [pytest.param(*case, marks=[] if i % 4 == 0 else pytest.mark.slow) for i, case in enumerate(CASES)],
)
def test_its_numbers_and_both_gradients(shapes, settings):
  x, kernel = drawn(*shapes)
  near(correlate(x, kernel, *settings), plain(x, kernel, *settings))
  ours, theirs = (
    jax.grad(lambda x, kernel, f=f: (f(x, kernel, *settings) ** 3).sum(), (0, 1)) for f in (correlate, xla)
  )
  near(ours(x, kernel), theirs(x, kernel))


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS[:4])
def test_derivatives_of_the_second_order_forward_and_reverse(settings):
  x, kernel = drawn((6, 5), (3, 3))

  def of(f):
    def loss(pair):
      return (f(*pair, *settings) ** 3).sum()

    pair, along = (x, kernel), (x[::-1], kernel[::-1])
    slope = jax.grad(loss)
    inner = lambda pair: sum(map(jnp.vdot, jax.tree.leaves(slope(pair)), along))  # noqa: E731
    return jax.jvp(loss, (pair,), (along,)), jax.jvp(slope, (pair,), (along,)), jax.grad(inner)(pair)

  near(of(correlate), of(xla))


@pytest.mark.slow
@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0), (1, 2)])
def test_stacks_of_clients(axes):
  rng = np.random.default_rng(1)
  shapes = [(2, 6, 6, 3), (3, 3, 3, 4)]
  args = [
    jnp.asarray(rng.normal(size=shape if axis is None else (*shape[:axis], 5, *shape[axis:])), jnp.float32)
    for shape, axis in zip(shapes, axes)
  ]

  def both(f):
    return lambda x, kernel: jax.value_and_grad(lambda *pair: (f(*pair) ** 3).sum(), (0, 1))(x, kernel)

  single = lambda x, kernel: correlate(x, kernel, (2, 2), (1, 1))  # noqa: E731
  one = [[jnp.take(a, i, axis) if axis is not None else a for a, axis in zip(args, axes)] for i in range(5)]
  wanted = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[both(single)(*pair) for pair in one])
  near(jax.vmap(both(single), axes)(*args), wanted)


def test_many_images_are_summed_over_a_few_at_a_time():
  images = 2 * CACHE // (4 * 16 * 16 * 8) + 3  # does not divide
  x, kernel = drawn((16, 16), (3, 3), images, 8, 2)

  def kernel_bar(f):
    return jax.jit(jax.grad(lambda kernel: (f(x, kernel, (1, 1), (1, 1), (1, 1)) ** 2).sum()))

  near(kernel_bar(correlate)(kernel), kernel_bar(xla)(kernel))
  assert "while" in kernel_bar(correlate).lower(kernel).compile().as_text()


@pytest.mark.parametrize("sides", [(8, 8), (2, 2)])
@pytest.mark.parametrize("stride", [1, 2])
def test_no_convolution_leaves_the_form(sides, stride, monkeypatch):
  monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
  x, kernel = drawn(sides, (3, 3), 4, 8, 8)
  cpu = jax.local_devices(backend="cpu")[0]  # the form is that of its backend
  stacks = jax.device_put((jnp.stack([x] * 3), jnp.stack([kernel] * 3)), cpu)

  def loss(x, kernel):
    return (correlate(x, kernel, (stride, stride), (1, 1)) ** 2).sum()

  program = jax.jit(jax.vmap(jax.grad(loss, (0, 1)))).lower(*stacks).compile().as_text()
  found = re.findall(r"convolution\(.*", program)
  assert len(found) == 3
  for line in found:
    assert "dim_labels=b01f_01io->b01f" in line
    assert "rhs_reversal" not in line
    assert "group_count" not in line


def test_what_auto_takes(monkeypatch):
  monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
  assert choose((3, 3, 32, 32), 10, (16, 16)) == choose((5, 5, 128, 64), 10, (8, 8)) == "lax"
  assert choose((3, 3, 32, 64), 10, (16, 16)) == "winograd"  # widening
  assert choose((3, 3, 48, 48), 10, (16, 16)) == "winograd"  # no multiple of 32
  assert choose((3, 3, 128, 128), 10, (16, 16)) == "winograd"
  many = [(3, 3, 16, 16), (3, 3, 16, 32), (3, 3, 24, 24), (5, 5, 32, 64), (3, 3, 16, 8)]
  assert {choose(kernel, 10, (25, 20)) for kernel in many} == {"lax"}
  few = [((3, 3, 16, 16), 10, (25, 19)), ((3, 3, 16, 16), 7, (32, 32)), ((3, 3, 12, 12), 10, (32, 32))]
  wide = [((3, 3, features // 4, features), 10, (32, 32)) for features in (32, 64)]
  slow = [((3, 3, 48, 48), 10, (32, 32)), ((2, 3, 16, 16), 10, (32, 32))]
  assert {choose(*own) for own in (*few, *wide, *slow)} == {"winograd"}
  assert choose((3, 3, 64, 64), 10, (2, 2)) == "patches"
  assert choose((2, 2, 64, 64), 10, (16, 16)) == choose((3, 1, 64, 64), 10, (995, 1)) == "winograd"
  assert choose((3, 3, 16, 32), 10, (16, 16), (2, 2)) == "lax"
  assert choose((3, 3, 3, 32), 10, (16, 16), (2, 2)) == "patches"
  assert choose((3, 3, 256, 512), 10, (2, 2), (2, 2)) == "patches"
  assert choose((2, 2, 64, 64), 10, (14, 14), (2, 2)) == "patches"  # windows side by side


@pytest.mark.parametrize(("channels", "stride"), [(32, 1), (16, 2), (16, 1)])
def test_auto_goes_where_it_says(channels, stride, monkeypatch):
  monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
  x, kernel = drawn((16, 16), (3, 3), 2, channels, 16)
  program = jax.jit(lambda x, kernel: convolve(x, kernel, stride, 1)).lower(x, kernel).as_text()
  assert ("convolution" in program) == ((channels, stride) != (16, 1))
  near(convolve(x, kernel, stride, 1), xla(x, kernel, (stride, stride), (1, 1), (1, 1)))
