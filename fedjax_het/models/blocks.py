"""What convolutional classifiers are built of: convolution and norm, inverted residuals; and their border."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from flax import linen as nn

from fedjax_het.errors import check_choice, check_range, check_whole
from fedjax_het.models.convolution import METHODS, both
from fedjax_het.models.from_flax import of_flax
from fedjax_het.models.layers import Conv, DepthwiseConv
from fedjax_het.models.model import Model
from fedjax_het.models.norms import NORMS, norm
from fedjax_het.models.shapes import check_image
from fedjax_het.models.strided import Sides

Activation = Callable[[jax.Array], jax.Array]


class ConvNorm(nn.Module):
  """activation(norm(conv x)), the convolution without bias; layers `conv` and `norm`.

  Attributes:
    features: output channels; 0 for a depthwise convolution, which keeps them.
    side: of the kernel, in pixels.
    stride: of both axes.
    norm: "batch" or "group", see `norms.norm`.
    activation: after it; None for none.
    padding: zeros on all four sides; by default half the kernel's side, rounded down.
    conv: how to convolve, see `convolution.conv2d`.
    epsilon: the norm's ε.
    momentum: the share that running statistics keep.
    same: whether a stride of 2 pads sides of even length as TensorFlow's SAME does, one pixel less before.
  """

  features: int
  side: int = 3
  stride: Sides = 1
  norm: str = "batch"
  activation: Activation | None = nn.relu
  padding: int | None = None
  conv: str = "auto"
  epsilon: float = 1e-5
  momentum: float = 0.9
  same: bool = False

  @nn.compact
  def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
    """Computes it for images [B, H, W, C]."""
    padding: Sides = self.side // 2 if self.padding is None else self.padding
    if self.same and self.stride == 2:
      even = [1 - length % 2 for length in x.shape[1:3]]
      x = jnp.pad(x, ((0, 0), *((0, own) for own in even), (0, 0)))
      padding = [side - own for side, own in zip(both(padding), even)]
    size = (self.side, self.side)
    if self.features:
      h = Conv(self.features, size, self.stride, padding, False, self.conv, name="conv")(x)
    else:
      h = DepthwiseConv(size, self.stride, padding, False, name="conv")(x)
    h = norm(self.norm, h, train, "norm", self.epsilon, self.momentum)
    return h if self.activation is None else self.activation(h)


class SqueezeExcite(nn.Module):
  """x · gate(W2 activation(W1 mean(x) + b1) + b2), the mean being over pixels; layers `reduce` and `expand`.

  Hu et al., Squeeze-and-Excitation Networks, CVPR 2018.

  Attributes:
    squeezed: channels between.
    activation: between.
    gate: at the end.
  """

  squeezed: int
  activation: Activation = nn.relu
  gate: Activation = nn.sigmoid

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Computes it for images [B, H, W, C]."""
    h = x.mean((1, 2), keepdims=True)
    h = self.activation(Conv(self.squeezed, (1, 1), name="reduce")(h))
    return x * self.gate(Conv(x.shape[3], (1, 1), name="expand")(h))


class InvertedResidual(nn.Module):
  """1 x 1 to more channels, depthwise, 1 x 1 to fewer; added to its input where the shape stays.

  Layers `expand` (where the number grows), `depthwise`, `se` (where squeezed), `project`. Sandler et al.,
  MobileNetV2, CVPR 2018.

  Attributes:
    features: output channels.
    expanded: channels in between.
    side: of the depthwise kernel.
    stride: of the depthwise convolution.
    squeezed: channels of squeeze and excitation; 0 for none.
    activation: after the first two convolutions.
    squeeze_activation: within squeeze and excitation.
    gate: of squeeze and excitation.
    norm: see `norms.norm`.
    epsilon: the norms' ε.
    momentum: the share that running statistics keep.
    drop_path: probability that, in training, an example passes as it is.
    same: see `ConvNorm`.
  """

  features: int
  expanded: int
  side: int = 3
  stride: int = 1
  squeezed: int = 0
  activation: Activation = nn.relu6
  squeeze_activation: Activation = nn.relu
  gate: Activation = nn.sigmoid
  norm: str = "batch"
  epsilon: float = 1e-5
  momentum: float = 0.9
  drop_path: float = 0.0
  same: bool = False

  @nn.compact
  def __call__(self, x: jax.Array, train: bool) -> jax.Array:
    """Computes it for images [B, H, W, C]."""

    def conv_norm(
      features: int, side: int, stride: int, activation: Activation | None, name: str
    ) -> ConvNorm:
      return ConvNorm(
        features, side, stride, self.norm, activation, epsilon=self.epsilon, momentum=self.momentum,
        same=self.same, name=name,
      )  # fmt: skip

    h = x
    if self.expanded != x.shape[3]:
      h = conv_norm(self.expanded, 1, 1, self.activation, "expand")(h, train)
    h = conv_norm(0, self.side, self.stride, self.activation, "depthwise")(h, train)
    if self.squeezed:
      h = SqueezeExcite(self.squeezed, self.squeeze_activation, self.gate, name="se")(h)
    h = conv_norm(self.features, 1, 1, None, "project")(h, train)
    if self.stride > 1 or x.shape[3] != self.features:
      return h
    return x + dropped(h, self.drop_path, train, whole=True)


def dropped(x: jax.Array, rate: float, train: bool, whole: bool = False) -> jax.Array:
  """Dropout of single numbers, or of whole examples (stochastic depth); of none where the rate is 0."""
  if not rate:
    return x
  axes = tuple(range(1, x.ndim)) if whole else ()
  return nn.Dropout(rate, broadcast_dims=axes)(x, deterministic=not train)


def rounded(channels: float, divisor: int = 8) -> int:
  """The nearest multiple of `divisor`, not below it nor more than a tenth below `channels`.

  Source: Sandler et al., MobileNetV2, CVPR 2018, as in the authors' code.
  """
  nearest = max(divisor, int(channels + divisor / 2) // divisor * divisor)
  return nearest + divisor if nearest < 0.9 * channels else nearest


def classifier(
  module: nn.Module,
  name: str,
  shape: Sequence[int],
  num_classes: int,
  head: Sequence[str] = ("fc",),
  smallest: int = 1,
  remedy: str = "Use larger images: resize=32.",
) -> Model:
  """A module as the `Model` of images, its settings checked.

  Args:
    module: has fields `norm` and `conv`, where it has such.
    name: of the model.
    shape: of one example, (height, width, channels).
    num_classes: C, the number of logits.
    head: its head's layers.
    smallest: the least height and width.
    remedy: what to do where an image is smaller.

  Raises:
    SettingError: an unknown norm or convolution, a rate or stride out of range, a width below 1, or no such
      image.
  """
  check_choice("norm", getattr(module, "norm", "batch"), NORMS)
  check_choice("conv", getattr(module, "conv", "auto"), METHODS)
  check_range("dropout", getattr(module, "dropout", 0.0), 0.0, below=1.0)
  check_range("drop_path", getattr(module, "drop_path", 0.0), 0.0, below=1.0)
  check_range("width", getattr(module, "width", 1), above=0.0, below=float("inf"))
  check_whole("stem_stride", getattr(module, "stem_stride", 1), 1, 2)
  check_image(shape, smallest, remedy)
  return of_flax(module, tuple(shape), num_classes, name=name, head=head)
