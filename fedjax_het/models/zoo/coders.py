"""The convolutional networks of FedCVAE and FedCGAN, between images and vectors.

In the manner of Radford et al., Unsupervised Representation Learning with Deep Convolutional Generative
Adversarial Networks, ICLR 2016. Layers and sizes are those of the authors' FedEvg (src/models/cvae.py and
acgan.py), with group norm, which keeps no statistics that clients would have to average, for batch norm.
"""

import math
from collections.abc import Callable

import jax
from flax import linen as nn

from fedjax_het.models.layers.basic import Conv, ConvTranspose, Dense, flatten
from fedjax_het.models.layers.norms import norm

SLOPE = 0.2  # of leaky ReLU below 0
SMALL = nn.initializers.normal(0.02)


def normal(h: jax.Array, number: int, activation: Callable[[jax.Array], jax.Array]) -> jax.Array:
  """The activation of h in groups of eight channels, normalised."""
  return activation(norm("group", h, False, f"norm{number}"))


def leaky(h: jax.Array) -> jax.Array:
  """max(h, 0.2 h)."""
  return nn.leaky_relu(h, SLOPE)


class Encoder(nn.Module):
  """Four halving 4 x 4 convolutions to h, h, 2h, 4h channels, then dense: [B, *shape] -> [B, outputs].

  All but the last are normalised and pass ReLU.

  Attributes:
    outputs: numbers an image becomes.
    width: h.
  """

  outputs: int
  width: int

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Computes it."""
    h = x
    for i, times in enumerate((1, 1, 2, 4), 1):
      h = normal(Conv(times * self.width, (4, 4), 2, 1, name=f"conv{i}")(h), i, nn.relu)
    return Dense(self.outputs, name="fc")(flatten(h))


class Decoder(nn.Module):
  """Dense to 4h channels, ReLU, four doubling convolutions by way of 2h, h, h: [B, inputs] -> [B, *shape].

  The first three are normalised and pass ReLU.

  Attributes:
    shape: of an image.
    width: h.
  """

  shape: tuple[int, ...]
  width: int

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Computes it."""
    start = self.shape[0] // 16, self.shape[1] // 16, 4 * self.width
    h = nn.relu(Dense(math.prod(start), name="fc")(x)).reshape(-1, *start)
    for i, times in enumerate((2, 1, 1), 1):
      h = normal(ConvTranspose(times * self.width, name=f"conv{i}")(h), i, nn.relu)
    return ConvTranspose(self.shape[2], name="conv4")(h)


class Generator(nn.Module):
  """Dense to 4h channels, three doubling convolutions by way of 2h, h, no biases: [B, inputs] -> [B, *shape].

  All but the last are normalised and pass leaky ReLU. Kernels start as N(0, 0.02²).

  Attributes:
    shape: of an image.
    width: h.
  """

  shape: tuple[int, ...]
  width: int

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Computes it."""
    start = self.shape[0] // 8, self.shape[1] // 8, 4 * self.width
    h = Dense(math.prod(start), use_bias=False, kernel_init=SMALL, name="fc")(x)
    h = normal(h.reshape(-1, *start), 0, leaky)
    for i, times in enumerate((2, 1), 1):
      h = ConvTranspose(times * self.width, use_bias=False, kernel_init=SMALL, name=f"conv{i}")(h)
      h = normal(h, i, leaky)
    return ConvTranspose(self.shape[2], use_bias=False, kernel_init=SMALL, name="conv3")(h)


class Discriminator(nn.Module):
  """Three halving 4 x 4 convolutions to h, 2h, 4h channels, dense to 4h, dense: [B, *shape] -> [B, outputs].

  The convolutions pass leaky ReLU, the second and third normalised before it. In training half of what each
  layer but the last makes is dropped. The last alone has biases. Kernels start as N(0, 0.02²).

  Attributes:
    outputs: logits.
    width: h.
    dropout: share of a layer's outputs that is dropped.
  """

  outputs: int
  width: int
  dropout: float = 0.5

  @nn.compact
  def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
    """Computes it."""
    drop = nn.Dropout(self.dropout, deterministic=not train)
    h = x
    for i, times in enumerate((1, 2, 4), 1):
      h = Conv(times * self.width, (4, 4), 2, 1, False, kernel_init=SMALL, name=f"conv{i}")(h)
      h = drop(leaky(h) if i == 1 else normal(h, i, leaky))
    h = drop(Dense(4 * self.width, use_bias=False, kernel_init=SMALL, name="fc1")(flatten(h)))
    return Dense(self.outputs, kernel_init=SMALL, name="fc2")(h)
