"""Encoders and decoders of conditional generators, between images and vectors."""

import math

import jax
from flax import linen as nn

from fedjax_het.models.layers import Conv, Dense, Network, flatten, network
from fedjax_het.models.norms import GroupNorm
from fedjax_het.models.resnet import GROUP, check_divisible


class Encoder(nn.Module):
  """Three halving 3 x 3 convolutions to h, 2h, 4h channels, then dense: [B, *shape] -> [B, outputs].

  After each the channels are normalised in groups of four, get their bias, and pass Swish.

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
    for i in range(3):
      channels = 2**i * self.width
      norm = GroupNorm(channels // GROUP, affine=False)
      h = nn.swish(Conv(channels, (3, 3), 2, 1, before_bias=norm, name=f"conv{i + 1}")(h))
    return Dense(self.outputs, name="fc")(flatten(h))


class Decoder(nn.Module):
  """Dense to 4h channels, then three doubling 3 x 3 convolutions: [B, inputs] -> [B, *shape].

  A doubling convolution makes four values a pixel and channel, which become two by two pixels.

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
    h = Dense(math.prod(start), name="fc")(x).reshape(-1, *start)
    for i, channels in enumerate((2 * self.width, self.width, self.shape[2])):
      h = nn.swish(GroupNorm(h.shape[-1] // GROUP, affine=False)(h))
      h = Conv(4 * channels, (3, 3), 1, 1, name=f"conv{i + 1}")(h)
      batch, height, columns, _ = h.shape
      h = h.reshape(batch, height, columns, 2, 2, channels).transpose(0, 1, 3, 2, 4, 5)
      h = h.reshape(batch, 2 * height, 2 * columns, channels)
    return h


def conv_encoder(shape: tuple[int, ...], outputs: int, width: int) -> Network:
  """`Encoder` of images of `shape`."""
  check_divisible(shape, width)
  return network(Encoder(outputs, width), shape)


def conv_decoder(inputs: int, shape: tuple[int, ...], width: int) -> Network:
  """`Decoder` of vectors [B, inputs]."""
  check_divisible(shape, width)
  return network(Decoder(tuple(shape), width), (inputs,))
