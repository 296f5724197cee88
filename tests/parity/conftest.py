"""PyTorch's own models as the oracle, in an environment of their own: see `.ci/parity`.

torchvision has CPU builds only beside PyTorch's own index. Its models need none of its compiled operators,
but its import wants two of them declared.
"""

import jax
import pytest
import torch

LIBRARY = torch.library.Library("torchvision", "FRAGMENT")
for _name in ("nms", "qnms"):
  if not hasattr(torch.ops.torchvision, _name):
    LIBRARY.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


@pytest.fixture(scope="module", autouse=True)
def compiler():
  """The values of many small programs, in float64: least optimised."""
  jax.config.update("jax_disable_most_optimizations", True)
  with jax.enable_x64(True):
    yield
