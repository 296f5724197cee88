"""Batch normalisation against its formula in NumPy: in training, in use, and of a batch that is filled up."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from fedjax_het.errors import SettingError
from fedjax_het.models import from_flax
from fedjax_het.models.layers.basic import Conv, Dense
from fedjax_het.models.layers.norms import BatchNorm, GroupNorm, norm
from fedjax_het.models.layers.real_rows import only

rng = np.random.default_rng(0)
x = rng.normal(2.0, 3.0, (5, 3, 2, 4)).astype(np.float32)
real = jnp.asarray([1.0, 1.0, 1.0, 0.0, 0.0])
VARIABLES = {
  "params": {"scale": jnp.arange(1.0, 5.0), "bias": jnp.arange(4.0)},
  "batch_stats": {"mean": jnp.arange(4.0) / 2, "var": jnp.arange(2.0, 6.0)},
}


def formula(x, mean, var):
  return (x - mean) / np.sqrt(var + 1e-5) * np.arange(1.0, 5.0) + np.arange(4.0)


@pytest.mark.parametrize("rows", [5, 3])
def test_training_is_the_formula_of_the_real_rows(rows):
  x_of = x if rows == 5 else x + 1e6 * (1 - real)[:, None, None, None]
  with only(real if rows == 3 else jnp.ones(5)):
    y, changed = BatchNorm(0.8).apply(VARIABLES, x_of, True, mutable=["batch_stats"])
  own = x[:rows].astype(np.float64).reshape(-1, 4)
  np.testing.assert_allclose(y[:rows], formula(x[:rows], own.mean(0), own.var(0)), rtol=1e-4, atol=1e-4)
  stats = changed["batch_stats"]
  np.testing.assert_allclose(stats["mean"], 0.8 * np.arange(4) / 2 + 0.2 * own.mean(0), rtol=1e-5)
  np.testing.assert_allclose(stats["var"], 0.8 * np.arange(2, 6) + 0.2 * own.var(0, ddof=1), rtol=1e-5)


def test_use_is_the_formula_of_the_running_statistics():
  np.testing.assert_allclose(
    BatchNorm().apply(VARIABLES, x), formula(x, np.arange(4) / 2, np.arange(2, 6)), rtol=1e-5, atol=1e-5
  )


def test_gradients_are_flax_s_and_those_of_fillers_nothing():
  def loss(module, masked):
    def of(params, x):
      with only(real):
        given = dict(mask=(real > 0)[:, None, None, None]) if masked else {}
        y, _ = module.apply({**VARIABLES, "params": params}, x, mutable=["batch_stats"], **given)
      return (jnp.sin(y) * real[:, None, None, None]).sum()

    return jax.jit(jax.grad(of, (0, 1)))(VARIABLES["params"], x)

  class Training(nn.Module):
    @nn.compact
    def __call__(self, x):
      layer = BatchNorm(parent=None)
      return layer.apply({"params": self.variables["params"], **self.variables}, x, True, mutable=True)[0]

  ours, wanted = loss(Training(), False), loss(nn.BatchNorm(False, epsilon=1e-5), True)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4), ours, wanted)
  assert not ours[1][3:].any() and ours[1][:3].any()


def test_one_value_a_channel_is_finite():
  with only(jnp.zeros(1).at[0].set(1.0)):
    y, changed = BatchNorm().apply(VARIABLES, x[:1, :1, :1], True, mutable=["batch_stats"])
  np.testing.assert_allclose(y[0, 0, 0], np.arange(4.0), atol=1e-6)
  assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(changed))


class Net(nn.Module):
  kind: str

  @nn.compact
  def __call__(self, x, train: bool = False):
    h = norm(self.kind, Conv(12, (3, 3), name="conv")(x), train, "norm")
    return Dense(2, name="fc")(nn.relu(h).mean((1, 2)))


@pytest.mark.slow
def test_a_model_by_either_norm():
  images = rng.normal(size=(4, 6, 6, 1)).astype(np.float32)
  batch, group = (from_flax(Net(kind), (6, 6, 1), 2) for kind in ("batch", "group"))
  assert jax.tree.map(jnp.shape, batch.stats) == {"norm": {"mean": (12,), "var": (12,)}}
  assert group.stats == ()
  params = group.init(jax.random.key(0))
  h = Conv(12, (3, 3)).apply({"params": params["conv"]}, images)
  h = nn.relu(GroupNorm(3).apply({"params": params["norm"]}, h)).mean((1, 2))
  wanted = h @ params["fc"]["kernel"] + params["fc"]["bias"]
  np.testing.assert_allclose(group.apply(params, images), wanted, rtol=1e-4, atol=1e-4)
  logits, stats = batch.train(params, batch.stats, images, jnp.ones(4), jax.random.key(0))
  assert float(stats["norm"]["var"][0]) != 1.0 and logits.shape == (4, 2)
  with pytest.raises(SettingError, match="Did you mean 'batch'"):
    from_flax(Net("bach"), (6, 6, 1), 2)
