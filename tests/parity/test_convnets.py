"""Convolutional families beside torchvision's and timm's; the authors' own beside their layers in PyTorch."""

import functools
import itertools

import pytest
import timm
import torchvision.models as theirs
from oracle import compare
from torch import nn
from torchvision.models.efficientnet import EfficientNet, MBConvConfig
from torchvision.models.vgg import make_layers

from fedjax_het import models
from fedjax_het.models.torch_names import of_flattened


def superfed_vgg9(h, classes):
  def stage(*channels):
    return [
      *(
        part
        for i, o in itertools.pairwise(channels)
        for part in (nn.Conv2d(i, o, 3, 1, 1, bias=False), nn.ReLU())
      ),
      nn.MaxPool2d(2),
    ]

  module = nn.Module()
  module.layers = nn.Sequential(
    *stage(1, h), *stage(h, 2 * h), *stage(2 * h, 4 * h, 8 * h), *stage(8 * h, 16 * h, 32 * h)
  )
  module.classifier = nn.Sequential(
    nn.Flatten(), nn.Linear(32 * h, 16 * h, bias=False), nn.ReLU(), nn.Linear(16 * h, classes, bias=False)
  )
  module.forward = lambda x: module.classifier(module.layers(x))
  return module


def superfed_mobilenet(h, classes):
  def norm(c):
    return [nn.BatchNorm2d(c), nn.ReLU()]

  def block(i, o, stride):
    return nn.Sequential(
      nn.Conv2d(i, i, 3, stride, groups=i, bias=False), *norm(i), nn.Conv2d(i, o, 1, bias=False), *norm(o)
    )

  module = nn.Module()
  module.in_conv = nn.Sequential(nn.Conv2d(3, h, 3, 2, 1, bias=False), *norm(h))
  module.layers = nn.Sequential(
    block(h, 2 * h, 1), block(2 * h, 4 * h, 2), block(4 * h, 8 * h, 2), block(8 * h, 16 * h, 1)
  )
  module.classifier = nn.Sequential(
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16 * h, 8 * h, bias=False), nn.ReLU(),
    nn.Linear(8 * h, classes, bias=False),
  )  # fmt: skip
  module.forward = lambda x: module.classifier(module.layers(module.in_conv(x)))
  return module


def narrow_vgg11(h, classes, normed):
  """torchvision's convolutions of h to 8h channels, and dense layers of 64h."""
  stages = (1, "M", 2, "M", 4, 4, "M", 8, 8, "M", 8, 8, "M")
  module = nn.Module()
  module.features = make_layers([h * n if isinstance(n, int) else n for n in stages], normed)
  module.classifier = nn.Sequential(
    nn.Linear(8 * h * 49, 64 * h), nn.ReLU(), nn.Dropout(0.0), nn.Linear(64 * h, 64 * h), nn.ReLU(),
    nn.Dropout(0.0), nn.Linear(64 * h, classes),
  )  # fmt: skip
  pool = nn.AdaptiveAvgPool2d((7, 7))
  module.forward = lambda x: module.classifier(pool(module.features(x)).flatten(1))
  return module


def efficientnet_grid():
  """AAggFF's, which reads a grid of means."""
  module = theirs.efficientnet_b0(dropout=0.0, stochastic_depth_prob=0.0, num_classes=3)
  module.avgpool = nn.AdaptiveAvgPool2d((2, 2))
  module.classifier = nn.Sequential(nn.Dropout(0.0), nn.Linear(4 * 1280, 3))
  return module


def narrow(width):
  """torchvision's B0 with other widths."""
  stages = [(1, 3, 1, 32, 16, 1), (6, 3, 2, 16, 24, 2), (6, 5, 2, 24, 40, 2), (6, 3, 2, 40, 80, 3),
            (6, 5, 1, 80, 112, 3), (6, 5, 2, 112, 192, 4), (6, 3, 1, 192, 320, 1)]  # fmt: skip
  settings = [functools.partial(MBConvConfig, width_mult=width, depth_mult=1.0)(*stage) for stage in stages]
  return EfficientNet(settings, 0.0, 0.0, 5)


OFF = {"dropout": 0.0}
STILL = {**OFF, "drop_path": 0.0}
CASES = {
  "vgg9": ((28, 28, 1), 6, {"width": 4}, lambda: superfed_vgg9(4, 6)),
  "vgg11": ((64, 40, 3), 5, {**OFF, "width": 4}, lambda: narrow_vgg11(4, 5, False)),
  "vgg11 normed": ((40, 40, 3), 5, {**OFF, "width": 4, "norm": "batch"}, lambda: narrow_vgg11(4, 5, True)),
  "squeezenet": ((60, 61, 3), 5, OFF, lambda: theirs.squeezenet1_0(num_classes=5, dropout=0.0)),
  "squeezenet 1.1": (
    (60, 61, 3), 5, {**OFF, "version": "1.1"},
    lambda: theirs.squeezenet1_1(num_classes=5, dropout=0.0),
  ),
  "mobilenet": ((41, 40, 3), 6, {"width": 8}, lambda: superfed_mobilenet(8, 6)),
  "mobilenet_v2": (
    (64, 45, 3), 5, {**OFF, "width": 0.5},
    lambda: theirs.mobilenet_v2(num_classes=5, width_mult=0.5, dropout=0.0),
  ),
  "mobilenet_v3_small": (
    (64, 45, 3), 5, OFF, lambda: theirs.mobilenet_v3_small(num_classes=5, dropout=0.0)
  ),
  "efficientnet_b0": ((64, 45, 3), 5, {**STILL, "width": 0.5}, lambda: narrow(0.5)),
  "efficientnet_b0 of a grid": ((64, 64, 3), 3, {**STILL, "grid": 2}, efficientnet_grid),
  "efficientnet_lite0": (
    (64, 45, 3), 5, STILL, lambda: timm.create_model("efficientnet_lite0", num_classes=5)
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
