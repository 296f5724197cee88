"""Convolutional encoder, decoder, generator and discriminator networks of FedCVAE and FedCGAN.

They follow Radford et al., Unsupervised Representation Learning with Deep Convolutional Generative
Adversarial Networks, ICLR 2016. Layers and sizes are those of the authors' FedEvg (src/models/cvae.py and
acgan.py), with group norm instead of batch norm, because it has no running statistics that clients would have
to average.
"""

import math
from collections.abc import Callable

import jax
from flax import linen as nn

from fedjax_het.models.layers.basic import Conv, ConvTranspose, Dense, flatten
from fedjax_het.models.layers.norms import norm

SLOPE = 0.2  # slope of leaky ReLU below 0
SMALL = nn.initializers.normal(0.02)


def normal(h: jax.Array, number: int, activation: Callable[[jax.Array], jax.Array]) -> jax.Array:
  """Group-normalises h in groups of eight channels and applies the activation."""
  return activation(norm("group", h, False, f"norm{number}"))


def leaky(h: jax.Array) -> jax.Array:
  """Leaky ReLU, max(h, 0.2 h)."""
  return nn.leaky_relu(h, SLOPE)


def encoder(outputs: int, width: int) -> Callable[[jax.Array], jax.Array]:
  """Image encoder, [B, *shape] -> [B, outputs]: four 4 x 4 convolutions with stride 2, then a dense layer.

  The convolutions have h, h, 2h, 4h channels, each followed by group norm and ReLU.

  Args:
    outputs: number of outputs per image.
    width: h.
  """

  def outputs_of(x: jax.Array) -> jax.Array:
    h = x
    for i, times in enumerate((1, 1, 2, 4), 1):
      h = normal(Conv(times * width, (4, 4), 2, 1, name=f"conv{i}")(h), i, nn.relu)
    return Dense(outputs, name="fc")(flatten(h))

  return outputs_of


def decoder(shape: tuple[int, ...], width: int) -> Callable[[jax.Array], jax.Array]:
  """Image decoder, [B, inputs] -> [B, *shape]: a dense layer, then four upsampling convolutions.

  The dense layer has 4h channels and ReLU; the convolutions double the image and have 2h, h, h channels, each
  followed by group norm and ReLU, and last the image's channels.

  Args:
    shape: shape of an image, (height, width, channels).
    width: h.
  """

  def outputs_of(x: jax.Array) -> jax.Array:
    start = shape[0] // 16, shape[1] // 16, 4 * width
    h = nn.relu(Dense(math.prod(start), name="fc")(x)).reshape(-1, *start)
    for i, times in enumerate((2, 1, 1), 1):
      h = normal(ConvTranspose(times * width, name=f"conv{i}")(h), i, nn.relu)
    return ConvTranspose(shape[2], name="conv4")(h)

  return outputs_of


def generator(shape: tuple[int, ...], width: int) -> Callable[[jax.Array], jax.Array]:
  """GAN generator without biases, [B, inputs] -> [B, *shape]: a dense layer, three upsampling convolutions.

  The dense layer has 4h channels; the convolutions double the image and have 2h, h and the image's channels.
  All but the last are followed by group norm and leaky ReLU. Kernels start as N(0, 0.02²).

  Args:
    shape: shape of an image, (height, width, channels).
    width: h.
  """

  def outputs_of(x: jax.Array) -> jax.Array:
    start = shape[0] // 8, shape[1] // 8, 4 * width
    h = Dense(math.prod(start), use_bias=False, kernel_init=SMALL, name="fc")(x)
    h = normal(h.reshape(-1, *start), 0, leaky)
    for i, times in enumerate((2, 1), 1):
      h = ConvTranspose(times * width, use_bias=False, kernel_init=SMALL, name=f"conv{i}")(h)
      h = normal(h, i, leaky)
    return ConvTranspose(shape[2], use_bias=False, kernel_init=SMALL, name="conv3")(h)

  return outputs_of


class Discriminator(nn.Module):
  """GAN discriminator, [B, *shape] -> [B, outputs]: three 4 x 4 convolutions with stride 2, two dense layers.

  The convolutions have h, 2h, 4h channels and leaky ReLU, the second and third with group norm before it; the
  first dense layer has 4h units. In training, dropout follows each layer but the last. Only the last layer
  has biases. Kernels start as N(0, 0.02²).

  Attributes:
    outputs: number of logits.
    width: h.
    dropout: dropout rate, in training.
  """

  outputs: int
  width: int
  dropout: float = 0.5

  @nn.compact
  def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
    """Returns the logits, float32 [B, outputs], of images [B, *shape]."""
    drop = nn.Dropout(self.dropout, deterministic=not train)
    h = x
    for i, times in enumerate((1, 2, 4), 1):
      h = Conv(times * self.width, (4, 4), 2, 1, False, kernel_init=SMALL, name=f"conv{i}")(h)
      h = drop(leaky(h) if i == 1 else normal(h, i, leaky))
    h = drop(Dense(4 * self.width, use_bias=False, kernel_init=SMALL, name="fc1")(flatten(h)))
    return Dense(self.outputs, kernel_init=SMALL, name="fc2")(h)
