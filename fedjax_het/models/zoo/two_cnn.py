"""TwoCNN: the convolutional network of federated learning (McMahan et al., 2017).

Sources: the authors' Federated-Learning-in-PyTorch, src/models/twocnn.py; for three dense layers without
biases, their SuPerFed, src/models.
"""

import jax
from flax import linen as nn

from fedjax_het.models.layers.basic import Conv, Dense, flatten, network
from fedjax_het.models.layers.convolution import ConvMethod
from fedjax_het.models.layers.pooling import adaptive_average_pool, max_pool2
from fedjax_het.models.model import Model
from fedjax_het.models.shapes import check_image, model_factory
from fedjax_het.settings import Count

GRID = (7, 7)


def pooled(h: jax.Array) -> jax.Array:
  """Max-pools 2 x 2 windows with padding 1."""
  return max_pool2(h, 1)


@model_factory
def two_cnn(
  shape: tuple[int, ...] = (28, 28, 1), num_classes: int = 10, hidden: Count = 32, conv: ConvMethod = "auto",
  dense: Count = 512, layers: Count = 1, bias: bool = True,
) -> Model:  # fmt: skip
  """TwoCNN: two 5 x 5 convolutions, each with ReLU and 2 x 2 max-pooling, then dense layers, by default two.

  conv5 (padding 1, h) - relu - maxpool2 (padding 1) - conv5 (padding 1, 2h) - relu - maxpool2 (padding 1) -
  adaptive average pool to 7 x 7 - dense d - relu - dense C; 1,663,370 parameters on MNIST. With `dense=200,
  layers=2, bias=False` it is the model of the same name in SuPerFed's published code, which sees CIFAR-10 at
  28 x 28: 722,800 parameters.

  Args:
    shape: shape of one example, (height, width, channels).
    num_classes: C, the number of logits.
    hidden: h, channels of the first convolution.
    conv: convolution algorithm, see `convolution.conv2d`: "auto", "winograd", "patches" or "lax".
    dense: d, width of the hidden dense layers.
    layers: number of hidden dense layers, at least 1; each is followed by ReLU.
    bias: whether convolutions and dense layers have biases.

  Raises:
    SettingError: `shape` is not an image of at least 6 x 6, or `conv` is unknown.
  """
  check_image(shape, 6, "Use two_nn instead.")
  head = f"fc{layers + 1}"

  def logits(x: jax.Array) -> jax.Array:
    h = x
    for i in (1, 2):  # bias and ReLU commute with max-pooling: a quarter of the values
      h = nn.relu(Conv(i * hidden, (5, 5), 1, 1, bias, conv, pooled, name=f"conv{i}")(h))
    h = flatten(adaptive_average_pool(h, GRID))
    for i in range(1, layers + 1):
      h = nn.relu(Dense(dense, bias, name=f"fc{i}")(h))
    return Dense(num_classes, bias, name=head)(h)

  return Model(*network(logits, shape), "two_cnn", tuple(shape), num_classes, head=(head,))
