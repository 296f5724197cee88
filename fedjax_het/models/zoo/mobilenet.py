"""SuperFed's small MobileNet (src/models/models.py), after Howard et al., MobileNets, 2017."""

from typing import Annotated

import jax
from flax import linen as nn

from fedjax_het.models.layers.basic import Dense
from fedjax_het.models.layers.convolution import ConvMethod
from fedjax_het.models.layers.norms import Norm
from fedjax_het.models.model import Model
from fedjax_het.models.shapes import model_factory
from fedjax_het.models.weights.starting import Reader
from fedjax_het.models.weights.torch_names import conv_norm, named
from fedjax_het.models.zoo.blocks import ConvNorm, classifier
from fedjax_het.settings import Count, Whole

BLOCKS = ((2, 1), (4, 2), (8, 2), (16, 1))  # channels, as multiples of the width, and stride of each block


@model_factory
def mobilenet(
  shape: tuple[int, ...] = (64, 64, 3),
  num_classes: int = 200,
  width: Count = 32,
  padding: Annotated[int, Whole(0)] = 0,
  norm: Norm = "batch",
  conv: ConvMethod = "auto",
) -> Model:
  """MobileNet: conv3 h (stride 2) - 4 depthwise-separable blocks - mean - dense 8h - relu - dense C.

  The blocks, depthwise conv3 and conv1, have 2h, 4h, 8h, 16h channels; the middle two halve the image. A norm
  and ReLU follow each convolution. No layer but the norms has a bias. 364,480 parameters on TinyImageNet.

  Args:
    shape: shape of one example, (height, width, channels), at least 33 x 33 without padding.
    num_classes: C, the number of logits.
    width: h.
    padding: padding of the depthwise convolutions; 0 in SuperFed's code, 1 for smaller images.
    norm: normalisation layers, "batch" or "group". SuperFed's code normalises by the batch's statistics in
      inference too; here "batch" keeps running statistics for inference.
    conv: convolution algorithm, see `convolution.conv2d`.

  Raises:
    SettingError: a setting is out of range or unknown, or `shape` is no such image.
  """

  def logits(x: jax.Array, train: bool) -> jax.Array:
    h = ConvNorm(width, 3, 2, norm, conv=conv, name="stem")(x, train)
    for i, (channels, stride) in enumerate(BLOCKS):
      h = ConvNorm(0, 3, stride, norm, padding=padding, name=f"depthwise{i}")(h, train)
      h = ConvNorm(channels * width, 1, 1, norm, name=f"pointwise{i}")(h, train)
    h = nn.relu(Dense(8 * width, False, name="fc1")(h.mean((1, 2))))
    return Dense(num_classes, False, name="fc2")(h)

  smallest = 1 if padding else 33
  return classifier(logits, "mobilenet", shape, num_classes, ("fc1", "fc2"), smallest, "Set padding=1.")


TORCH: dict[str, Reader] = {
  "mobilenet": named(
    (
      *conv_norm(r"in_conv\.0", r"in_conv\.1", "stem"),
      *conv_norm(r"layers\.(\d)\.0", r"layers\.(\d)\.1", r"depthwise\1"),
      *conv_norm(r"layers\.(\d)\.3", r"layers\.(\d)\.4", r"pointwise\1"),
      (r"classifier\.2", "fc1"),
      (r"classifier\.4", "fc2"),
    )
  )
}
