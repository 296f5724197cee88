"""EfficientNet-B0 and -Lite0: Tan & Le, EfficientNet, ICML 2019; Lite0 is TensorFlow's of 2020.

Lite0 has no squeeze and excitation, and ReLU6 instead of Swish; its first and last convolutions keep their
widths.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import jax
import numpy as np
from absl import logging
from flax import linen as nn

from fedjax_het.models.layers.basic import Dense, flatten
from fedjax_het.models.layers.convolution import ConvMethod
from fedjax_het.models.layers.norms import Norm
from fedjax_het.models.layers.pooling import adaptive_average_pool
from fedjax_het.models.model import Model
from fedjax_het.models.shapes import model_factory
from fedjax_het.models.weights.starting import Reader
from fedjax_het.models.weights.torch_names import conv_norm, named, torchvision_blocks
from fedjax_het.models.zoo.blocks import ConvNorm, InvertedResidual, classifier, dropped, rounded
from fedjax_het.settings import Count, Fraction, Positive, Whole

STAGES = (  # the paper's table 1: expansion, kernel's side, stride of the first block, channels, blocks
  (1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3), (6, 5, 1, 112, 3),
  (6, 5, 2, 192, 4), (6, 3, 1, 320, 1),
)  # fmt: skip
STEM, LAST = 32, 1280
TENSORFLOW_EPSILON = 1e-3


def efficientnet(
  num_classes: int, lite: bool, width: float, stem_stride: int, grid: int, dropout: float, drop_path: float,
  norm: str, conv: str, same: bool = False,
) -> Callable[[jax.Array, bool], jax.Array]:  # fmt: skip
  """Returns the network of `efficientnet_b0` and `efficientnet_lite0`, of whose settings it takes most.

  Args:
    lite: whether it is EfficientNet-Lite0.
    same: whether to pad as TensorFlow does, see `efficientnet_lite0`.
  """

  def logits(x: jax.Array, train: bool) -> jax.Array:
    activation = nn.relu6 if lite else nn.swish
    stem, last = (channels if lite else rounded(channels * width) for channels in (STEM, LAST))
    origin: dict[str, Any] = {"same": same, "epsilon": TENSORFLOW_EPSILON if same else 1e-5}
    first = ConvNorm(stem, 3, stem_stride, norm, activation, conv=conv, **origin, name="stem")
    h = first(x, train)
    total, place = sum(blocks for *_, blocks in STAGES), 0
    for s, (expansion, side, stride, channels, blocks) in enumerate(STAGES):
      for i in range(blocks):
        inputs = h.shape[3]
        h = InvertedResidual(
          rounded(channels * width), expansion * inputs, side, 1 if i else stride,
          0 if lite else max(1, inputs // 4), activation, nn.swish, norm=norm,
          drop_path=drop_path * place / total, **origin, name=f"stage{s}_{i}",
        )(h, train)  # fmt: skip
        place += 1
    h = ConvNorm(last, 1, 1, norm, activation, **origin, name="last")(h, train)
    h = flatten(adaptive_average_pool(h, (grid, grid)))
    return Dense(num_classes, name="fc")(dropped(h, dropout, train))

  return logits


@model_factory
def efficientnet_b0(
  shape: tuple[int, ...] = (224, 224, 3),
  num_classes: int = 1000,
  width: Positive = 1.0,
  stem_stride: Annotated[int, Whole(1, 2)] = 2,
  grid: Count = 1,
  dropout: Fraction = 0.2,
  drop_path: Fraction = 0.2,
  norm: Norm = "batch",
  conv: ConvMethod = "auto",
) -> Model:
  """EfficientNet-B0: conv3 32 (stride 2) - 16 inverted residuals - conv1 1280 - mean - dense C, with Swish.

  The inverted residuals have 16 to 320 channels, and squeeze and excitation. 5,288,548 parameters for 1,000
  classes; torchvision's `efficientnet_b0`. With `grid=7, dropout=0.1, num_classes=8` it is AAggFF's model for
  ISIC 2019.

  Args:
    shape: shape of one example, (height, width, channels).
    num_classes: C, the number of logits.
    width: factor of all numbers of channels, which are rounded to multiples of 8.
    stem_stride: stride of the first convolution; 1 for small images.
    grid: side of the grid of pixel means that the dense layer reads.
    dropout: dropout rate before the dense layer.
    drop_path: in training an example skips the i-th of n = 16 blocks, i = 0, ..., n - 1, with probability
      drop_path·i / n (Huang et al., Deep Networks with Stochastic Depth, ECCV 2016).
    norm: normalisation layers, "batch" or "group", see `norms.norm`.
    conv: convolution algorithm, see `convolution.conv2d`.

  Raises:
    SettingError: a setting is out of range or unknown, or `shape` is no such image.
  """
  module = efficientnet(num_classes, False, width, stem_stride, grid, dropout, drop_path, norm, conv)
  return classifier(module, "efficientnet_b0", shape, num_classes)


@model_factory
def efficientnet_lite0(
  shape: tuple[int, ...] = (224, 224, 3),
  num_classes: int = 1000,
  width: Positive = 1.0,
  stem_stride: Annotated[int, Whole(1, 2)] = 2,
  dropout: Fraction = 0.2,
  drop_path: Fraction = 0.2,
  norm: Norm = "batch",
  conv: ConvMethod = "auto",
  same: bool = False,
) -> Model:
  """EfficientNet-Lite0: B0 with ReLU6 and no squeeze and excitation; 4,652,008 parameters for 1,000 classes.

  It is timm's `efficientnet_lite0`, or with `same=True` its `tf_efficientnet_lite0`. The first and the last
  convolution keep 32 and 1280 channels at every width.

  Args:
    shape: shape of one example, (height, width, channels).
    num_classes: C, the number of logits.
    width: factor of the other layers' numbers of channels, which are rounded to multiples of 8.
    stem_stride: stride of the first convolution; 1 for small images.
    dropout: dropout rate before the dense layer.
    drop_path: stochastic depth, see `efficientnet_b0`.
    norm: normalisation layers, "batch" or "group", see `norms.norm`.
    conv: convolution algorithm, see `convolution.conv2d`.
    same: for weights trained in TensorFlow: strided convolutions pad as its SAME does, with less before than
      after, and the norms' ε is 1e-3.

  Raises:
    SettingError: a setting is out of range or unknown, or `shape` is no such image.
  """
  module = efficientnet(num_classes, True, width, stem_stride, 1, dropout, drop_path, norm, conv, same)
  return classifier(module, "efficientnet_lite0", shape, num_classes)


def _torchvision() -> Reader:
  parts = ("expand", "depthwise", "se", "project")
  renames = torchvision_blocks(r"features\.1\.(\d)", r"stage0_\1", parts[1:])
  for stage in range(len(STAGES)):
    renames += torchvision_blocks(rf"features\.{stage + 1}\.(\d)", rf"stage{stage}_\1", parts)
  ends = (("0", "stem"), ("8", "last"))
  renames += [own for i, path in ends for own in conv_norm(rf"features\.{i}\.0", rf"features\.{i}\.1", path)]
  return named([*renames, (r"classifier\.1", "fc")])


def _numbered() -> list[tuple[str, str]]:
  """Returns the renames from EfficientNet-PyTorch's names, which number the blocks across stages."""
  parts = {"_expand_conv": "expand/conv", "_bn0": "expand/norm", "_depthwise_conv": "depthwise/conv"}
  parts |= {"_bn1": "depthwise/norm", "_project_conv": "project/conv", "_bn2": "project/norm"}
  ends = {"_conv_stem": "stem/conv", "_bn0": "stem/norm", "_conv_head": "last/conv", "_bn1": "last/norm"}
  blocks = [f"stage{s}_{i}" for s, (*_, count) in enumerate(STAGES) for i in range(count)]
  inside = [
    (rf"_blocks\.{n}\.{theirs}", f"{block}/{ours}")
    for n, block in enumerate(blocks)
    for theirs, ours in parts.items()
  ]
  return [*ends.items(), *inside, ("_fc", "fc")]


def _told(reader: Reader) -> Reader:
  """Wraps a reader to warn when a file holds EfficientNet-PyTorch's weights, which need `same=True`."""

  def read(state: Mapping[str, np.ndarray]) -> Any:
    if "_conv_stem.weight" in state:
      logging.warning("EfficientNet-PyTorch's weights were trained in TensorFlow: give the model same=True.")
    return reader(state)

  return read


TORCH: dict[str, Reader] = {
  "efficientnet_b0": _torchvision(),
  "efficientnet_lite0": _told(named((
    *conv_norm("conv_stem", "bn1", "stem"),
    *conv_norm(r"blocks\.0\.(\d)\.conv_dw", r"blocks\.0\.(\d)\.bn1", r"stage0_\1/depthwise"),
    *conv_norm(r"blocks\.0\.(\d)\.conv_pw", r"blocks\.0\.(\d)\.bn2", r"stage0_\1/project"),
    *conv_norm(r"blocks\.(\d)\.(\d)\.conv_pw", r"blocks\.(\d)\.(\d)\.bn1", r"stage\1_\2/expand"),
    *conv_norm(r"blocks\.(\d)\.(\d)\.conv_dw", r"blocks\.(\d)\.(\d)\.bn2", r"stage\1_\2/depthwise"),
    *conv_norm(r"blocks\.(\d)\.(\d)\.conv_pwl", r"blocks\.(\d)\.(\d)\.bn3", r"stage\1_\2/project"),
    *conv_norm("conv_head", "bn2", "last"),
    ("classifier", "fc"),
    *_numbered(),
  ))),
}  # fmt: skip
