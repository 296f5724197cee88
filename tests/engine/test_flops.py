"""The arithmetic of a step: loops as often as they go round, nothing that no result needs."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import fedjax_het as fh
from fedjax_het.engine.flops import flops

A = jax.ShapeDtypeStruct((8, 16, 16), jnp.float32)
PRODUCT = 2 * 16**3


def looped(a):
  return lax.map(lambda own: own @ own, a)


@pytest.mark.parametrize("wrapped", [looped, jax.jit(looped), jax.checkpoint(looped)])
def test_a_loop_counts_as_often_as_it_goes_round(wrapped):
  assert flops(lambda a: a[0] @ a[0], A) == PRODUCT
  assert flops(wrapped, A) == pytest.approx(8 * PRODUCT, rel=0.01)


def test_loops_in_loops():
  def twice(a):
    return lax.scan(lambda total, own: (total + looped(own).sum(), None), 0.0, jnp.stack([a, a, a]))[0]

  assert flops(twice, A) == pytest.approx(24 * PRODUCT, rel=0.05)


def test_what_no_result_needs_is_left_out():
  def first(a):
    return [looped(a), looped(a + 1.0)][0]

  assert flops(first, A) == flops(looped, A)


def gradient(name, shape, batch, **options):
  model = fh.models.make(name, shape, 10, **options)
  params = jax.eval_shape(model.init, jax.random.key(0))
  x = jax.ShapeDtypeStruct((batch, *shape), jnp.float32)
  return flops(jax.grad(lambda params, x: jnp.sum(model.logits(params, x) ** 2)), params, x)


def test_convolutions_a_few_images_at_a_time():
  """Which on a CPU is a loop for fifty images and none for two."""
  few, many = (gradient("simple_cnn", (32, 32, 3), batch, conv="patches") for batch in (2, 50))
  assert many == pytest.approx(25 * few, rel=0.03)
  products = 32**2 * 75 * 64 * 2 + 16**2 * 64 * (25 * 64 * 3 + 4 * 64 + 2 * 64) + 3 * (2304 * 384 + 384 * 192)
  assert many == pytest.approx(50 * 2 * products, rel=0.1)
