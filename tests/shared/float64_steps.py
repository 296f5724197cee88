"""Local training on a loss that a test writes again, in float64, through the library's mini-batches."""

import functools

import jax
import jax.numpy as jnp
from one_round import BATCH, CLIENT, LOCAL, LR, add, close
from small_parts import float64, walk

KEY = jax.random.key(0)


def by_hand(loss, params, data, carry=None, noise=lambda key: None):
  """(parameters, carry) after plain SGD on loss(params, x, y, noise(key), carry) -> (loss, carry)."""
  batches = [(x, y, noise(key)) for x, y, key in walk(KEY, data, CLIENT, BATCH, LOCAL["epochs"])]
  with jax.enable_x64(True):
    params, slope_of = float64(params), jax.jit(jax.grad(loss, has_aux=True))
    for x, y, drawn in batches:
      slope, carry = slope_of(params, x, y, drawn, carry)
      params = float64(add(params, slope, -LR))
  return params, carry


def features(params, x):
  return jnp.tanh(x @ params["fc1"]["kernel"] + params["fc1"]["bias"])


def cross_entropy(logits, y):
  return (jax.nn.logsumexp(logits, axis=1) - logits[jnp.arange(len(y)), y]).mean()


def read(head, z):
  return z @ head["kernel"] + head["bias"]


near = functools.partial(close, rtol=2e-5, atol=3e-6)  # whose losses have more than one layer
