"""Residual networks of basic blocks: ResNet-9, ResNet-18 and CIFAR's ResNet-20.

He et al., Deep Residual Learning for Image Recognition, CVPR 2016: ResNet-18 is in its table 1, ResNet-20 in
its section 4.2. ResNet-9 is SuperFed's (src/models/models.py).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn

from fedjax_het.errors import check_choice
from fedjax_het.models.layers import norms
from fedjax_het.models.layers.basic import Conv, Dense
from fedjax_het.models.layers.convolution import ConvMethod
from fedjax_het.models.layers.pooling import max_pool
from fedjax_het.models.model import Model
from fedjax_het.models.shapes import model_factory
from fedjax_het.models.weights.starting import Reader
from fedjax_het.models.weights.torch_names import named
from fedjax_het.models.zoo.blocks import classifier
from fedjax_het.settings import Count

STEMS = {"imagenet": (7, 2, True), "cifar": (3, 1, False), "superfed": (3, 2, True)}  # side, stride, max-pool


class BasicBlock(nn.Module):
  """Residual basic block, relu(norm(conv3 relu(norm(conv3 x))) + shortcut x).

  Attributes:
    features: number of output channels.
    stride: stride of the first convolution.
    shortcut: if the shape changes, "project" (a 1 x 1 convolution and a norm) or "pad" (subsampled pixels,
      with zero channels added); otherwise the shortcut is x itself.
    plain: whether a block that keeps the shape has no shortcut.
    norm: kind of normalisation, see `norms.norm`.
    conv: convolution algorithm, see `convolution.conv2d`.
  """

  features: int
  stride: int
  shortcut: str
  plain: bool
  norm: str
  conv: str

  @nn.compact
  def __call__(self, x: jax.Array, train: bool) -> jax.Array:
    """Returns float32 [B, H', W', features] for images [B, H, W, C]."""
    h = Conv(self.features, (3, 3), self.stride, 1, False, self.conv, name="conv1")(x)
    h = nn.relu(norms.norm(self.norm, h, train, "norm1"))
    h = norms.norm(
      self.norm, Conv(self.features, (3, 3), 1, 1, False, self.conv, name="conv2")(h), train, "norm2"
    )
    if self.stride == 1 and x.shape[3] == self.features:
      return nn.relu(h if self.plain else h + x)
    if self.shortcut == "pad":
      more = self.features - x.shape[3]
      edges = ((0, 0), (0, 0), (0, 0), (more // 2, more - more // 2))
      return nn.relu(h + jnp.pad(x[:, :: self.stride, :: self.stride], edges))
    x = Conv(self.features, (1, 1), self.stride, 0, False, self.conv, name="skip")(x)
    return nn.relu(h + norms.norm(self.norm, x, train, "skip_norm"))


def residual(
  num_classes: int, width: int, stem: str, depths: tuple[int, ...], strides: tuple[int, ...],
  shortcut: str = "project", plain: bool = False, hidden: int = 0, norm: str = "batch", conv: str = "auto",
) -> Callable[[jax.Array, bool], jax.Array]:  # fmt: skip
  """Residual network: stem, stages of basic blocks of h, 2h, 4h, ... channels, mean over pixels, dense layer.

  Args:
    num_classes: C, the number of classes.
    width: h.
    stem: a key of `STEMS`.
    depths: number of blocks of each stage.
    strides: stride of each stage's first block.
    shortcut: kind of shortcut, see `BasicBlock`.
    plain: whether blocks that keep the shape have no shortcut, see `BasicBlock`.
    hidden: width of a hidden dense layer before the last; 0 for none. With it, neither dense layer has a
      bias.
    norm: kind of normalisation, see `norms.norm`.
    conv: convolution algorithm, see `convolution.conv2d`.
  """

  def logits(x: jax.Array, train: bool) -> jax.Array:
    side, stride, pooled = STEMS[stem]
    h = Conv(width, (side, side), stride, side // 2, False, conv, name="stem")(x)
    h = nn.relu(norms.norm(norm, h, train, "stem_norm"))
    h = max_pool(h, 3, 2, 1) if pooled else h
    for i, (depth, stride) in enumerate(zip(depths, strides)):
      for j in range(depth):
        h = BasicBlock(
          2**i * width, 1 if j else stride, shortcut, plain, norm, conv,
          name=f"layer{i + 1}_{j}",
        )(h, train)  # fmt: skip
    h = h.mean((1, 2))
    if not hidden:
      return Dense(num_classes, name="fc")(h)
    h = nn.relu(Dense(hidden, False, name="fc1")(h))
    return Dense(num_classes, False, name="fc2")(h)

  return logits


@model_factory
def resnet9(
  shape: tuple[int, ...] = (32, 32, 3),
  num_classes: int = 10,
  width: Count = 64,
  skip: bool = True,
  norm: norms.Norm = "batch",
  conv: ConvMethod = "auto",
) -> Model:
  """ResNet-9: conv3 h (stride 2) - maxpool3 - blocks of h, 2h, 4h, 8h channels - mean - dense 4h - dense C.

  A ReLU follows the hidden dense layer. The last two blocks halve the image; only norms have biases.
  5,054,784 parameters for 100 classes.

  Args:
    shape: shape of one example, (height, width, channels).
    num_classes: C, the number of logits.
    width: h.
    skip: whether the first block, which keeps the shape, adds its input; in SuperFed's code it does not.
    norm: normalisation layers, "batch" or "group". SuPerFed's code normalises by the batch's statistics in
      inference too; here "batch" keeps running statistics for inference.
    conv: convolution algorithm, see `convolution.conv2d`.

  Raises:
    SettingError: a setting is out of range or unknown, or `shape` is no such image.
  """
  module = residual(
    num_classes, width, "superfed", (1, 1, 1, 1), (1, 1, 2, 2), "project", not skip, 4 * width, norm, conv
  )
  return classifier(module, "resnet9", shape, num_classes, ("fc1", "fc2"))


@model_factory
def resnet18(
  shape: tuple[int, ...] = (224, 224, 3),
  num_classes: int = 1000,
  width: Count = 64,
  stem: str = "imagenet",
  norm: norms.Norm = "batch",
  conv: ConvMethod = "auto",
) -> Model:
  """ResNet-18: stem - two blocks each of h, 2h, 4h, 8h channels, the last three halving - mean - dense C.

  11,689,512 parameters for 1,000 classes; torchvision's `resnet18`.

  Args:
    shape: shape of one example, (height, width, channels).
    num_classes: C, the number of logits.
    width: h.
    stem: "imagenet", conv7 (stride 2) - maxpool3 (stride 2); or "cifar", conv3, for small images.
    norm: normalisation layers, "batch" or "group", see `norms.norm`.
    conv: convolution algorithm, see `convolution.conv2d`.

  Raises:
    SettingError: a setting is out of range or unknown, or `shape` is no such image.
  """
  check_choice("stem", stem, ("imagenet", "cifar"))
  module = residual(num_classes, width, stem, (2, 2, 2, 2), (1, 2, 2, 2), norm=norm, conv=conv)
  return classifier(module, "resnet18", shape, num_classes)


@model_factory
def resnet20(
  shape: tuple[int, ...] = (32, 32, 3),
  num_classes: int = 10,
  width: Count = 16,
  norm: norms.Norm = "batch",
  conv: ConvMethod = "auto",
) -> Model:
  """ResNet-20: conv3 h - three blocks each of h, 2h (halving), 4h (halving) channels - mean - dense C.

  If the shape changes, the shortcut takes every second pixel and pads the channels with zeros on both sides
  (option A). 269,722 parameters.

  Args:
    shape: shape of one example, (height, width, channels).
    num_classes: C, the number of logits.
    width: h.
    norm: normalisation layers, "batch" or "group", see `norms.norm`.
    conv: convolution algorithm, see `convolution.conv2d`.

  Raises:
    SettingError: a setting is out of range or unknown, or `shape` is no such image.
  """
  module = residual(num_classes, width, "cifar", (3, 3, 3), (1, 2, 2), "pad", norm=norm, conv=conv)
  return classifier(module, "resnet20", shape, num_classes)


TORCHVISION = named((
  ("conv1", "stem"),
  ("bn1", "stem_norm"),
  (r"layer(\d)\.(\d)\.conv(\d)", r"layer\1_\2/conv\3"),
  (r"layer(\d)\.(\d)\.bn(\d)", r"layer\1_\2/norm\3"),
  (r"layer(\d)\.(\d)\.downsample\.0", r"layer\1_\2/skip"),
  (r"layer(\d)\.(\d)\.downsample\.1", r"layer\1_\2/skip_norm"),
  ("fc|linear", "fc"),
))  # fmt: skip
SUPERFED = named((
  (r"in_conv\.0", "stem"),
  (r"in_conv\.1", "stem_norm"),
  (r"layer(\d)\.(\d)\.module\.0", r"layer\1_\2/conv1"),
  (r"layer(\d)\.(\d)\.module\.1", r"layer\1_\2/norm1"),
  (r"layer(\d)\.(\d)\.module\.3", r"layer\1_\2/conv2"),
  (r"layer(\d)\.(\d)\.module\.4", r"layer\1_\2/norm2"),
  (r"layer(\d)\.(\d)\.downsample\.0", r"layer\1_\2/skip"),
  (r"layer(\d)\.(\d)\.downsample\.1", r"layer\1_\2/skip_norm"),
  (r"classifier\.2", "fc1"),
  (r"classifier\.4", "fc2"),
))  # fmt: skip
TORCH: dict[str, Reader] = {"resnet9": SUPERFED, "resnet18": TORCHVISION, "resnet20": TORCHVISION}
