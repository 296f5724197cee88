"""ResNet-10 with group normalisation and Swish, FedEvg's energy model (thesis, chapter IV).

Source: the authors' EV code, src/models/resnet.py: four residual blocks of two 3 x 3 convolutions, no
activation after the addition, and a last layer on the flattened, not pooled, features, here of spectral norm
1.
"""

from typing import Annotated

import jax
from flax import linen as nn

from fedjax_het.errors import SettingError
from fedjax_het.models.layers.basic import Conv, Dense, flatten, network
from fedjax_het.models.layers.convolution import ConvMethod
from fedjax_het.models.layers.norms import GroupNorm
from fedjax_het.models.model import Model
from fedjax_het.models.shapes import check_halved, model_factory
from fedjax_het.settings import Whole

GROUP = 4  # channels of a group of the first normalisation, which divide the width


class Block(nn.Module):
  """Residual block: conv3 - GN - swish - conv3 - GN, added to its input.

  If the shape changes, the input passes a 1 x 1 convolution and group norm (GN) before the addition.

  Attributes:
    features: number of output channels.
    halving: whether the first convolution has stride 2.
    conv: convolution algorithm, see `convolution.conv2d`.
  """

  features: int
  halving: bool
  conv: str

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Returns float32 [B, H', W', features] for images [B, H, W, C]."""
    stride, groups = 1 + self.halving, self.features // 2
    h = Conv(self.features, (3, 3), stride, 1, False, self.conv, name="conv1")(x)
    h = nn.swish(GroupNorm(groups, name="norm1")(h))
    h = Conv(self.features, (3, 3), 1, 1, False, self.conv, name="conv2")(h)
    h = GroupNorm(groups, name="norm2")(h)
    if self.halving:
      x = Conv(self.features, (1, 1), stride, 0, False, name="skip")(x)
      x = GroupNorm(groups, name="skip_norm")(x)
    return x + h


@model_factory
def resnet10(
  shape: tuple[int, ...] = (32, 32, 3),
  num_classes: int = 10,
  width: Annotated[int, Whole(GROUP)] = 64,
  conv: ConvMethod = "auto",
  spectral: bool = True,
) -> Model:
  """ResNet-10: conv3 h - GN - swish - 4 blocks of h, 2h, 4h, 8h channels - GN - swish - dense C.

  The last three blocks halve the image. A block is conv3 - GN - swish - conv3 - GN, added to its input, which
  passes a 1 x 1 convolution and group norm (GN) if the shape changes. With h = 64 on 32 x 32 x 3: 4,981,066
  parameters.

  Args:
    shape: shape of one example, (height, width, channels); height and width are divisible by 8.
    num_classes: C, the number of logits.
    width: h >= 4, divisible by 4.
    conv: convolution algorithm, see `convolution.conv2d`.
    spectral: whether the last layer's kernel is divided by its spectral norm, as for energies; False for a
      plain classifier.

  Raises:
    SettingError: `shape` or `width` is not divisible as required, or `conv` is unknown.
  """
  if width % GROUP:
    raise SettingError("width", width, f"not divisible by {GROUP}", f"Use {width - width % GROUP}.")
  check_halved(shape, 3)

  def logits(x: jax.Array) -> jax.Array:
    h = Conv(width, (3, 3), 1, 1, False, conv, name="stem")(x)
    h = nn.swish(GroupNorm(width // 4, name="stem_norm")(h))
    for b in range(4):
      h = Block(2**b * width, b > 0, conv, name=f"block{b + 1}")(h)
    h = flatten(nn.swish(GroupNorm(width, name="norm")(h)))
    return Dense(num_classes, spectral=spectral, name="fc")(h)

  return Model(*network(logits, shape), "resnet10", tuple(shape), num_classes, head=("fc",))
