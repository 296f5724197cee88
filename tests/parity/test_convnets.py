"""Convolutional families beside torchvision's and timm's; the authors' own beside their layers in PyTorch."""

import originals
import pytest
import timm
from oracle import compare
from originals import theirs

from fedjax_het import models
from fedjax_het.models.weights.torch_names import of_flattened

OFF = {"dropout": 0.0}
STILL = {**OFF, "drop_path": 0.0}
CASES = {
  "vgg9": ((28, 28, 1), 6, {"width": 4}, lambda: originals.superfed_vgg9(4, 6)),
  "vgg11": ((64, 40, 3), 5, {**OFF, "width": 4}, lambda: originals.narrow_vgg11(4, 5, False)),
  "vgg11 normed": (
    (40, 40, 3), 5, {**OFF, "width": 4, "norm": "batch"}, lambda: originals.narrow_vgg11(4, 5, True)
  ),
  "squeezenet": ((60, 61, 3), 5, OFF, lambda: theirs.squeezenet1_0(num_classes=5, dropout=0.0)),
  "squeezenet 1.1": (
    (60, 61, 3), 5, {**OFF, "version": "1.1"},
    lambda: theirs.squeezenet1_1(num_classes=5, dropout=0.0),
  ),
  "mobilenet": ((41, 40, 3), 6, {"width": 8}, lambda: originals.superfed_mobilenet(8, 6)),
  "mobilenet_v2": (
    (64, 45, 3), 5, {**OFF, "width": 0.5},
    lambda: theirs.mobilenet_v2(num_classes=5, width_mult=0.5, dropout=0.0),
  ),
  "mobilenet_v3_small": (
    (64, 45, 3), 5, OFF, lambda: theirs.mobilenet_v3_small(num_classes=5, dropout=0.0)
  ),
  "efficientnet_b0": ((64, 45, 3), 5, {**STILL, "width": 0.5}, lambda: originals.narrow(0.5)),
  "efficientnet_b0 of a grid": ((64, 64, 3), 3, {**STILL, "grid": 2}, originals.efficientnet_grid),
  "efficientnet_lite0": (
    (64, 45, 3), 5, STILL, lambda: timm.create_model("efficientnet_lite0", num_classes=5)
  ),
  "efficientnet_lite0 of TensorFlow": (  # its SAME parts even sides from odd ones
    (64, 45, 3), 5, {**STILL, "same": True},
    lambda: timm.create_model("tf_efficientnet_lite0", num_classes=5),
  ),
  "mobilevit": (  # sides of 8, 4 and 2, and of 9, 5 and 3
    (64, 65, 3), 5, OFF, lambda: timm.create_model("mobilevit_xxs", num_classes=5)
  ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_family(case):
  shape, classes, options, module = CASES[case]
  name = case.split()[0]
  reader = models.reader_of(name)
  model = models.MODELS[name](shape, classes, **options)
  compare(model, module(), of_grid(reader) if "grid" in case else reader)


def of_grid(reader):
  """The reader of a dense layer behind a grid."""

  def read(state):
    params, stats = reader(state)
    params["fc"]["kernel"] = of_flattened(state["classifier.1.weight"], (2, 2))
    return params, stats

  return read
