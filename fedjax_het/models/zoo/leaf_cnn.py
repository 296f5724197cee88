"""LEAF's convolutional networks for CelebA's faces and FEMNIST's handwritten characters.

Sources: Caldas et al., LEAF, 2018; thesis, section 3.6.1; the authors' AAggFF, src/models/celebacnn.py, and
Federated-Learning-in-PyTorch, src/models/femnistcnn.py.
"""

from typing import Annotated

import jax
from flax import linen as nn

from fedjax_het.errors import SettingError
from fedjax_het.models.from_flax import of_flax
from fedjax_het.models.layers import norms
from fedjax_het.models.layers.basic import Conv, Dense, flatten
from fedjax_het.models.layers.convolution import ConvMethod
from fedjax_het.models.layers.pooling import adaptive_average_pool, max_pool2
from fedjax_het.models.model import Model
from fedjax_het.models.shapes import check_image, model_factory
from fedjax_het.models.weights.torch_names import named
from fedjax_het.models.zoo.two_cnn import GRID as OF_LETTERS
from fedjax_het.models.zoo.two_cnn import two_cnn
from fedjax_het.settings import Count, Whole

GRID = (5, 5)
LAYERS = 4
LEAST = 2 ** (LAYERS - 1)  # minimum channels, so that the last layer's groups divide them


@model_factory
def leaf_cnn(
  shape: tuple[int, ...] = (84, 84, 3),
  num_classes: int = 1,
  width: Annotated[int, Whole(LEAST)] = 32,
  norm: norms.Norm = "group",
  conv: ConvMethod = "auto",
) -> Model:
  """LEAF CNN: four times conv3 w - norm - maxpool2 - relu; average pool to 5 x 5 - dense C.

  Convolutions and pooling have padding 1. On CelebA, w = 32 and one logit: 29,569 parameters.

  Args:
    shape: shape of one example, (height, width, channels).
    num_classes: C, the number of logits.
    width: w, a multiple of 8.
    norm: "group", with w, w/2, w/4 and w/8 groups from the first layer to the fourth, as in the thesis;
      "batch" as in LEAF; or "none".
    conv: convolution algorithm, see `convolution.conv2d`.

  Raises:
    SettingError: `shape` is not an image, or an option is out of range or unknown.
  """
  if width % LEAST:
    raise SettingError("width", width, f"not divisible by {LEAST}", f"Use {width - width % LEAST}.")
  check_image(shape)

  def logits(x: jax.Array, train: bool) -> jax.Array:
    h = x
    for i in range(LAYERS):
      h = Conv(width, (3, 3), 1, 1, False, conv, name=f"conv{i + 1}")(h)
      if norm == "group":
        h = norms.GroupNorm(width >> i, name=f"norm{i + 1}")(h)
      else:
        h = norms.norm(norm, h, train, f"norm{i + 1}")
      h = nn.relu(max_pool2(h, 1))
    return Dense(num_classes, name="fc")(flatten(adaptive_average_pool(h, GRID)))

  return of_flax(logits, shape, num_classes, name="leaf_cnn", head=("fc",))


@model_factory
def femnist_cnn(
  shape: tuple[int, ...] = (28, 28, 1), num_classes: int = 62, hidden: Count = 32, dense: Count = 2048,
  conv: ConvMethod = "auto",
) -> Model:  # fmt: skip
  """FEMNIST CNN, `two_cnn` with a dense layer of width 2,048: 6,603,710 parameters on FEMNIST.

  Args:
    shape: shape of one example, (height, width, channels).
    num_classes: C, the number of logits.
    hidden: channels of the first convolution.
    dense: width of the dense layer.
    conv: convolution algorithm, see `convolution.conv2d`.

  Raises:
    SettingError: see `two_cnn`.
  """
  return two_cnn(shape, num_classes, hidden, conv, dense)._replace(name="femnist_cnn")


_FACES = [
  (rf"features\.{4 * i + j}", f"{layer}{i + 1}")
  for i in range(LAYERS)
  for j, layer in ((0, "conv"), (1, "norm"))
]
_LETTERS = [
  ("features.0", "conv1"),
  ("features.3", "conv2"),
  ("classifier.2", "fc1"),
  ("classifier.4", "fc2"),
]
TORCH = {
  "leaf_cnn": named([*_FACES, (r"classifier\.2", "fc")], {"fc": GRID}),
  "femnist_cnn": named(_LETTERS, {"fc1": OF_LETTERS}),
}
