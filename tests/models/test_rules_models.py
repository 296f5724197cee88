"""Rules of weights in files and of norms, a rule a test."""

import json
import struct

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from fedjax_het import models
from fedjax_het.errors import DataError, SettingError
from fedjax_het.models.layers.norms import norm
from fedjax_het.models.weights.files import read_arrays


@pytest.mark.parametrize("shape", [(5, 3), (15,), (1, 3, 5)])
def test_a_kernel_of_another_shape_and_as_many_numbers_is_refused(tmp_path, shape):
  init = models.make("two_nn", (3,), 4, hidden=5).init
  params = jax.tree.map(lambda leaf: np.ones(leaf.shape, leaf.dtype), jax.eval_shape(init, jax.random.key(0)))
  params["fc1"]["kernel"] = params["fc1"]["kernel"].reshape(shape)
  models.save_weights(tmp_path / "other.npz", params)
  with pytest.raises(SettingError, match=r"it has other shapes of params/fc1/kernel \(.*\), not \(3, 5\)"):
    models.make("two_nn", (3,), 4, hidden=5, weights=str(tmp_path / "other.npz"))


@pytest.mark.parametrize("keep", [0, 8, 15])
def test_a_safetensors_that_is_cut_says_which_array_is_not_whole(tmp_path, keep):
  path, numbers = tmp_path / "cut.safetensors", np.arange(4, dtype=np.float32)
  header = {"one": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, numbers.nbytes]}}
  text = json.dumps(header).encode()
  content = struct.pack("<Q", len(text)) + text + numbers.tobytes()
  path.write_bytes(content)
  np.testing.assert_array_equal(read_arrays(path)["one"], numbers.reshape(2, 2))
  cut = len(content) - numbers.nbytes + keep
  path.write_bytes(content[:cut])
  with pytest.raises(
    DataError, match=rf"one, F32 \[2, 2\], lies at the bytes \[0, 16\] of {keep}, and takes 16"
  ):
    read_arrays(path)


def test_module_stays_where_it_is_not_before_every_name(tmp_path):
  for others, names in (((), {"weight"}), (("head.bias",), {"module.weight", "head.bias"})):
    np.savez(tmp_path / "a.npz", **dict.fromkeys(("module.weight", *others), np.ones(2)))
    assert {*read_arrays(tmp_path / "a.npz")} == names


class Grouped(nn.Module):
  @nn.compact
  def __call__(self, x):
    return norm("group", x, False, "norm")


@pytest.mark.parametrize(("channels", "size"), [(16, 8), (12, 4)])
def test_groups_are_of_eight_channels_or_the_most_that_divide_both(channels, size):
  x = np.random.default_rng(0).normal(2.0, np.arange(1, channels + 1), (2, 3, 2, channels))
  params = {"norm": {"scale": jnp.ones(channels), "bias": jnp.zeros(channels)}}
  found = Grouped().apply({"params": params}, jnp.asarray(x, jnp.float32))
  groups = x.reshape(2, 6, channels // size, size)
  mean, var = (of(groups, axis=(1, 3), keepdims=True) for of in (np.mean, np.var))
  wanted = (groups - mean) / np.sqrt(var + 1e-5)
  np.testing.assert_allclose(found, wanted.reshape(x.shape), rtol=1e-4, atol=1e-4)
