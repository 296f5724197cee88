"""Conditional generators as pure functions, with the losses of their parts.

Parameters are a dict of parts, each of which has a loss of its own and is trained by it alone: one part for a
variational autoencoder, generator and discriminator for an adversarial pair.
"""

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_het.clients.objective import cross_entropy
from fedjax_het.models.base import Init, Params, dense, flatten, xavier

PyTree = Any
Loss = Callable[[PyTree, jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]


class Generative(NamedTuple):
  """A conditional generator.

  Attributes:
    init: (key) -> params, a dict of parts.
    losses: part -> (params, x [B, ...] in [0, 1], y [B], weight [B], key) -> loss, float32 scalar; a step
      trains the parts in this order, each with the parts before it already moved.
    generate: (params, key, y [M]) -> examples in [0, 1], float32 [M, ...].
    shape: of one example.
    num_classes: C.
    name: for reports.
  """

  init: Callable[[jax.Array], PyTree]
  losses: Mapping[str, Loss]
  generate: Callable[[PyTree, jax.Array, jax.Array], jax.Array]
  shape: tuple[int, ...]
  num_classes: int
  name: str


def perceptron(widths: list[int]) -> tuple[Init, Callable[[Params, jax.Array], jax.Array]]:
  """(init, apply) of dense layers of these widths with Swish between them."""
  names = [f"fc{i + 1}" for i in range(len(widths) - 1)]
  init = xavier(dict(zip(names, itertools.pairwise(widths))))

  def apply(params: Params, h: jax.Array) -> jax.Array:
    for name in names[:-1]:
      h = jax.nn.swish(dense(params[name], h))
    return dense(params[names[-1]], h)

  return init, apply


def weighted_mean(values: jax.Array, weight: jax.Array) -> jax.Array:
  """Mean of values [B] over a batch's real examples."""
  return jnp.sum(values * weight) / jnp.sum(weight)


def cvae_mlp(
  shape: tuple[int, ...] = (8, 8, 1), num_classes: int = 10, latent: int = 16, hidden: int = 256
) -> Generative:
  """A conditional variational autoencoder, p(x | z, y) N(z; 0, I), of two perceptrons with two hidden layers.

      loss = mean (x - x̂)² over pixels + 1/D·KL(N(m, s²) ‖ N(0, I)),   z = m + s ε,  x̂ = sigmoid(decode(z, y))

  the negative evidence bound for Gaussian pixels of variance 1/2, over the number of pixels D. The encoder
  gives m and s = softplus(·); it does not see y, as in the authors' code.

  Args:
    shape: of one example, flattened to D numbers in [0, 1].
    num_classes: C.
    latent: dimensions of z.
    hidden: width of the hidden layers.
  """
  size = math.prod(shape)
  encoder_init, encode = perceptron([size, hidden, hidden, 2 * latent])
  decoder_init, decode = perceptron([latent + num_classes, hidden, hidden, size])

  def init(key):
    first, second = jax.random.split(key)
    return {"autoencoder": {"encoder": encoder_init(first), "decoder": decoder_init(second)}}

  def decoded(params, z, y):
    given = jnp.concatenate([z, jax.nn.one_hot(y, num_classes)], axis=1)
    return jax.nn.sigmoid(decode(params["autoencoder"]["decoder"], given))

  def loss(params, x, y, weight, key):
    mean, raw = jnp.split(encode(params["autoencoder"]["encoder"], flatten(x)), 2, axis=1)
    deviation = jax.nn.softplus(raw) + 1e-6
    z = mean + deviation * jax.random.normal(key, mean.shape)
    squares = jnp.square(flatten(x) - decoded(params, z, y)).mean(axis=1)
    divergence = 0.5 * (mean**2 + deviation**2 - 1.0 - 2.0 * jnp.log(deviation)).sum(axis=1)
    return weighted_mean(squares + divergence / size, weight)

  def generate(params, key, y):
    z = jax.random.normal(key, (y.shape[0], latent))
    return decoded(params, z, y).reshape(-1, *shape)

  return Generative(init, {"autoencoder": loss}, generate, tuple(shape), num_classes, "cvae_mlp")


def cgan_mlp(
  shape: tuple[int, ...] = (8, 8, 1), num_classes: int = 10, latent: int = 32, hidden: int = 256
) -> Generative:
  """An auxiliary-classifier GAN (Odena et al., ICML 2017) of two perceptrons with two hidden layers.

  The discriminator sees examples in [-1, 1] and has 1 + C logits: real or not, and the class.

      discriminator   BCE(real, 1) + BCE(fake, 0) + CE(class of real, y) + CE(class of fake, its own label)
      generator       BCE(fake, 1) + CE(class of fake, its own label),      z ~ U(-1, 1)

  Args:
    shape: of one example, flattened to D numbers in [0, 1].
    num_classes: C.
    latent: dimensions of z.
    hidden: width of the hidden layers.
  """
  size = math.prod(shape)
  generator_init, make = perceptron([latent + num_classes, hidden, hidden, size])
  judge_init, judge = perceptron([size, hidden, hidden, 1 + num_classes])

  def init(key):
    first, second = jax.random.split(key)
    return {"generator": generator_init(first), "discriminator": judge_init(second)}

  def fake(params, key, y):
    z = jax.random.uniform(key, (y.shape[0], latent), minval=-1.0, maxval=1.0)
    given = jnp.concatenate([z, jax.nn.one_hot(y, num_classes)], axis=1)
    return jnp.tanh(make(params["generator"], given))

  def verdict(params, x, y, real: float):
    logits = judge(params["discriminator"], x)
    truth = optax.sigmoid_binary_cross_entropy(logits[:, 0], jnp.full(x.shape[0], real))
    return truth + cross_entropy(logits[:, 1:], y)

  def drawn(key, weight):
    """Labels for as many fakes as a batch has rows."""
    return jax.random.randint(key, weight.shape, 0, num_classes)

  def discriminator(params, x, y, weight, key):
    label_key, noise_key = jax.random.split(key)
    labels = drawn(label_key, weight)
    invented = jax.lax.stop_gradient(fake(params, noise_key, labels))
    real = verdict(params, 2.0 * flatten(x) - 1.0, y, 1.0)
    return weighted_mean(real, weight) + weighted_mean(verdict(params, invented, labels, 0.0), weight)

  def generator(params, x, y, weight, key):
    label_key, noise_key = jax.random.split(key)
    labels = drawn(label_key, weight)
    return weighted_mean(verdict(params, fake(params, noise_key, labels), labels, 1.0), weight)

  def generate(params, key, y):
    return (0.5 * (fake(params, key, y) + 1.0)).reshape(-1, *shape)

  losses = {"discriminator": discriminator, "generator": generator}
  return Generative(init, losses, generate, tuple(shape), num_classes, "cgan_mlp")
