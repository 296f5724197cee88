"""LeNet: two 5 x 5 convolutions without padding, then dense layers.

Sources: LeCun et al., Gradient-based learning applied to document recognition, 1998, with ReLU and
max-pooling; the networks of NIID-Bench and Flower's niid_bench (6, 16, 120, 84) and of PFLlib (32, 64, 512).
"""

import jax
from flax import linen as nn

from fedjax_het.models.layers.basic import Conv, Dense, flatten, network
from fedjax_het.models.layers.convolution import ConvMethod
from fedjax_het.models.layers.pooling import max_pool2
from fedjax_het.models.model import Model
from fedjax_het.models.shapes import check_image, model_factory
from fedjax_het.settings import Count


@model_factory
def lenet(
  shape: tuple[int, ...] = (28, 28, 1),
  num_classes: int = 10,
  hidden: Count = 6,
  second: Count = 16,
  dense: Count = 120,
  last: Count | None = 84,
  conv: ConvMethod = "auto",
) -> Model:
  """LeNet: conv5 h - relu - maxpool2 - conv5 s - relu - maxpool2 - dense d - relu - dense l - relu - dense C.

  44,426 parameters on MNIST, 62,006 on CIFAR-10. With `hidden=32, second=64, dense=512, last=None` it is
  PFLlib's FedAvgCNN: 582,026 on Fashion-MNIST.

  Args:
    shape: shape of one example, (height, width, channels).
    num_classes: C, the number of logits.
    hidden: h, channels of the first convolution.
    second: s, channels of the second one.
    dense: d, width of the first dense layer.
    last: l, width of the second one; None leaves it out.
    conv: convolution algorithm, see `convolution.conv2d`: "auto", "winograd", "patches" or "lax".

  Raises:
    SettingError: `shape` is not an image of at least 16 x 16, or a setting is out of range.
  """
  check_image(shape, 16, "Use two_nn instead.")
  widths = (dense,) if last is None else (dense, last)
  head = f"fc{len(widths) + 1}"

  def logits(x: jax.Array) -> jax.Array:
    h = x
    for i, features in enumerate((hidden, second), 1):  # bias and ReLU commute with max-pooling
      h = nn.relu(Conv(features, (5, 5), method=conv, before_bias=max_pool2, name=f"conv{i}")(h))
    h = flatten(h)
    for i, width in enumerate(widths, 1):
      h = nn.relu(Dense(width, name=f"fc{i}")(h))
    return Dense(num_classes, name=head)(h)

  return Model(*network(logits, shape), "lenet", tuple(shape), num_classes, head=(head,))
