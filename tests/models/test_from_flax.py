"""A user's own Flax modules: parameters, statistics of real rows, dropout's keys; errors."""

import logging

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

import fedjax_het as fh
from fedjax_het.errors import SettingError
from fedjax_het.models import from_flax, standardized

B, REAL = 6, 4


class Linen(nn.Module):
  """dense - batch norm - relu - dropout - dense."""

  rate: float = 0.5

  @nn.compact
  def __call__(self, x, training):
    h = nn.BatchNorm(not training, momentum=0.9, name="norm")(nn.Dense(5, name="a")(x))
    return nn.Dense(3, name="b")(nn.Dropout(self.rate, deterministic=not training)(nn.relu(h)))


class Nnx(nnx.Module):
  """The same."""

  def __init__(self, *, rate=0.5, rngs):
    self.a, self.b = nnx.Linear(4, 5, rngs=rngs), nnx.Linear(5, 3, rngs=rngs)
    self.norm, self.drop = nnx.BatchNorm(5, momentum=0.9, rngs=rngs), nnx.Dropout(rate, rngs=rngs)

  def __call__(self, x):
    return self.b(self.drop(nnx.relu(self.norm(self.a(x)))))


def module(kind, rate=0.5):
  return Linen(rate) if kind == "linen" else lambda rngs: Nnx(rate=rate, rngs=rngs)


@pytest.fixture(params=["linen", "nnx"])
def kind(request):
  return request.param


x = np.random.default_rng(0).normal(size=(B, 4)).astype(np.float32)
real = jnp.asarray([1.0] * REAL + [0.0] * (B - REAL))


def dense(params, h):
  return h @ np.asarray(params["kernel"], np.float64) + np.asarray(params["bias"], np.float64)


@pytest.mark.slow
def test_training_and_use_are_the_formula(kind):
  """Training normalises by the real rows, use by the statistics, which move by a tenth to the real rows'."""
  model = from_flax(module(kind, rate=0.0), (4,), 3)
  params = jax.jit(model.init)(jax.random.key(1))
  logits, stats = jax.jit(model.train)(params, model.stats, x, real, jax.random.key(2))
  h = dense(params["a"], x.astype(np.float64))
  mean, var = h[:REAL].mean(0), h[:REAL].var(0)
  normed = np.maximum((h - mean) / np.sqrt(var + 1e-5), 0.0)
  np.testing.assert_allclose(logits, dense(params["b"], normed), rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(stats["norm"]["mean"], 0.1 * mean, rtol=1e-4, atol=1e-6)
  np.testing.assert_allclose(stats["norm"]["var"], 0.9 + 0.1 * var, rtol=1e-4)
  used = np.maximum((h - 0.1 * mean) / np.sqrt(0.9 + 0.1 * var + 1e-5), 0.0)
  np.testing.assert_allclose(model.apply(params, x, stats), dense(params["b"], used), rtol=1e-4, atol=1e-5)


def test_rows_that_fill_up_a_batch_are_not_seen(kind):
  model = from_flax(module(kind), (4,), 3)
  params = model.init(jax.random.key(1))
  other = x.copy()
  other[REAL:] = 1e6
  train = jax.jit(model.train)
  (logits, stats), (others, also) = (
    train(params, model.stats, rows, real, jax.random.key(2)) for rows in (x, other)
  )
  np.testing.assert_array_equal(logits[:REAL], others[:REAL])
  chex.assert_trees_all_equal(stats, also)


def test_dropout_draws_from_the_step_s_key(kind):
  model = from_flax(module(kind), (4,), 3)
  params = model.init(jax.random.key(1))
  train = jax.jit(lambda key: model.train(params, model.stats, x, real, key)[0])
  first, again, other = (train(jax.random.key(k)) for k in (2, 2, 3))
  np.testing.assert_array_equal(first, again)
  assert not np.array_equal(first, other)
  np.testing.assert_array_equal(*(model.apply(params, x, model.stats) for _ in range(2)))


def test_parameters_are_drawn_from_the_key_and_map(kind):
  model = from_flax(module(kind), (4,), 3)
  keys = jax.random.split(jax.random.key(0), 3)
  stacked = jax.jit(jax.vmap(model.init))(keys)
  np.testing.assert_array_equal(stacked["a"]["kernel"][1], model.init(keys[1])["a"]["kernel"])
  assert not np.array_equal(stacked["a"]["kernel"][0], stacked["a"]["kernel"][1])
  assert stacked["a"]["kernel"].shape == (3, 4, 5)


def test_an_nnx_instance_keeps_its_parameters_and_draws_dropout_anew(caplog):
  net = Nnx(rngs=nnx.Rngs(0))
  model = from_flax(net, (4,), 3)
  assert "parameters of its own" in caplog.text
  params = model.init(jax.random.key(9))
  np.testing.assert_array_equal(params["a"]["kernel"], net.a.kernel[...])
  train = jax.jit(lambda key: model.train(params, model.stats, x, real, key)[0])
  assert not np.array_equal(train(jax.random.key(2)), train(jax.random.key(3)))
  assert type(net.norm) is nnx.BatchNorm


def test_a_module_without_statistics_needs_none():
  model = from_flax(nn.Dense(3), (4,), 3, name="mine")
  params = model.init(jax.random.key(0))
  assert (model.stats, model.name) == ((), "mine")
  assert model.train is None
  logits, stats = model.in_training(params, (), x, real, jax.random.key(0))
  np.testing.assert_array_equal(logits, model.apply(params, x))
  assert stats == ()


def test_positions_of_an_example_share_its_mask():
  class Positions(nn.Module):
    @nn.compact
    def __call__(self, x, train):
      h = nn.BatchNorm(not train, name="norm")(x.reshape(-1, 2))
      return h.reshape(x.shape[0], -1)

  model = from_flax(Positions(), (2, 2), 4)
  params = model.init(jax.random.key(0))
  rows = x.reshape(B, 2, 2)
  _, stats = model.train(params, model.stats, rows, real, jax.random.key(0))
  np.testing.assert_allclose(stats["norm"]["mean"], 0.01 * rows[:REAL].mean((0, 1)), rtol=1e-4, atol=1e-7)


def test_standardised_in_training_too():
  model = from_flax(Linen(0.0), (4,), 3)
  params = model.init(jax.random.key(0))
  shown = standardized(model, 0.5, 2.0)
  key = jax.random.key(1)
  for ours, wanted in (
    (
      shown.train(params, model.stats, x, real, key),
      model.train(params, model.stats, (x - 0.5) / 2.0, real, key),
    ),
    (shown.apply(params, x, model.stats), model.apply(params, (x - 0.5) / 2.0, model.stats)),
  ):
    chex.assert_trees_all_equal(ours, wanted)


def test_what_is_no_array_of_channels_is_not_standardised():
  model = from_flax(Linen(0.0), (4,), 3)
  for given in ([0.1] * 4, np.full(4, 0.1)):
    assert standardized(model, given, given).name == model.name
    with pytest.raises(SettingError, match=r"mean = .*3 numbers"):
      standardized(model, given[:3])
  with pytest.raises(SettingError, match=r"mean = 0\.5: .* takes a tree of arrays"):
    standardized(model._replace(shape={"a": (4,)}), 0.5)


class Cached(nn.Module):
  @nn.compact
  def __call__(self, x):
    self.variable("cache", "seen", jnp.zeros, (3,))
    return nn.Dense(3)(x)


@pytest.mark.parametrize(
  "wrong, says",
  [
    (Cached(), "cache"),
    (nn.Dense(5), r"\(2, 5\)"),
    (Nnx, "is a class"),
    (3, "no Flax module"),
  ],
)
def test_what_cannot_be_a_model(wrong, says):
  with pytest.raises(SettingError, match=says):
    from_flax(wrong, (4,), 3)


def test_statistics_are_asked_for(kind):
  model = from_flax(module(kind), (4,), 3)
  with pytest.raises(SettingError, match="running statistics"):
    model.apply(model.init(jax.random.key(0)), x)


def test_a_module_that_cannot_be_called_says_with_what():
  class Conv(nn.Module):
    @nn.compact
    def __call__(self, x):
      return nn.Dense(3)(nn.Conv(2, (3, 3))(x).reshape(len(x), -1))

  class Frozen(nn.Module):  # does not say whether it trains
    @nn.compact
    def __call__(self, x):
      return nn.Dense(3)(nn.BatchNorm(use_running_average=False)(x))

  for module, shape in ((Conv(), (4,)), (Frozen(), (4,))):
    with pytest.raises(SettingError, match=rf"{type(module).__name__}.*shape \(4,\).*Error.*Give the shape"):
      from_flax(module, shape, 3)


def test_a_module_whose_mode_is_called_otherwise_says_so(caplog):
  class Net(nn.Module):
    @nn.compact
    def __call__(self, x, is_train=False):
      x = nn.BatchNorm(use_running_average=not is_train)(x)
      return nn.Dense(3)(nn.Dropout(0.5, deterministic=not is_train)(x))

  class Plain(nn.Module):
    @nn.compact
    def __call__(self, x):
      return nn.Dense(3)(x)

  with caplog.at_level(logging.WARNING):
    from_flax(Plain(), (4,), 3)
    assert not caplog.text
    from_flax(Net(), (4,), 3)
  assert "Net is the same in training and in use: no argument of its __call__ (is_train) is" in caplog.text


def test_an_nnx_module_that_keeps_more_is_refused():
  class Net(nnx.Module):
    def __init__(self, rngs):
      self.dense, self.count = nnx.Linear(4, 3, rngs=rngs), nnx.Variable(jnp.zeros(()))

    def __call__(self, x):
      self.count.value += 1
      return self.dense(x)

  with pytest.raises(SettingError, match=r"Net.*keeps Variable.*Only Param and BatchStat"):
    from_flax(lambda rngs: Net(rngs), (4,), 3)


def test_a_bare_module_is_no_model():
  for method in (fh.fedavg, fh.superfed, fh.ditto, fh.fedrep, fh.pfedme):
    with pytest.raises(SettingError, match=r"model = 'Dense'.*from_flax"):
      method(nn.Dense(3))


def test_a_batch_norm_of_a_user_s_own_is_masked_too():
  class Norm(nnx.BatchNorm):
    def __call__(self, x):
      return super().__call__(2.0 * x)

  class Net(nnx.Module):
    def __init__(self, rngs):
      self.norm, self.out = Norm(4, momentum=0.9, rngs=rngs), nnx.Linear(4, 3, rngs=rngs)

    def __call__(self, x):
      return self.out(self.norm(x))

  class ByName(nn.Module):
    @nn.compact
    def __call__(self, x, train):
      return nn.Dense(3)(nn.BatchNorm(not train, momentum=0.9, name="norm")(x=2.0 * x))

  for module in (lambda rngs: Net(rngs), ByName()):
    model = from_flax(module, (4,), 3)
    _, stats = model.train(model.init(jax.random.key(0)), model.stats, x, real, jax.random.key(1))
    np.testing.assert_allclose(stats["norm"]["mean"], 0.2 * x[:REAL].mean(0), rtol=1e-4, atol=1e-6)


def half(kind, **settings):
  if kind == "linen":
    return Drawn(**settings)
  return lambda rngs: nnx.Sequential(nnx.Linear(4, 3, rngs=rngs, **settings), nnx.Dropout(0.5, rngs=rngs))


class Drawn(nn.Module):
  dtype: object = None
  param_dtype: object = jnp.float32

  @nn.compact
  def __call__(self, x, train):
    h = nn.Dense(3, dtype=self.dtype, param_dtype=self.param_dtype)(x)
    return nn.Dropout(0.5, deterministic=not train)(h)


def test_a_module_may_compute_in_other_floats(kind):
  model = from_flax(half(kind, dtype=jnp.bfloat16), (4,), 3)
  params = model.init(jax.random.key(0))
  logits, _ = model.train(params, (), x, real, jax.random.key(1))
  assert model.apply(params, x).dtype == logits.dtype == jnp.float32


def test_parameters_of_other_floats_are_refused(kind):
  with pytest.raises(SettingError, match=r"its .*(kernel|bias) is bfloat16.*param_dtype=jnp\.float32"):
    from_flax(half(kind, param_dtype=jnp.bfloat16), (4,), 3)


def test_whole_number_images_in_a_tree_are_told_by_their_own_remedy():
  class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
      return nn.Dense(3)(x["image"].reshape(len(x["image"]), -1))

  x = {"image": np.arange(12 * 4 * 4).reshape(12, 4, 4, 1)}
  data = fh.data.from_arrays(jax.random.key(0), x, np.arange(12) % 3, num_clients=2, partition="iid")
  model = from_flax(Net(), {"image": (4, 4, 1)}, 3)
  with pytest.raises(SettingError, match=r"^x = 'int32': .*from_flax\(\.\.\., dtype=jnp\.int32\)\.(\n|$)"):
    fh.Engine(fh.federated(fh.fedavg(model)), data, 2, devices=1)
