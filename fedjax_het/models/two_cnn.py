"""TwoCNN: the convolutional network of federated learning (McMahan et al., 2017).

Source: the authors' Federated-Learning-in-PyTorch, src/models/twocnn.py.
"""

import jax

from fedjax_het.errors import SettingError, check_choice
from fedjax_het.models.base import Model, Params, dense, flatten, xavier
from fedjax_het.models.convolution import METHODS, adaptive_average_pool, conv2d, max_pool2

GRID = (7, 7)
WIDTH = 512


def two_cnn(
  shape: tuple[int, ...] = (28, 28, 1), num_classes: int = 10, hidden: int = 32, conv: str = "auto"
) -> Model:
  """Two 5 x 5 convolutions, each with ReLU and 2 x 2 max-pooling, then two dense layers.

  conv5 (padding 1, h) - relu - maxpool2 (padding 1) - conv5 (padding 1, 2h) - relu - maxpool2 (padding 1) -
  adaptive average pool to 7 x 7 - dense 512 - relu - dense C; 1,663,370 parameters on MNIST. Bias and ReLU
  are non-decreasing, so they commute with the maximum and are applied after it, to a quarter of the values.

  Args:
    shape: of one example, (height, width, channels).
    num_classes: C, the number of logits.
    hidden: h, channels of the first convolution.
    conv: how to convolve, see `convolution.conv2d`: "auto", "winograd", "patches" or "lax".

  Raises:
    SettingError: `shape` is not an image of at least 6 x 6, or `conv` is unknown.
  """
  check_choice("conv", conv, METHODS)
  if len(shape) != 3 or min(shape[:2]) < 6:
    raise SettingError(
      "shape", shape, "not (height, width, channels) of at least 6 x 6", "Use two_nn instead."
    )
  init = xavier(
    {
      "conv1": (5, 5, shape[2], hidden),
      "conv2": (5, 5, hidden, 2 * hidden),
      "fc1": (GRID[0] * GRID[1] * 2 * hidden, WIDTH),
      "fc2": (WIDTH, num_classes),
    }
  )

  def apply(params: Params, x: jax.Array) -> jax.Array:
    h = x
    for name in ("conv1", "conv2"):
      h = max_pool2(conv2d(h, params[name]["kernel"], 1, conv), 1)
      h = jax.nn.relu(h + params[name]["bias"])
    h = flatten(adaptive_average_pool(h, GRID))
    return dense(params["fc2"], jax.nn.relu(dense(params["fc1"], h)))

  return Model(init, apply, "two_cnn", tuple(shape), num_classes)
