"""ResNets beside torchvision's, and those that are not there beside their papers in PyTorch's layers."""

import pytest
from oracle import compare
from originals import ResNet9, resnet20, theirs

from fedjax_het.models.zoo import resnets


def test_resnet18():
  compare(resnets.resnet18((40, 40, 3), 7), theirs.resnet18(num_classes=7), resnets.TORCH["resnet18"])


def test_resnet20():
  compare(resnets.resnet20((16, 16, 3), 10), resnet20(10), resnets.TORCH["resnet20"])


@pytest.mark.parametrize("skip", [True, False])
def test_resnet9(skip):
  model = resnets.resnet9((28, 28, 3), 5, width=16, skip=skip)
  compare(model, ResNet9(5, 16, skip), resnets.TORCH["resnet9"])
