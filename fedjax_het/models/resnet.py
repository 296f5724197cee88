"""ResNet-10 with group normalisation and Swish, FedEvg's energy model (thesis, chapter IV).

Source: the authors' EV code, src/models/resnet.py: four residual blocks of two 3 x 3 convolutions, no
activation after the addition, and a flattened, not pooled, last layer, here of spectral norm 1.
"""

import jax
from flax import linen as nn

from fedjax_het.errors import SettingError, check_choice, check_whole
from fedjax_het.models.convolution import METHODS
from fedjax_het.models.layers import Conv, Dense, flatten, network
from fedjax_het.models.model import Model
from fedjax_het.models.norms import GroupNorm
from fedjax_het.models.shapes import check_halved, model_factory

GROUP = 4  # channels that are normalised together, at least


def check_divisible(shape: tuple[int, ...], width: int) -> None:
  """Raises `SettingError` for what three halvings, or groups of four channels, cannot divide."""
  check_whole("width", width, GROUP)
  if width % GROUP:
    raise SettingError("width", width, f"not divisible by {GROUP}", f"Use {width - width % GROUP}.")
  check_halved(shape, 3)


class Block(nn.Module):
  """conv3 - GN - swish - conv3 - GN, added to its input; where the shape changes, to its conv1 - GN.

  Attributes:
    features: output channels.
    halving: whether the image is halved.
    conv: how to convolve.
  """

  features: int
  halving: bool
  conv: str

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Computes it for images [B, H, W, C]."""
    stride, groups = 1 + self.halving, self.features // 2
    h = Conv(self.features, (3, 3), stride, 1, False, self.conv, name="conv1")(x)
    h = nn.swish(GroupNorm(groups, name="norm1")(h))
    h = Conv(self.features, (3, 3), 1, 1, False, self.conv, name="conv2")(h)
    h = GroupNorm(groups, name="norm2")(h)
    if self.halving:
      x = Conv(self.features, (1, 1), stride, 0, False, name="skip")(x)
      x = GroupNorm(groups, name="skip_norm")(x)
    return x + h


class ResNet10(nn.Module):
  """See `resnet10`."""

  num_classes: int
  width: int
  conv: str
  spectral: bool

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Logits of images [B, H, W, C]."""
    h = Conv(self.width, (3, 3), 1, 1, False, self.conv, name="stem")(x)
    h = nn.swish(GroupNorm(self.width // 4, name="stem_norm")(h))
    for b in range(4):
      h = Block(2**b * self.width, b > 0, self.conv, name=f"block{b + 1}")(h)
    h = flatten(nn.swish(GroupNorm(self.width, name="norm")(h)))
    return Dense(self.num_classes, spectral=self.spectral, name="fc")(h)


@model_factory
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
  check_divisible(shape, width)
  module = ResNet10(num_classes, width, conv, spectral)
  return Model(*network(module, shape), "resnet10", tuple(shape), num_classes, head=("fc",))
