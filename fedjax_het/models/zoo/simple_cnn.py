"""SimpleCNN: the CIFAR-10 network of McMahan et al. (2017), from TensorFlow's tutorial.

Source: the authors' Federated-Learning-in-PyTorch, src/models/simplecnn.py; SosicFL, table 4.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax import lax

from fedjax_het.models.layers.basic import Conv, Dense, flatten, network
from fedjax_het.models.layers.convolution import ConvMethod
from fedjax_het.models.layers.pooling import adaptive_average_pool, max_pool
from fedjax_het.models.model import Model
from fedjax_het.models.shapes import check_image, model_factory
from fedjax_het.settings import Count

GRID = (6, 6)
WIDTHS = (384, 192)
WINDOW, ALPHA = 9, 1e-3  # local response normalisation, with β = 3/4 and k = 1


def pooled(h: jax.Array) -> jax.Array:
  """Max-pools 3 x 3 windows with stride 2 and padding 1."""
  return max_pool(h, 3, 2, 1)


def local_response_norm(x: jax.Array) -> jax.Array:
  """Local response normalisation, y_c = x_c / (1 + (α/n)·Σ x_d²)^(3/4).

  The sum runs over the channels d within n = `WINDOW` around c that exist. It is computed as a product with a
  band matrix of ones; the power is computed from square roots.

  Args:
    x: [B, H, W, C].

  Source: Krizhevsky, Sutskever, Hinton, NIPS 2012, section 3.3, with α/n as in PyTorch.
  """
  channel = np.arange(x.shape[-1])
  band = np.abs(channel[:, None] - channel) <= WINDOW // 2
  root = lax.rsqrt(1.0 + jnp.square(x) @ jnp.asarray(ALPHA / WINDOW * band, x.dtype))
  return x * root * jnp.sqrt(root)


@model_factory
def simple_cnn(
  shape: tuple[int, ...] = (32, 32, 3), num_classes: int = 10, hidden: Count = 64, conv: ConvMethod = "auto"
) -> Model:
  """SimpleCNN: two 5 x 5 convolutions with local response normalisation, then three dense layers.

  conv5 (padding 2, h) - relu - maxpool3 (stride 2, padding 1) - norm - conv5 (padding 2, h) - relu - norm -
  maxpool3 (stride 2, padding 1) - adaptive average pool to 6 x 6 - dense 384 - relu - dense 192 - relu -
  dense C; 1,068,298 parameters for ten classes of 32 x 32 x 3.

  Args:
    shape: shape of one example, (height, width, channels).
    num_classes: C, the number of logits.
    hidden: h, channels of both convolutions.
    conv: convolution algorithm, see `convolution.conv2d`: "auto", "winograd", "patches" or "lax".

  Raises:
    SettingError: `shape` is not (height, width, channels), `hidden` is below 1, or `conv` is unknown.
  """
  check_image(shape)

  def logits(x: jax.Array) -> jax.Array:
    # Bias and ReLU are non-decreasing, so they commute with max-pooling and act on a quarter of the values.
    h = nn.relu(Conv(hidden, (5, 5), padding=2, method=conv, before_bias=pooled, name="conv1")(x))
    h = nn.relu(Conv(hidden, (5, 5), padding=2, method=conv, name="conv2")(local_response_norm(h)))
    h = flatten(adaptive_average_pool(pooled(local_response_norm(h)), GRID))
    for i, width in enumerate(WIDTHS, 1):
      h = nn.relu(Dense(width, name=f"fc{i}")(h))
    return Dense(num_classes, name="fc3")(h)

  return Model(*network(logits, shape), "simple_cnn", tuple(shape), num_classes, head=("fc3",))
