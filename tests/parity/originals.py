"""Networks in PyTorch: those of torchvision and timm, and, where these lack them, written with its layers.

torchvision has CPU builds only beside PyTorch's own index. Its models need none of its compiled operators,
but its import wants two of them declared: import this file before it.
"""

import functools
import itertools

import torch
from torch import nn

LIBRARY = torch.library.Library("torchvision", "FRAGMENT")
for _name in ("nms", "qnms"):
  if not hasattr(torch.ops.torchvision, _name):
    LIBRARY.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

import torchvision.models as theirs  # noqa: E402
from torchvision.models.efficientnet import EfficientNet, MBConvConfig  # noqa: E402
from torchvision.models.resnet import BasicBlock, ResNet  # noqa: E402
from torchvision.models.vgg import make_layers  # noqa: E402


class Pad(nn.Module):
  """Option A of He et al. 2016: every second pixel, zeros for the other channels."""

  def forward(self, x):
    return nn.functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, x.shape[1] // 2, x.shape[1] // 2))


def resnet20(classes):
  """CIFAR-10's of He et al. 2016, section 4.2."""
  module = ResNet(BasicBlock, [1, 1, 1, 1], num_classes=classes)
  module.conv1, module.bn1, module.maxpool = (
    nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.Identity(),
  )  # fmt: skip
  stages = []
  for i, planes in enumerate((16, 32, 64)):
    first = BasicBlock(planes // 2, planes, 2, Pad()) if i else BasicBlock(16, 16)
    stages.append(nn.Sequential(first, BasicBlock(planes, planes), BasicBlock(planes, planes)))
  module.layer1, module.layer2, module.layer3 = stages
  module.layer4, module.fc = nn.Identity(), nn.Linear(64, classes)
  return module


class Block(nn.Module):
  """SuperFed's: adds a downsampled input where there is one; x itself only where told."""

  def __init__(self, inputs, planes, stride, skip):
    super().__init__()
    self.module = nn.Sequential(
      nn.Conv2d(inputs, planes, 3, stride, 1, bias=False), nn.BatchNorm2d(planes), nn.ReLU(),
      nn.Conv2d(planes, planes, 3, 1, 1, bias=False), nn.BatchNorm2d(planes),
    )  # fmt: skip
    self.downsample = None
    if inputs != planes:
      self.downsample = nn.Sequential(
        nn.Conv2d(inputs, planes, 1, stride, bias=False), nn.BatchNorm2d(planes)
      )
    self.skip = skip

  def forward(self, x):
    h = self.module(x)
    if self.downsample is not None:
      h = h + self.downsample(x)
    elif self.skip:
      h = h + x
    return torch.relu(h)


class ResNet9(nn.Module):
  def __init__(self, classes, h, skip):
    super().__init__()
    self.in_conv = nn.Sequential(nn.Conv2d(3, h, 3, 2, 1, bias=False), nn.BatchNorm2d(h), nn.ReLU())
    self.layer1 = nn.Sequential(Block(h, h, 1, skip))
    self.layer2 = nn.Sequential(Block(h, 2 * h, 1, skip))
    self.layer3 = nn.Sequential(Block(2 * h, 4 * h, 2, skip))
    self.layer4 = nn.Sequential(Block(4 * h, 8 * h, 2, skip))
    self.classifier = nn.Sequential(
      nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * h, 4 * h, bias=False), nn.ReLU(),
      nn.Linear(4 * h, classes, bias=False),
    )  # fmt: skip

  def forward(self, x):
    h = nn.functional.max_pool2d(self.in_conv(x), 3, 2, 1)
    return self.classifier(self.layer4(self.layer3(self.layer2(self.layer1(h)))))


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


class SimpleCNN(nn.Module):
  """The authors' of SosicFL."""

  def __init__(self, classes, hidden=64):
    super().__init__()
    self.features = nn.Sequential(
      nn.Conv2d(3, hidden, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.LocalResponseNorm(9, 0.001),
      nn.Conv2d(hidden, hidden, 5, padding=2), nn.ReLU(), nn.LocalResponseNorm(9, 0.001),
      nn.MaxPool2d(3, 2, 1), nn.AdaptiveAvgPool2d(6), nn.Flatten(),
    )  # fmt: skip
    self.classifier = nn.Sequential(
      nn.Linear(36 * hidden, 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU(), nn.Linear(192, classes)
    )

  def forward(self, x):
    return self.classifier(self.features(x))
