"""InceptionV3 against torchvision where it is at hand, and its weights file."""

import jax
import numpy as np
import pytest
from pictures import scrambled

from fedjax_het.errors import DataError
from fedjax_het.studies.inception import PARTS, inception_features, layers, pool, read_weights


def test_the_layers_are_94_convolutions():
  names = layers()
  assert len(names) == len(set(names)) == 94
  assert names[5] == "Mixed_5b.branch1x1" and names[-1] == "Mixed_7c.branch_pool"


def test_pooling_by_hand():
  x = np.arange(25.0, dtype=np.float32).reshape(1, 5, 5, 1)
  np.testing.assert_array_equal(pool(x, "max")[0, :, :, 0], [[12, 14], [22, 24]])
  averaged = np.asarray(pool(x, "avg"))[0, :, :, 0]
  assert averaged.shape == (5, 5)
  assert averaged[2, 2] == 12.0
  assert averaged[0, 0] == pytest.approx((0 + 1 + 5 + 6) / 9)


def test_a_file_that_is_something_else(tmp_path):
  with pytest.raises(DataError, match=r"none.npz: no such file"):
    read_weights(tmp_path / "none.npz")
  (tmp_path / "torn.npz").write_bytes(b"PK\x03\x04torn")
  with pytest.raises(DataError, match=r"torn.npz cannot be read"):
    read_weights(tmp_path / "torn.npz", names_only=True)
  scrambled(tmp_path / "torn.npz", {f"{name}.{part}": np.zeros(9) for name in layers() for part in PARTS})
  with pytest.raises(DataError, match=r"torn.npz cannot be read"):
    read_weights(tmp_path / "torn.npz")
  others = {f"{name}.{part}": np.zeros(1) for name in layers()[1:] for part in PARTS}
  np.savez(tmp_path / "half.npz", **others)
  with pytest.raises(DataError, match=r"5 arrays are missing, the first is Conv2d_1a_3x3.conv.weight"):
    read_weights(tmp_path / "half.npz")


@pytest.mark.slow
def test_features_are_torchvisions(tmp_path):
  torch = pytest.importorskip("torch", reason="the oracle needs PyTorch")
  torchvision = pytest.importorskip("torchvision", reason="the oracle needs torchvision")
  torch.manual_seed(0)
  network = torchvision.models.inception_v3(weights=None, init_weights=False).eval()
  for name, buffer in network.named_buffers():
    if name.endswith("running_mean"):
      buffer.copy_(0.05 * torch.randn_like(buffer))
    if name.endswith("running_var"):
      buffer.copy_(0.5 * torch.rand_like(buffer) + 0.02)
  found = {}
  network.avgpool.register_forward_hook(lambda module, given, value: found.update(value=value.flatten(1)))
  x = torch.rand(2, 3, 32, 32)
  with torch.no_grad():
    network(2 * torch.nn.functional.interpolate(x, (299, 299), mode="bilinear") - 1)
  np.savez(tmp_path / "weights.npz", **{name: value.numpy() for name, value in network.state_dict().items()})
  weights = read_weights(tmp_path / "weights.npz")
  features = jax.jit(lambda x: inception_features(weights, x))(x.permute(0, 2, 3, 1).numpy())
  np.testing.assert_allclose(features, found["value"].numpy(), rtol=1e-4, atol=1e-5)
