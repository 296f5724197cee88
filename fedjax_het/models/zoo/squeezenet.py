"""SqueezeNet 1.0 and 1.1: Iandola et al., SqueezeNet, 2016 (arXiv:1602.07360)."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from fedjax_het.errors import check_choice
from fedjax_het.models.layers.basic import Conv
from fedjax_het.models.layers.convolution import ConvMethod
from fedjax_het.models.layers.pooling import max_pool
from fedjax_het.models.model import Model
from fedjax_het.models.shapes import model_factory
from fedjax_het.models.weights.starting import Reader
from fedjax_het.models.weights.torch_names import named
from fedjax_het.models.zoo.blocks import classifier, dropped
from fedjax_het.settings import Fraction, Positive

VERSIONS = {  # stem's channels and side; per torchvision index, a fire's squeezed channels or None: pool
  "1.0": (96, 7, {3: 16, 4: 16, 5: 32, 6: None, 7: 32, 8: 48, 9: 48, 10: 64, 11: None, 12: 64}),
  "1.1": (64, 3, {3: 16, 4: 16, 5: None, 6: 32, 7: 32, 8: None, 9: 48, 10: 48, 11: 64, 12: 64}),
}


class Fire(nn.Module):
  """SqueezeNet's fire module: conv1 to s channels, ReLU; then conv1 and conv3 to 4s each, concatenated, ReLU.

  Attributes:
    squeezed: s.
    expanded: 4s, rounded.
    conv: convolution algorithm, see `convolution.conv2d`.
  """

  squeezed: int
  expanded: int
  conv: str

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Returns float32 [B, H, W, 2 expanded] for images [B, H, W, C]."""
    h = nn.relu(Conv(self.squeezed, (1, 1), name="squeeze")(x))
    pointwise = Conv(self.expanded, (1, 1), name="expand1x1")(h)
    windows = Conv(self.expanded, (3, 3), 1, 1, method=self.conv, name="expand3x3")(h)
    return nn.relu(jnp.concatenate([pointwise, windows], axis=3))


@model_factory
def squeezenet(
  shape: tuple[int, ...] = (224, 224, 3),
  num_classes: int = 1000,
  version: str | float = "1.0",
  width: Positive = 1.0,
  dropout: Fraction = 0.5,
  conv: ConvMethod = "auto",
) -> Model:
  """SqueezeNet: conv (stride 2) - maxpool3 - 8 fires with two more maxpool3 - conv1 to C - ReLU - pixel mean.

  1,248,424 parameters for 1,000 classes (1.1: 1,235,496); torchvision's `squeezenet1_0` and `squeezenet1_1`.
  The last kernel starts as N(0, 0.01²), as there and in the authors' files; the others Xavier-normal.

  Args:
    shape: shape of one example, (height, width, channels), at least 21 x 21 (1.1: 17 x 17).
    num_classes: C, the number of logits.
    version: "1.0", or "1.1" (also as numbers), which pools earlier and needs 2.4 times less computation.
    width: factor of all numbers of channels.
    dropout: dropout rate before the last convolution.
    conv: convolution algorithm, see `convolution.conv2d`.

  Raises:
    SettingError: a setting is out of range or unknown, or `shape` is no such image.
  """
  version = str(float(version)) if isinstance(version, int) else str(version)
  check_choice("version", version, VERSIONS)

  def logits(x: jax.Array, train: bool) -> jax.Array:
    channels, side, fires = VERSIONS[version]

    def scaled(count: int) -> int:
      return max(1, round(width * count))

    h = nn.relu(Conv(scaled(channels), (side, side), 2, 0, True, conv, name="stem")(x))
    h = max_pool(h, 3, 2, ceil=True)
    for place, squeezed in fires.items():
      if squeezed is None:
        h = max_pool(h, 3, 2, ceil=True)
      else:
        h = Fire(scaled(squeezed), scaled(4 * squeezed), conv, name=f"fire{place}")(h)
    h = dropped(h, dropout, train)
    last = Conv(num_classes, (1, 1), kernel_init=nn.initializers.normal(0.01), name="fc")
    return nn.relu(last(h)).mean((1, 2))

  return classifier(logits, "squeezenet", shape, num_classes, ("fc",), 21 if version == "1.0" else 17)


TORCH: dict[str, Reader] = {
  "squeezenet": named(
    (
      (r"features\.0", "stem"),
      (r"features\.(\d+)\.(squeeze|expand1x1|expand3x3)", r"fire\1/\2"),
      (r"classifier\.1", "fc"),
    )
  )
}
