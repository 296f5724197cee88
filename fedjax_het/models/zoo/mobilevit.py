"""MobileViT, convolutions and transformers: Mehta & Rastegari, MobileViT, ICLR 2022."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from fedjax_het.errors import check_choice
from fedjax_het.models.layers.basic import Conv, Dense
from fedjax_het.models.layers.convolution import ConvMethod
from fedjax_het.models.layers.norms import Norm
from fedjax_het.models.model import Model
from fedjax_het.models.shapes import model_factory
from fedjax_het.models.weights.starting import Reader
from fedjax_het.models.weights.torch_names import named
from fedjax_het.models.zoo.blocks import ConvNorm, InvertedResidual, classifier, dropped, rounded
from fedjax_het.settings import Fraction, Positive

PATCH, HEADS, EPSILON = 2, 4, 1e-5
DEPTHS = (2, 4, 3)  # transformer layers in each of the last three stages
SIZES = {  # expansion; channels of stages, of the last convolution, of transformers; MLP's factor
  "xxs": (2, (16, 24, 48, 64, 80), 320, (64, 80, 96), 2),
  "xs": (4, (32, 48, 64, 80, 96), 384, (96, 120, 144), 2),
  "s": (4, (32, 64, 96, 128, 160), 640, (144, 192, 240), 2),
}


class Transformer(nn.Module):
  """Pre-norm transformer layer on [..., N, C]: x + attention(norm x), then x + mlp(norm x).

  Attributes:
    hidden: hidden width of the MLP, which is dense - Swish - dense.
    dropout: dropout rate after the attention and each dense layer of the MLP.
  """

  hidden: int
  dropout: float

  @nn.compact
  def __call__(self, x: jax.Array, train: bool) -> jax.Array:
    """Returns float32 [..., N, C] for x of that shape; attention is over the N positions."""
    width = x.shape[-1]
    h = nn.LayerNorm(EPSILON, use_fast_variance=False, name="norm1")(x)
    qkv = Dense(3 * width, name="qkv")(h)
    query, key, value = jnp.moveaxis(qkv.reshape(*x.shape[:-1], 3, HEADS, width // HEADS), -3, 0)
    scores = jnp.einsum("...qhd,...khd->...hqk", query, key) * (width // HEADS) ** -0.5
    h = jnp.einsum("...hqk,...khd->...qhd", jax.nn.softmax(scores), value).reshape(x.shape)
    x = x + dropped(Dense(width, name="proj")(h), self.dropout, train)
    h = nn.LayerNorm(EPSILON, use_fast_variance=False, name="norm2")(x)
    h = dropped(nn.swish(Dense(self.hidden, name="fc1")(h)), self.dropout, train)
    return x + dropped(Dense(width, name="fc2")(h), self.dropout, train)


class MobileViTBlock(nn.Module):
  """MobileViT block: convolutions, then transformers across 2 x 2 patches, fused with the input.

  It computes conv3 - conv1 - transformers, each over the pixels at one position of all patches - conv1; then
  conv3 of the concatenation with x. An image of odd sides is resized (bilinear) for the transformers, and
  back.

  Attributes:
    width: width of the transformers.
    depth: number of transformers.
    hidden: hidden width of their MLPs.
    dropout: dropout rate, see `Transformer`.
    norm: kind of normalisation, see `norms.norm`.
    conv: convolution algorithm, see `convolution.conv2d`.
  """

  width: int
  depth: int
  hidden: int
  dropout: float
  norm: str
  conv: str

  @nn.compact
  def __call__(self, x: jax.Array, train: bool) -> jax.Array:
    """Returns images of x's shape, float32 [B, H, W, C]."""

    def conv_norm(side: int, name: str) -> ConvNorm:
      return ConvNorm(x.shape[3], side, 1, self.norm, nn.swish, conv=self.conv, name=name)

    h = Conv(self.width, (1, 1), use_bias=False, name="conv1")(conv_norm(3, "conv3")(x, train))
    batch, height, width, channels = h.shape
    rows, columns = -(-height // PATCH), -(-width // PATCH)
    even = (batch, PATCH * rows, PATCH * columns, channels)
    h = jax.image.resize(h, even, "bilinear", antialias=False) if h.shape != even else h
    h = h.reshape(batch, rows, PATCH, columns, PATCH, channels).transpose(0, 2, 4, 1, 3, 5)
    h = h.reshape(batch, PATCH * PATCH, rows * columns, channels)
    for i in range(self.depth):
      h = Transformer(self.hidden, self.dropout, name=f"transformer{i}")(h, train)
    h = nn.LayerNorm(EPSILON, use_fast_variance=False, name="norm")(h)
    h = h.reshape(batch, PATCH, PATCH, rows, columns, channels).transpose(0, 3, 1, 4, 2, 5).reshape(even)
    if even[1:3] != (height, width):
      h = jax.image.resize(h, (batch, height, width, channels), "bilinear", antialias=False)
    h = jnp.concatenate([x, conv_norm(1, "proj")(h, train)], axis=3)
    return conv_norm(3, "fusion")(h, train)


@model_factory
def mobilevit(
  shape: tuple[int, ...] = (256, 256, 3),
  num_classes: int = 1000,
  size: str = "xxs",
  width: Positive = 1.0,
  dropout: Fraction = 0.1,
  norm: Norm = "batch",
  conv: ConvMethod = "auto",
) -> Model:
  """MobileViT: conv3 16 (stride 2) - 7 inverted residuals and 3 transformer blocks - conv1 - mean - dense C.

  A transformer block follows each of the last three residuals. Activations are Swish. 1,272,024 parameters
  for 1,000 classes (xs: 2,317,848, s: 5,578,632); timm's `mobilevit_xxs`, `mobilevit_xs`, `mobilevit_s`.

  Args:
    shape: shape of one example, (height, width, channels).
    num_classes: C, the number of logits.
    size: "xxs", "xs" or "s".
    width: factor of all numbers of channels, which are rounded to multiples of 8.
    dropout: dropout rate in the transformers and before the dense layer.
    norm: normalisation after convolutions, "batch" or "group", see `norms.norm`.
    conv: convolution algorithm, see `convolution.conv2d`.

  Raises:
    SettingError: a setting is out of range or unknown, or `shape` is no such image.
  """
  check_choice("size", size, SIZES)

  def logits(x: jax.Array, train: bool) -> jax.Array:
    def scaled(channels: int) -> int:
      return channels if width == 1 else rounded(channels * width)

    expansion, stages, last, widths, times = SIZES[size]
    h = ConvNorm(scaled(16), 3, 2, norm, nn.swish, conv=conv, name="stem")(x, train)
    for s, channels in enumerate(stages):
      for i in range(3 if s == 1 else 1):
        h = InvertedResidual(
          scaled(channels), expansion * h.shape[3], stride=1 if i or not s else 2, activation=nn.swish,
          norm=norm, name=f"stage{s}_{i}",
        )(h, train)  # fmt: skip
      if s > 1:
        inner, depth = scaled(widths[s - 2]), DEPTHS[s - 2]
        block = MobileViTBlock(inner, depth, times * inner, dropout, norm, conv, name=f"stage{s}_1")
        h = block(h, train)
    h = ConvNorm(scaled(last), 1, 1, norm, nn.swish, name="last")(h, train)
    return Dense(num_classes, name="fc")(dropped(h.mean((1, 2)), dropout, train))

  return classifier(logits, "mobilevit", shape, num_classes)


PARTS = {"conv": "conv", "bn": "norm"}
TORCH: dict[str, Reader] = {
  "mobilevit": named((
    *((rf"stem\.{theirs}", f"stem/{ours}") for theirs, ours in PARTS.items()),
    *((rf"final_conv\.{theirs}", f"last/{ours}") for theirs, ours in PARTS.items()),
    *(
      (rf"stages\.(\d)\.(\d)\.{place}\.{theirs}", rf"stage\1_\2/{layer}/{ours}")
      for theirs, ours in PARTS.items()
      for place, layer in {
        "conv1_1x1": "expand", "conv2_kxk": "depthwise", "conv3_1x1": "project",
        "conv_kxk": "conv3", "conv_proj": "proj", "conv_fusion": "fusion",
      }.items()
    ),
    (r"stages\.(\d)\.1\.conv_1x1", r"stage\1_1/conv1"),
    (r"stages\.(\d)\.1\.transformer\.(\d)\.(?:attn\.|mlp\.)?(\w+)", r"stage\1_1/transformer\2/\3"),
    (r"stages\.(\d)\.1\.norm", r"stage\1_1/norm"),
    (r"head\.fc", "fc"),
  ))
}  # fmt: skip
