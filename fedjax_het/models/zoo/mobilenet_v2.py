"""MobileNetV2: Sandler et al., MobileNetV2: Inverted Residuals and Linear Bottlenecks, CVPR 2018."""

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
from fedjax_het.models.zoo.blocks import ConvNorm, InvertedResidual, classifier, dropped, rounded
from fedjax_het.settings import Fraction, Positive, Whole

STAGES = (  # the paper's table 2: expansion, channels, blocks, stride of the first
  (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
)  # fmt: skip


@model_factory
def mobilenet_v2(
  shape: tuple[int, ...] = (224, 224, 3),
  num_classes: int = 1000,
  width: Positive = 1.0,
  stem_stride: Annotated[int, Whole(1, 2)] = 2,
  dropout: Fraction = 0.2,
  norm: Norm = "batch",
  conv: ConvMethod = "auto",
) -> Model:
  """MobileNetV2: conv3 32 (stride 2) - 17 inverted residuals - conv1 1280 - mean - dense C, with ReLU6.

  The inverted residuals have 16 to 320 channels. 3,504,872 parameters for 1,000 classes; torchvision's
  `mobilenet_v2`.

  Args:
    shape: shape of one example, (height, width, channels).
    num_classes: C, the number of logits.
    width: factor of all numbers of channels, which are rounded to multiples of 8; the last is not below 1280.
    stem_stride: stride of the first convolution; 1 for small images.
    dropout: dropout rate before the dense layer.
    norm: normalisation layers, "batch" or "group", see `norms.norm`.
    conv: convolution algorithm, see `convolution.conv2d`.

  Raises:
    SettingError: a setting is out of range or unknown, or `shape` is no such image.
  """

  def logits(x: jax.Array, train: bool) -> jax.Array:
    stem = ConvNorm(rounded(32 * width), 3, stem_stride, norm, nn.relu6, conv=conv, name="stem")
    h, place = stem(x, train), 0
    for expansion, channels, blocks, stride in STAGES:
      for i in range(blocks):
        place += 1
        features, expanded = rounded(channels * width), expansion * h.shape[3]
        block = InvertedResidual(
          features, expanded, stride=1 if i else stride, norm=norm, name=f"block{place}"
        )
        h = block(h, train)
    h = ConvNorm(rounded(1280 * max(1.0, width)), 1, 1, norm, nn.relu6, name="last")(h, train)
    return Dense(num_classes, name="fc")(dropped(h.mean((1, 2)), dropout, train))

  return classifier(logits, "mobilenet_v2", shape, num_classes)


def _parts(block: str, path: str, first: int) -> list[tuple[str, str]]:
  """Returns the renames of a block whose depthwise convolution has the index `first` among its parts."""
  return [
    *(conv_norm(rf"{block}\.0\.0", rf"{block}\.0\.1", f"{path}/expand") if first else ()),
    *conv_norm(rf"{block}\.{first}\.0", rf"{block}\.{first}\.1", f"{path}/depthwise"),
    *conv_norm(rf"{block}\.{first + 1}", rf"{block}\.{first + 2}", f"{path}/project"),
  ]


TORCH: dict[str, Reader] = {
  "mobilenet_v2": named(
    (
      *conv_norm(r"features\.0\.0", r"features\.0\.1", "stem"),
      *_parts(r"features\.1\.conv", "block1", 0),
      *_parts(r"features\.(\d+)\.conv", r"block\1", 1),
      *conv_norm(r"features\.18\.0", r"features\.18\.1", "last"),
      (r"classifier\.1", "fc"),
    )
  )
}
