"""Encoders and decoders of conditional generators, each a pair (init, apply)."""

import itertools
import math

import jax

from fedjax_het.models.base import Network, Params, dense, flatten, xavier
from fedjax_het.models.convolution import conv2d, halving_conv3
from fedjax_het.models.resnet import GROUP, check_image, group_norm


def conv_encoder(shape: tuple[int, ...], outputs: int, width: int) -> Network:
  """Three halving 3 x 3 convolutions to h, 2h, 4h channels, then dense: [B, *shape] -> [B, outputs]."""
  check_image(shape, width)
  channels = [shape[2], width, 2 * width, 4 * width]
  kernels = {f"conv{i + 1}": (3, 3, *pair) for i, pair in enumerate(itertools.pairwise(channels))}
  inputs = shape[0] * shape[1] // 64 * channels[-1]

  def init(key: jax.Array) -> Params:
    convolutions, last = jax.random.split(key)
    return xavier(kernels)(convolutions) | xavier({"fc": (inputs, outputs)})(last)

  def apply(params: Params, x: jax.Array) -> jax.Array:
    h = x
    for name in kernels:
      h = normed(halving_conv3(h, params[name]["kernel"]), params[name]["bias"])
    return dense(params["fc"], flatten(h))

  return init, apply


def conv_decoder(inputs: int, shape: tuple[int, ...], width: int) -> Network:
  """Dense to 4h channels, then three doubling 3 x 3 convolutions: [B, inputs] -> [B, *shape].

  A doubling convolution makes four values a pixel and channel, which become two by two pixels.
  """
  check_image(shape, width)
  channels = [4 * width, 2 * width, width, shape[2]]
  kernels = {f"conv{i + 1}": (3, 3, before, 4 * after) for i, (before, after) in
             enumerate(itertools.pairwise(channels))}  # fmt: skip
  start = shape[0] // 8, shape[1] // 8, channels[0]

  def init(key: jax.Array) -> Params:
    first, convolutions = jax.random.split(key)
    return xavier({"fc": (inputs, math.prod(start))})(first) | xavier(kernels)(convolutions)

  def apply(params: Params, x: jax.Array) -> jax.Array:
    h = dense(params["fc"], x).reshape(-1, *start)
    for name in kernels:
      h = conv2d(jax.nn.swish(norm(h)), params[name]["kernel"], 1) + params[name]["bias"]
      batch, height, columns, depth = h.shape
      h = h.reshape(batch, height, columns, 2, 2, depth // 4).transpose(0, 1, 3, 2, 4, 5)
      h = h.reshape(batch, 2 * height, 2 * columns, depth // 4)
    return h

  return init, apply


def norm(h: jax.Array) -> jax.Array:
  """Group normalisation without parameters, for four channels a group."""
  return group_norm({"scale": 1.0, "bias": 0.0}, h, h.shape[-1] // GROUP)  # type: ignore[dict-item]


def normed(h: jax.Array, bias: jax.Array) -> jax.Array:
  """The activation after a convolution."""
  return jax.nn.swish(norm(h) + bias)
