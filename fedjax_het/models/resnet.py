"""ResNet-10 with group normalisation and Swish, FedEvg's energy model (thesis, chapter IV).

Source: the authors' EV code, src/models/resnet.py: four residual blocks of two 3 x 3 convolutions, no
activation after the addition, and a flattened, not pooled, last layer, here of spectral norm 1.
"""

import jax
import jax.numpy as jnp

from fedjax_het.errors import SettingError, check_choice, check_range
from fedjax_het.models.base import Layer, Model, Params, dense, flatten, xavier
from fedjax_het.models.convolution import METHODS, conv2d, halving_conv3
from fedjax_het.models.energy import spectral_dense

EPSILON = 1e-5
GROUP = 4  # channels that are normalised together, at least


def check_image(shape: tuple[int, ...], width: int) -> None:
  """Raises `SettingError` for what three halvings, or groups of four channels, cannot divide."""
  check_range("width", width, GROUP)
  if width % GROUP:
    raise SettingError("width", width, f"not divisible by {GROUP}", f"Use {width - width % GROUP}.")
  if len(shape) != 3 or shape[0] % 8 or shape[1] % 8:
    raise SettingError(
      "shape", shape, "not (height, width, channels) divisible by 8", "Resize the images: resize=32."
    )


def group_norm(layer: Layer, x: jax.Array, groups: int) -> jax.Array:
  """(x - mean) / √(var + ε)·scale + bias, where mean and var are an image's over a group of its channels.

  Args:
    layer: {"scale", "bias"}, [C] each.
    x: [B, H, W, C].
    groups: a divisor of C.
  """
  channels = x.shape[3]

  def over_group(means: jax.Array) -> jax.Array:  # of single channels, [B, 1, 1, C]; a pass over x has all C
    pooled = means.reshape(-1, 1, 1, groups, channels // groups).mean(4, keepdims=True)
    return jnp.broadcast_to(pooled, (*pooled.shape[:4], channels // groups)).reshape(means.shape)

  centred = x - over_group(x.mean(axis=(1, 2), keepdims=True))
  variance = over_group(jnp.square(centred).mean(axis=(1, 2), keepdims=True))
  return centred * (jax.lax.rsqrt(variance + EPSILON) * layer["scale"]) + layer["bias"]


def resnet10(
  shape: tuple[int, ...] = (32, 32, 3),
  num_classes: int = 10,
  width: int = 64,
  conv: str = "auto",
  spectral: bool = True,
) -> Model:
  """conv3 h - GN - swish - blocks of h, 2h, 4h, 8h channels, the last three halving - GN - swish - dense C.

  A block is conv3 - GN - swish - conv3 - GN, added to its input, which passes a 1 x 1 convolution and GN
  where the shape changes. With h = 64 on 32 x 32 x 3: 4,981,066 parameters.

  Args:
    shape: of one example, (height, width, channels); height and width are divisible by 8.
    num_classes: C, the number of logits.
    width: h >= 4, divisible by 4.
    conv: how to convolve, see `convolution.conv2d`.
    spectral: whether the last layer's spectral norm is 1, as for energies; a plain classifier has it free.

  Raises:
    SettingError: `shape`, `width` or `conv` cannot be.
  """
  check_choice("conv", conv, METHODS)
  check_image(shape, width)
  planes = [width, 2 * width, 4 * width, 8 * width]
  kernels: dict[str, tuple[int, ...]] = {"stem": (3, 3, shape[2], width)}
  norms = {"stem_norm": width}
  for b, (before, after) in enumerate(zip([width, *planes], planes), 1):
    kernels |= {f"block{b}_conv1": (3, 3, before, after), f"block{b}_conv2": (3, 3, after, after)}
    norms |= {f"block{b}_norm1": after, f"block{b}_norm2": after}
    if before != after:
      kernels[f"block{b}_skip"] = (1, 1, before, after)
      norms[f"block{b}_skip_norm"] = after
  norms["norm"] = planes[-1]
  inputs = shape[0] * shape[1] // 64 * planes[-1]

  def init(key: jax.Array) -> Params:
    convolutions, last = jax.random.split(key)
    scales = {name: {"scale": jnp.ones(size), "bias": jnp.zeros(size)} for name, size in norms.items()}
    return xavier(kernels, bias=False)(convolutions) | scales | xavier({"fc": (inputs, num_classes)})(last)

  def apply(params: Params, x: jax.Array) -> jax.Array:
    def normed(name: str, h: jax.Array, groups: int) -> jax.Array:
      return group_norm(params[name], h, groups)

    def kernel(name: str) -> jax.Array:
      return params[name]["kernel"]

    h = jax.nn.swish(normed("stem_norm", conv2d(x, kernel("stem"), 1, conv), width // 4))
    for b, after in enumerate(planes, 1):
      halving = f"block{b}_skip" in params
      first = halving_conv3(h, kernel(f"block{b}_conv1"), conv) if halving else (
        conv2d(h, kernel(f"block{b}_conv1"), 1, conv)
      )  # fmt: skip
      inner = jax.nn.swish(normed(f"block{b}_norm1", first, after // 2))
      inner = normed(f"block{b}_norm2", conv2d(inner, kernel(f"block{b}_conv2"), 1, conv), after // 2)
      if halving:
        h = normed(f"block{b}_skip_norm", h[:, ::2, ::2] @ kernel(f"block{b}_skip")[0, 0], after // 2)
      h = h + inner
    h = flatten(jax.nn.swish(normed("norm", h, width)))
    return (spectral_dense if spectral else dense)(params["fc"], h)

  return Model(init, apply, "resnet10", tuple(shape), num_classes)
