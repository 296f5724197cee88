"""MobileNetV3-small: Howard et al., Searching for MobileNetV3, ICCV 2019, table 2."""

from typing import Annotated

import jax
from flax import linen as nn

from fedjax_het.models.layers.basic import Dense
from fedjax_het.models.layers.convolution import ConvMethod
from fedjax_het.models.layers.norms import Norm
from fedjax_het.models.model import Model
from fedjax_het.models.shapes import model_factory
from fedjax_het.models.weights.starting import Reader
from fedjax_het.models.weights.torch_names import conv_norm, named, torchvision_blocks
from fedjax_het.models.zoo.blocks import ConvNorm, InvertedResidual, classifier, dropped, rounded
from fedjax_het.settings import Fraction, Positive, Whole

BLOCKS = (  # kernel's side, expanded channels, channels, squeeze or not, hard swish or ReLU, stride
  (3, 16, 16, True, False, 2), (3, 72, 24, False, False, 2), (3, 88, 24, False, False, 1),
  (5, 96, 40, True, True, 2), (5, 240, 40, True, True, 1), (5, 240, 40, True, True, 1),
  (5, 120, 48, True, True, 1), (5, 144, 48, True, True, 1), (5, 288, 96, True, True, 2),
  (5, 576, 96, True, True, 1), (5, 576, 96, True, True, 1),
)  # fmt: skip
EPSILON, MOMENTUM = 1e-3, 0.99  # the norms' ε, and the fraction of running statistics kept


@model_factory
def mobilenet_v3_small(
  shape: tuple[int, ...] = (224, 224, 3),
  num_classes: int = 1000,
  width: Positive = 1.0,
  stem_stride: Annotated[int, Whole(1, 2)] = 2,
  dropout: Fraction = 0.2,
  norm: Norm = "batch",
  conv: ConvMethod = "auto",
) -> Model:
  """MobileNetV3-small: conv3 16 (stride 2) - 11 inverted residuals - conv1 576 - mean - dense 1024 - dense C.

  The inverted residuals have 16 to 96 channels. The first three have ReLU, the others hard swish; all but two
  have squeeze and excitation. 2,542,856 parameters for 1,000 classes; torchvision's `mobilenet_v3_small`.

  Args:
    shape: shape of one example, (height, width, channels).
    num_classes: C, the number of logits.
    width: factor of all numbers of channels, which are rounded to multiples of 8.
    stem_stride: stride of the first convolution; 1 for small images.
    dropout: dropout rate before the last dense layer.
    norm: normalisation layers, "batch" or "group", see `norms.norm`.
    conv: convolution algorithm, see `convolution.conv2d`.

  Raises:
    SettingError: a setting is out of range or unknown, or `shape` is no such image.
  """

  def logits(x: jax.Array, train: bool) -> jax.Array:

    def scaled(channels: int) -> int:
      return rounded(channels * width)

    def conv_norm(features: int, side: int, stride: int, name: str) -> ConvNorm:
      return ConvNorm(features, side, stride, norm, nn.hard_swish, None, conv, EPSILON, MOMENTUM, name=name)

    h = conv_norm(scaled(16), 3, stem_stride, "stem")(x, train)
    for i, (side, expanded, channels, squeezed, hard, stride) in enumerate(BLOCKS, 1):
      h = InvertedResidual(
        scaled(channels), scaled(expanded), side, stride, rounded(scaled(expanded) / 4) if squeezed else 0,
        nn.hard_swish if hard else nn.relu, nn.relu, nn.hard_sigmoid, norm, EPSILON, MOMENTUM,
        name=f"block{i}",
      )(h, train)  # fmt: skip
    h = conv_norm(6 * h.shape[3], 1, 1, "last")(h, train)
    h = nn.hard_swish(Dense(scaled(1024), name="fc1")(h.mean((1, 2))))
    return Dense(num_classes, name="fc2")(dropped(h, dropout, train))

  return classifier(logits, "mobilenet_v3_small", shape, num_classes, ("fc1", "fc2"))


TORCH: dict[str, Reader] = {
  "mobilenet_v3_small": named(
    (
      *conv_norm(r"features\.0\.0", r"features\.0\.1", "stem"),
      *torchvision_blocks(r"features\.(1)", r"block\1", ("depthwise", "se", "project")),
      *torchvision_blocks(r"features\.([23])", r"block\1", ("expand", "depthwise", "project")),
      *torchvision_blocks(r"features\.(\d+)", r"block\1", ("expand", "depthwise", "se", "project")),
      *conv_norm(r"features\.12\.0", r"features\.12\.1", "last"),
      (r"classifier\.0", "fc1"),
      (r"classifier\.3", "fc2"),
    )
  )
}
