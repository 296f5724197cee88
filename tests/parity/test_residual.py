"""ResNets beside torchvision's, and those that are not there beside their papers in PyTorch's layers."""

import pytest
import torch
from oracle import compare
from torch import nn
from torchvision.models.resnet import BasicBlock as Theirs
from torchvision.models.resnet import ResNet

from fedjax_het.models import residual


def test_resnet18():
  module = ResNet(Theirs, [2, 2, 2, 2], num_classes=7)
  compare(residual.resnet18((40, 40, 3), 7), module, residual.TORCH["resnet18"])


class Pad(nn.Module):
  """Option A of He et al. 2016: every second pixel, zeros for the other channels."""

  def forward(self, x):
    return nn.functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, x.shape[1] // 2, x.shape[1] // 2))


def test_resnet20():
  module = ResNet(Theirs, [1, 1, 1, 1], num_classes=10)
  module.conv1, module.bn1, module.maxpool = (
    nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.Identity(),
  )  # fmt: skip
  stages = []
  for i, planes in enumerate((16, 32, 64)):
    first = Theirs(planes // 2, planes, 2, Pad()) if i else Theirs(16, 16)
    stages.append(nn.Sequential(first, Theirs(planes, planes), Theirs(planes, planes)))
  module.layer1, module.layer2, module.layer3 = stages
  module.layer4, module.fc = nn.Identity(), nn.Linear(64, 10)
  compare(residual.resnet20((16, 16, 3), 10), module, residual.TORCH["resnet20"])


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


@pytest.mark.parametrize("skip", [True, False])
def test_resnet9(skip):
  model = residual.resnet9((28, 28, 3), 5, width=16, skip=skip)
  compare(model, ResNet9(5, 16, skip), residual.TORCH["resnet9"])
