"""VGG: VGG-11 of Simonyan & Zisserman, ICLR 2015 (configuration A), and SuperFed's VGG-9."""

from collections.abc import Callable, Sequence

import jax
from flax import linen as nn

from fedjax_het.models.layers import norms
from fedjax_het.models.layers.basic import Conv, Dense, flatten
from fedjax_het.models.layers.convolution import ConvMethod
from fedjax_het.models.layers.pooling import adaptive_average_pool, max_pool
from fedjax_het.models.model import Model
from fedjax_het.models.shapes import model_factory
from fedjax_het.models.weights.starting import Reader
from fedjax_het.models.weights.torch_names import State, named
from fedjax_het.models.zoo.blocks import classifier, dropped
from fedjax_het.settings import Count, Fraction

VGG9 = (
  (1,),
  (2,),
  (4, 8),
  (16, 32),
)  # channels as multiples of the width; a 2 x 2 max-pool ends each stage
VGG11 = ((1,), (2,), (4, 4), (8, 8), (8, 8))


def vgg(
  num_classes: int, width: int, stages: tuple[tuple[int, ...], ...], hidden: tuple[int, ...], grid: int,
  bias: bool, dropout: float, norm: str, conv: str,
) -> Callable[[jax.Array, bool], jax.Array]:  # fmt: skip
  """VGG: stages of 3 x 3 convolutions with ReLU, each ending in 2 x 2 max-pooling, then dense layers.

  Args:
    num_classes: C, the number of classes.
    width: unit of the numbers of channels in `stages`.
    stages: channels of each convolution as multiples of the width, stage by stage, see `VGG9`.
    hidden: widths of the hidden dense layers.
    grid: side of the adaptive average pool before the dense layers; 0 for none.
    bias: whether layers have biases.
    dropout: dropout rate after each hidden dense layer.
    norm: normalisation after each convolution, see `norms.norm`.
    conv: convolution algorithm, see `convolution.conv2d`.
  """

  def logits(x: jax.Array, train: bool) -> jax.Array:
    h, count = x, 0
    for stage in stages:
      for channels in stage:
        count += 1
        h = Conv(channels * width, (3, 3), 1, 1, bias, conv, name=f"conv{count}")(h)
        h = nn.relu(norms.norm(norm, h, train, f"norm{count}"))
      h = max_pool(h, 2)
    h = flatten(adaptive_average_pool(h, (grid, grid)) if grid else h)
    for i, units in enumerate(hidden, 1):
      h = dropped(nn.relu(Dense(units, bias, name=f"fc{i}")(h)), dropout, train)
    return Dense(num_classes, bias, name=f"fc{len(hidden) + 1}")(h)

  return logits


@model_factory
def vgg9(
  shape: tuple[int, ...] = (28, 28, 1),
  num_classes: int = 62,
  width: Count = 16,
  norm: norms.Norm = "none",
  conv: ConvMethod = "auto",
) -> Model:
  """VGG-9: conv3 h - P - 2h - P - 4h, 8h - P - 16h, 32h - P - dense 16h - dense C, with P a 2 x 2 max-pool.

  ReLU follows each layer but the last. As in SuperFed's code (src/models/models.py), no layer has a bias.
  1,718,416 parameters on FEMNIST.

  Args:
    shape: shape of one example, (height, width, channels), at least 16 x 16.
    num_classes: C, the number of logits.
    width: h.
    norm: normalisation after each convolution: "none", "batch" or "group".
    conv: convolution algorithm, see `convolution.conv2d`.

  Raises:
    SettingError: a setting is out of range or unknown, or `shape` is no such image.
  """
  module = vgg(num_classes, width, VGG9, (16 * width,), 0, False, 0.0, norm, conv)
  return classifier(module, "vgg9", shape, num_classes, ("fc1", "fc2"), 16)


@model_factory
def vgg11(
  shape: tuple[int, ...] = (224, 224, 3),
  num_classes: int = 1000,
  width: Count = 64,
  grid: Count = 7,
  dropout: Fraction = 0.5,
  norm: norms.Norm = "none",
  conv: ConvMethod = "auto",
) -> Model:
  """VGG-11: conv3 h - P - 2h - P - 4h, 4h - P - 8h, 8h - P - 8h, 8h - P - dense 64h - dense 64h - dense C.

  P is a 2 x 2 max-pool; ReLU follows each layer but the last; an adaptive average pool precedes the dense
  layers. 132,863,336 parameters for 1,000 classes; torchvision's `vgg11`.

  Args:
    shape: shape of one example, (height, width, channels), at least 32 x 32.
    num_classes: C, the number of logits.
    width: h.
    grid: side of the average pool's grid. 7 is the published one; 1 makes the first dense layer 49 times
      smaller and is enough for images of 32 x 32, of which one pixel is left.
    dropout: dropout rate after each hidden dense layer.
    norm: normalisation after each convolution: "none", "batch" (torchvision's `vgg11_bn`) or "group".
    conv: convolution algorithm, see `convolution.conv2d`.

  Raises:
    SettingError: a setting is out of range or unknown, or `shape` is no such image.
  """
  module = vgg(num_classes, width, VGG11, (64 * width,) * 2, grid, True, dropout, norm, conv)
  return classifier(module, "vgg11", shape, num_classes, ("fc3",), 32)


def _torchvision(places: Sequence[int], normed: bool) -> Reader:
  """Returns the reader of a torchvision VGG-11 whose convolutions have the indices `places` in `features`."""
  convolutions = [(rf"features\.{place}", f"conv{i}") for i, place in enumerate(places, 1)]
  norms = [(rf"features\.{place + 1}", f"norm{i}") for i, place in enumerate(places, 1)] if normed else []
  dense = [(rf"classifier\.{place}", f"fc{i}") for i, place in enumerate((0, 3, 6), 1)]
  return named((*convolutions, *norms, *dense), {"fc1": (7, 7)})


PLAIN = _torchvision((0, 3, 6, 8, 11, 13, 16, 18), False)
NORMED = _torchvision((0, 4, 8, 11, 15, 18, 22, 25), True)


def _vgg11(state: State):
  """Reads torchvision's `vgg11` or `vgg11_bn`, whichever the state dict is of."""
  return (NORMED if "features.1.weight" in state else PLAIN)(state)


SUPERFED = named((
  *[(rf"layers\.{place}", f"conv{i}") for i, place in enumerate((0, 3, 6, 8, 11, 13), 1)],
  (r"classifier\.1", "fc1"),
  (r"classifier\.3", "fc2"),
))  # fmt: skip
TORCH: dict[str, Reader] = {"vgg9": SUPERFED, "vgg11": _vgg11}
