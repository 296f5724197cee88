"""Building blocks of convolutional classifiers, and `classifier`, which checks their settings."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from flax import linen as nn

from fedjax_het.models.from_flax import of_flax
from fedjax_het.models.layers.basic import Conv, DepthwiseConv
from fedjax_het.models.layers.convolution import both
from fedjax_het.models.layers.norms import norm
from fedjax_het.models.layers.strided_convolution import Sides
from fedjax_het.models.model import Model
from fedjax_het.models.shapes import check_image

Activation = Callable[[jax.Array], jax.Array]


class ConvNorm(nn.Module):
  """Convolution without bias, then normalisation and activation: activation(norm(conv x)).

  Its layers are called `conv` and `norm`.

  Attributes:
    features: number of output channels; 0 for a depthwise convolution, which keeps the number of channels.
    side: side of the kernel, in pixels.
    stride: stride of both axes.
    norm: kind of normalisation, "batch" or "group", see `norms.norm`.
    activation: nonlinearity after the norm; None for none.
    padding: zeros on all four sides; by default half the kernel's side, rounded down.
    conv: convolution algorithm, see `convolution.conv2d`.
    epsilon: the norm's ε.
    momentum: fraction of the running statistics that a step keeps.
    same: whether a stride of 2 pads even sides as TensorFlow's SAME does, with one pixel less before.
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
    """Returns float32 [B, H', W', features] for images [B, H, W, C]."""
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
  """Squeeze and excitation: x · gate(W2 activation(W1 mean(x) + b1) + b2), with the mean over pixels.

  Its layers are called `reduce` (W1) and `expand` (W2). Hu et al., Squeeze-and-Excitation Networks, CVPR
  2018.

  Attributes:
    squeezed: number of channels between the two layers.
    activation: nonlinearity between the two layers.
    gate: nonlinearity of the channel weights.
  """

  squeezed: int
  activation: Activation = nn.relu
  gate: Activation = nn.sigmoid

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Returns the images [B, H, W, C] with each channel scaled by its gate."""
    h = x.mean((1, 2), keepdims=True)
    h = self.activation(Conv(self.squeezed, (1, 1), name="reduce")(h))
    return x * self.gate(Conv(x.shape[3], (1, 1), name="expand")(h))


class InvertedResidual(nn.Module):
  """Inverted residual: 1 x 1 expansion, depthwise convolution, 1 x 1 projection, and a residual connection.

  The residual is added if the shape stays. Layers: `expand` (if the number of channels grows), `depthwise`,
  `se` (if `squeezed`), `project`. Sandler et al., MobileNetV2, CVPR 2018.

  Attributes:
    features: number of output channels.
    expanded: number of channels between expansion and projection.
    side: side of the depthwise kernel.
    stride: stride of the depthwise convolution.
    squeezed: number of channels of squeeze and excitation; 0 for none.
    activation: nonlinearity after the first two convolutions.
    squeeze_activation: nonlinearity within squeeze and excitation.
    gate: gate of squeeze and excitation.
    norm: kind of normalisation, see `norms.norm`.
    epsilon: the norms' ε.
    momentum: fraction of the running statistics that a step keeps.
    drop_path: probability that, in training, an example skips the residual branch.
    same: TensorFlow's padding, see `ConvNorm`.
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
    """Returns float32 [B, H', W', features] for images [B, H, W, C]."""

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
  """Dropout of single values or, with `whole`, of whole examples (stochastic depth); none at rate 0."""
  if not rate:
    return x
  axes = tuple(range(1, x.ndim)) if whole else ()
  return nn.Dropout(rate, broadcast_dims=axes)(x, deterministic=not train)


def rounded(channels: float, divisor: int = 8) -> int:
  """Rounds `channels` to the nearest multiple of `divisor` that is at least `divisor` and 0.9 `channels`.

  Source: Sandler et al., MobileNetV2, CVPR 2018, as in the authors' code.
  """
  nearest = max(divisor, int(channels + divisor / 2) // divisor * divisor)
  return nearest + divisor if nearest < 0.9 * channels else nearest


def classifier(
  module: nn.Module | Callable[[jax.Array, bool], jax.Array],
  name: str,
  shape: Sequence[int],
  num_classes: int,
  head: Sequence[str] = ("fc",),
  smallest: int = 1,
  remedy: str = "Use larger images: resize=32.",
) -> Model:
  """Returns a Flax module as a `Model` of images, after checking that the images are large enough.

  Args:
    module: the module, or a function that calls named layers, see `of_flax`.
    name: name of the model.
    shape: shape of one example, (height, width, channels).
    num_classes: C, the number of logits.
    head: names of the layers of the head.
    smallest: minimum height and width.
    remedy: the advice that the error gives for images that are too small.

  Raises:
    SettingError: `shape` is not such an image.
  """
  check_image(shape, smallest, remedy)
  return of_flax(module, tuple(shape), num_classes, name=name, head=head)
