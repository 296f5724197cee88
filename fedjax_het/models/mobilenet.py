"""SuperFed's small MobileNet (src/models/models.py), after Howard et al., MobileNets, 2017."""

import jax
from flax import linen as nn

from fedjax_het.errors import check_whole
from fedjax_het.models.blocks import ConvNorm, classifier
from fedjax_het.models.layers import Dense
from fedjax_het.models.model import Model
from fedjax_het.models.shapes import model_factory
from fedjax_het.models.torch_names import named
from fedjax_het.models.weights import Reader

BLOCKS = ((2, 1), (4, 2), (8, 2), (16, 1))  # channels, as multiples of the width, and stride


class MobileNet(nn.Module):
  """See `mobilenet`."""

  num_classes: int
  width: int
  padding: int
  norm: str
  conv: str

  @nn.compact
  def __call__(self, x: jax.Array, train: bool) -> jax.Array:
    """Logits of images [B, H, W, C]."""
    h = ConvNorm(self.width, 3, 2, self.norm, conv=self.conv, name="stem")(x, train)
    for i, (channels, stride) in enumerate(BLOCKS):
      h = ConvNorm(0, 3, stride, self.norm, padding=self.padding, name=f"depthwise{i}")(h, train)
      h = ConvNorm(channels * self.width, 1, 1, self.norm, name=f"pointwise{i}")(h, train)
    h = nn.relu(Dense(8 * self.width, False, name="fc1")(h.mean((1, 2))))
    return Dense(self.num_classes, False, name="fc2")(h)


@model_factory
def mobilenet(
  shape: tuple[int, ...] = (64, 64, 3),
  num_classes: int = 200,
  width: int = 32,
  padding: int = 0,
  norm: str = "batch",
  conv: str = "auto",
) -> Model:
  """conv3 h (stride 2) - four times depthwise3, conv1 to 2h, 4h, 8h, 16h - mean - dense 8h - relu - dense C.

  A norm and ReLU after each convolution; the middle two depthwise ones halve. No layer has a bias, but the
  norms. 364,480 parameters on TinyImageNet.

  Args:
    shape: of one example, (height, width, channels), at least 33 x 33 without padding.
    num_classes: C, the number of logits.
    width: h.
    padding: of the depthwise convolutions; 0 in SuperFed's code, 1 for smaller images.
    norm: "batch" or "group". SuperFed's code normalises by the batch's statistics also in use; here "batch"
      keeps running ones for that.
    conv: how to convolve, see `convolution.conv2d`.

  Raises:
    SettingError: a setting that cannot be.
  """
  check_whole("padding", padding, 0)
  module = MobileNet(num_classes, width, padding, norm, conv)
  smallest = 1 if padding else 33
  return classifier(module, "mobilenet", shape, num_classes, ("fc1", "fc2"), smallest, "Set padding=1.")


TORCH: dict[str, Reader] = {
  "mobilenet": named(
    (
      (r"in_conv\.0", "stem/conv"),
      (r"in_conv\.1", "stem/norm"),
      (r"layers\.(\d)\.0", r"depthwise\1/conv"),
      (r"layers\.(\d)\.1", r"depthwise\1/norm"),
      (r"layers\.(\d)\.3", r"pointwise\1/conv"),
      (r"layers\.(\d)\.4", r"pointwise\1/norm"),
      (r"classifier\.2", "fc1"),
      (r"classifier\.4", "fc2"),
    )
  )
}
