"""Conditional generative models as pure functions, with one loss per trained part.

Parameters are a dict of parts. Each part has a separate loss and is trained by it alone: one part for a
variational autoencoder; generator and discriminator for an adversarial pair.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_het.errors import SettingError
from fedjax_het.local import weighted_mean
from fedjax_het.models.layers.basic import Network, Perceptron, flatten, network
from fedjax_het.models.shapes import check_halved, model_factory
from fedjax_het.models.zoo import coders
from fedjax_het.settings import Count, NonNegative, Positive

PyTree = Any
Label = Callable[[jax.Array, jax.Array], jax.Array]
Loss = Callable[[PyTree, jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]
Judge = tuple[Callable[[jax.Array], PyTree], Callable[[PyTree, jax.Array, jax.Array], jax.Array]]
SMALLEST_VARIANCE = 1e-6  # smallest variance of a pixel, about that of rounding to 256 levels


class Generative(NamedTuple):
  """A class-conditional generative model.

  Attributes:
    init: (key) -> params, a dict of parts.
    losses: part -> (params, x [B, ...], y [B], weight [B], key) -> loss, float32 scalar. A training step
      updates the parts in this order; each part's loss sees the parts before it already updated.
    generate: (params, key, y [M]) -> examples, float32 [M, ...].
    shape: shape of one example.
    num_classes: C, the number of classes.
    name: name of the model in reports.
    bounded: whether generated examples lie in [0, 1], as pixels do; training examples must then lie there
      too.
  """

  init: Callable[[jax.Array], PyTree]
  losses: Mapping[str, Loss]
  generate: Callable[[PyTree, jax.Array, jax.Array], jax.Array]
  shape: tuple[int, ...]
  num_classes: int
  name: str
  bounded: bool = True


def with_label(x: jax.Array, y: jax.Array, num_classes: int) -> jax.Array:
  """Appends the one-hot label to the last axis of x, at every position: [B, ..., D] -> [B, ..., D + C]."""
  one_hot = jax.nn.one_hot(y, num_classes).reshape(-1, *[1] * (x.ndim - 2), num_classes)
  return jnp.concatenate([x, jnp.broadcast_to(one_hot, (*x.shape[:-1], num_classes))], axis=-1)


def variational(
  encoder: Network, decoder: Network, shape: tuple[int, ...], num_classes: int, latent: int, name: str,
  beta: float | None = 1.0, variance: float | None = None, label: Label | None = None,
) -> Generative:  # fmt: skip
  """Conditional variational autoencoder, p(x | z, y) N(z; 0, I).

      loss = mean (x - x̂)² over pixels + β·KL(N(m, s²) ‖ N(0, I)),   z = m + s ε,  x̂ = sigmoid(decode(z, y)).

  With β = 1, the value of the authors and of FedCVAE here, the divergence outweighs the mean over the D
  pixels by a factor D: z carries next to no information, and samples are close to each class's mean. With β =
  None instead

      loss = mean (x - x̂)²/2v over pixels + ½ log 2πv + 1/D·KL(N(m, s²) ‖ N(0, I)),

  the negative evidence lower bound for Gaussian pixels of variance v, divided by the number of pixels D. v is
  the maximum-likelihood value per batch, v = mean (x - x̂)² + 1e-6 (the optimal variance of Rybkin et al.,
  Simple and Effective VAE Training with Calibrated Decoders, ICML 2021), or given. The encoder outputs m and
  s = softplus(·). By default it does not see y, as in the authors' code; with `label` it is q(z | x, y), as
  in Sohn et al., Learning Structured Output Representation using Deep Conditional Generative Models, NIPS
  2015.

  Args:
    encoder: [B, *shape] -> [B, 2 latent].
    decoder: [B, latent + C] -> [B, D] or [B, *shape].
    shape: shape of one example, D numbers in [0, 1].
    num_classes: C, the number of classes.
    latent: dimension of z.
    name: name of the model in reports.
    beta: β >= 0; None for the evidence lower bound.
    variance: v > 0 in the evidence lower bound; None for the maximum-likelihood value per batch.
    label: (x, y) -> what the encoder reads; None for x alone.

  Raises:
    SettingError: β or the variance is out of range, or both are given.
  """
  if variance is not None and beta is not None:
    raise SettingError("variance", variance, f"has no effect beside beta = {beta}", "Set beta=None.")
  (encoder_init, encode), (decoder_init, decode) = encoder, decoder
  size = math.prod(shape)

  def init(key):
    first, second = jax.random.split(key)
    return {"autoencoder": {"encoder": encoder_init(first), "decoder": decoder_init(second)}}

  def decoded(params, z, y):
    given = jnp.concatenate([z, jax.nn.one_hot(y, num_classes)], axis=1)
    return jax.nn.sigmoid(decode(params["autoencoder"]["decoder"], given)).reshape(-1, *shape)

  def loss(params, x, y, weight, key):
    seen = x if label is None else label(x, y)
    mean, raw = jnp.split(encode(params["autoencoder"]["encoder"], seen), 2, axis=1)
    deviation = jax.nn.softplus(raw) + 1e-6
    z = mean + deviation * jax.random.normal(key, mean.shape)
    squares = flatten(jnp.square(x - decoded(params, z, y))).mean(axis=1)
    divergence = 0.5 * (mean**2 + deviation**2 - 1.0 - 2.0 * jnp.log(deviation)).sum(axis=1)
    if beta is not None:
      return weighted_mean(squares + beta * divergence, weight)
    likeliest = jax.lax.stop_gradient(weighted_mean(squares, weight)) + SMALLEST_VARIANCE
    v = likeliest if variance is None else variance
    return weighted_mean(squares * (0.5 / v) + divergence / size, weight) + 0.5 * jnp.log(2.0 * math.pi * v)

  def generate(params, key, y):
    return decoded(params, jax.random.normal(key, (y.shape[0], latent)), y)

  return Generative(init, {"autoencoder": loss}, generate, tuple(shape), num_classes, name)


def adversarial(generator: Network, judge: Judge, shape: tuple[int, ...], num_classes: int, latent: int,
                name: str) -> Generative:  # fmt: skip
  """Conditional adversarial pair, an auxiliary-classifier GAN (Odena et al., ICML 2017).

  The discriminator sees examples in [-1, 1] and has 1 + C logits: real or fake, and the class.

      discriminator   BCE(real, 1) + BCE(fake, 0) + CE(class of real, y) + CE(class of fake, the fake's label)
      generator       BCE(fake, 1) + CE(class of fake, the fake's label),      z ~ U(-1, 1)

  The generator's loss uses fakes with the labels of the real batch, so that a client trains it on the classes
  it holds only; the discriminator's loss uses fakes with labels drawn uniformly from all classes, as in the
  authors' code.

  Args:
    generator: [B, latent + C] -> [B, D] or [B, *shape].
    judge: the discriminator's (init, apply): [B, *shape] -> [B, 1 + C], with a key for dropout.
    shape: shape of one example, D numbers in [0, 1].
    num_classes: C, the number of classes.
    latent: dimension of z.
    name: name of the model in reports.
  """
  (generator_init, make), (judge_init, judged) = generator, judge

  def init(key):
    first, second = jax.random.split(key)
    return {"generator": generator_init(first), "discriminator": judge_init(second)}

  def fake(params, key, y):
    z = jax.random.uniform(key, (y.shape[0], latent), minval=-1.0, maxval=1.0)
    given = jnp.concatenate([z, jax.nn.one_hot(y, num_classes)], axis=1)
    return jnp.tanh(make(params["generator"], given)).reshape(-1, *shape)

  def verdict(params, x, y, real: float, key):
    logits = judged(params["discriminator"], x, key)
    truth = optax.sigmoid_binary_cross_entropy(logits[:, 0], jnp.full(x.shape[0], real))
    return truth + optax.softmax_cross_entropy(logits[:, 1:], jax.nn.one_hot(y, num_classes))

  def discriminator_loss(params, x, y, weight, key):
    label_key, noise_key = jax.random.split(key)
    labels = jax.random.randint(label_key, y.shape, 0, num_classes)
    invented = jax.lax.stop_gradient(fake(params, noise_key, labels))
    real = verdict(params, 2.0 * x - 1.0, y, 1.0, jax.random.fold_in(key, 2))  # folds 0, 1 are split's keys
    false = verdict(params, invented, labels, 0.0, jax.random.fold_in(key, 3))
    return weighted_mean(real, weight) + weighted_mean(false, weight)

  def generator_loss(params, x, y, weight, key):
    return weighted_mean(verdict(params, fake(params, key, y), y, 1.0, jax.random.fold_in(key, 1)), weight)

  def generate(params, key, y):
    return 0.5 * (fake(params, key, y) + 1.0)

  losses = {"discriminator": discriminator_loss, "generator": generator_loss}
  return Generative(init, losses, generate, tuple(shape), num_classes, name)


@model_factory
def cvae_mlp(
  shape: tuple[int, ...] = (8, 8, 1), num_classes: int = 10, latent: Count = 16, hidden: Count = 256,
  beta: NonNegative | None = 1.0, variance: Positive | None = None, conditional: bool = False,
) -> Generative:  # fmt: skip
  """Conditional variational autoencoder, `variational`, of two perceptrons with two hidden layers.

  Args:
    shape: shape of one example.
    num_classes: C, the number of classes.
    latent: dimension of z.
    hidden: width of the hidden layers.
    beta: weight of the divergence relative to the pixels' mean square; None for the evidence lower bound.
    variance: a pixel's variance in the evidence lower bound; None for the maximum-likelihood value per batch.
    conditional: whether the encoder sees y, as C more inputs.
  """
  size = math.prod(shape)
  seen = (size + num_classes,) if conditional else shape
  label = (lambda x, y: with_label(flatten(x), y, num_classes)) if conditional else None
  encoder = network(Perceptron((hidden, hidden, 2 * latent), jax.nn.swish), seen)
  decoder = network(Perceptron((hidden, hidden, size), jax.nn.swish), (latent + num_classes,))
  return variational(encoder, decoder, shape, num_classes, latent, "cvae_mlp", beta, variance, label)


@model_factory
def cgan_mlp(
  shape: tuple[int, ...] = (8, 8, 1), num_classes: int = 10, latent: Count = 32, hidden: Count = 256
) -> Generative:
  """Conditional GAN, `adversarial`, of two perceptrons with two hidden layers.

  Args:
    shape: shape of one example.
    num_classes: C, the number of classes.
    latent: dimension of z.
    hidden: width of the hidden layers.
  """
  generator = network(Perceptron((hidden, hidden, math.prod(shape)), jax.nn.swish), (latent + num_classes,))
  init, apply = network(Perceptron((hidden, hidden, 1 + num_classes), jax.nn.swish), shape)
  judge = init, lambda params, x, key: apply(params, x)
  return adversarial(generator, judge, shape, num_classes, latent, "cgan_mlp")


@model_factory
def cvae_conv(
  shape: tuple[int, ...] = (32, 32, 3), num_classes: int = 10, latent: Count = 128, width: Count = 64,
  beta: NonNegative | None = 1.0, variance: Positive | None = None, conditional: bool = False,
) -> Generative:  # fmt: skip
  """Conditional variational autoencoder, `variational`, of a convolutional encoder and decoder.

  By default they have 987,904 and 867,075 parameters, as the authors' networks.

  Args:
    shape: shape of one image, (height, width, channels), with height and width divisible by 16.
    num_classes: C, the number of classes.
    latent: dimension of z.
    width: h, channels of the layer next to the image; the other layers have up to 4h.
    beta: weight of the divergence relative to the pixels' mean square; None for the evidence lower bound.
    variance: a pixel's variance in the evidence lower bound; None for the maximum-likelihood value per batch.
    conditional: whether the encoder sees y, as C more channels of the image.
  """
  check_halved(shape, 4)
  seen = (*shape[:-1], shape[-1] + num_classes) if conditional else shape
  label = (lambda x, y: with_label(x, y, num_classes)) if conditional else None
  encoder = network(coders.encoder(2 * latent, width), seen)
  decoder = network(coders.decoder(tuple(shape), width), (latent + num_classes,))
  return variational(encoder, decoder, shape, num_classes, latent, "cvae_conv", beta, variance, label)


@model_factory
def cgan_conv(
  shape: tuple[int, ...] = (32, 32, 3), num_classes: int = 10, latent: Count = 128, width: Count = 64
) -> Generative:
  """Conditional GAN, `adversarial`, of a convolutional generator and discriminator.

  By default they have 1,224,576 and 1,710,603 parameters, as the authors' networks.

  Args:
    shape: shape of one image, (height, width, channels), with height and width divisible by 8.
    num_classes: C, the number of classes.
    latent: dimension of z.
    width: h, channels of the layer next to the image; the other layers have 2h and 4h.
  """
  check_halved(shape, 3)
  generator = network(coders.generator(tuple(shape), width), (latent + num_classes,))
  module = coders.Discriminator(1 + num_classes, width)

  def judged(params, x, key):
    return module.apply({"params": params}, x, train=True, rngs={"dropout": key})

  judge = network(module, shape)[0], judged
  return adversarial(generator, judge, shape, num_classes, latent, "cgan_conv")


GENERATORS: dict[str, Callable[..., Generative]] = {
  "cvae_mlp": cvae_mlp,
  "cgan_mlp": cgan_mlp,
  "cvae_conv": cvae_conv,
  "cgan_conv": cgan_conv,
}
