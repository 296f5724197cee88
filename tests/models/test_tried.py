"""A module that cannot be trained is refused when it is taken; other streams of random numbers work."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

import fedjax_het as fh
from fedjax_het.clients.energies import energy_gradient

KEY = jax.random.key(0)


def module(body):
  class Net(nn.Module):
    __call__ = nn.compact(body)

  return Net()


def two(x):
  return nn.Dense(3, name="a")(x), nn.Dense(3, name="b")(x)


def counted(self, x, train):
  if train:
    self.variable("counts", "steps", lambda: jnp.zeros(())).value += 1
  return nn.Dense(3)(x)


def normalised(self, x, train):
  h = nn.Dense(3)(x)
  return nn.BatchNorm(use_running_average=False)(h) if train else h


REFUSED = {
  "axis_name": (
    lambda self, x, train: nn.Dense(3)(nn.BatchNorm(use_running_average=not train, axis_name="batch")(x)),
    "unbound axis name.*Leave axis_name out",
  ),
  "auxiliary outputs": (
    lambda self, x, train: two(x) if train else two(x)[0], r"\(2, 3\)\) in training and \(2, 3\) in use"
  ),
  "another shape": (
    lambda self, x, train: nn.Dense(3)(x)[:, : 2 if train else 3], r"makes \(2, 2\) in training"
  ),
  "another collection": (counted, "cannot be trained.*Keep nothing but parameters|other collections"),
  "layers in training only": (
    lambda self, x, train: nn.Dense(3)(nn.Dense(4, name="more")(x)) if train else nn.Dense(3)(x),
    "cannot be trained",
  ),
  "statistics in training only": (normalised, "cannot be trained"),
  "no gradient": (
    lambda self, x, train: jax.lax.while_loop(lambda h: h.sum() < 0, lambda h: h + 1, nn.Dense(3)(x)),
    "cannot be trained.*differentiated",
  ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_a_module_that_cannot_be_trained_is_refused(what):
  body, said = REFUSED[what]
  with pytest.raises(fh.SettingError, match=rf"module = 'Net': .*{said}"):
    fh.models.from_flax(module(body), (4,), 3)


class Nnx(nnx.Module):
  def __init__(self, rngs, axis_name=None, stream="dropout"):
    self.layer = nnx.Linear(4, 3, rngs=rngs)
    self.norm = nnx.BatchNorm(3, rngs=rngs, axis_name=axis_name)
    self.drop = nnx.Dropout(0.5, rngs=rngs, rng_collection=stream)

  def __call__(self, x):
    return self.drop(self.norm(self.layer(x)))


def test_a_module_of_nnx_is_tried_too():
  with pytest.raises(fh.SettingError, match=r"cannot be trained.*axis_name"):
    fh.models.from_flax(lambda rngs: Nnx(rngs, "batch"), (4,), 3)


def streams(self, x, train):
  h = nn.Dropout(0.5, rng_collection="drop_path")(jnp.ones((len(x), 64)), deterministic=not train)
  g = nn.Dropout(0.5)(jnp.ones((len(x), 64)), deterministic=not train)
  return jnp.concatenate([h, g], 1)


def other(h, **mode):
  return nn.Dropout(0.5, rng_collection="drop_path")(h, **mode)


@pytest.mark.parametrize(
  "net",
  [
    module(
      lambda self, x, train: nn.Dropout(0.5, rng_collection="drop_path")(
        nn.Dense(3)(x), deterministic=not train
      )
    ),
    lambda rngs: Nnx(rngs, stream="drop_path"),
  ],
)
def test_dropout_of_another_stream_drops_in_training_only(net):
  model = fh.models.from_flax(net, (4,), 3)
  params, x = model.init(KEY), jnp.ones((8, 4))
  draw = lambda key: model.in_training(params, model.stats, x, jnp.ones(8), key)[0]  # noqa: E731
  first, again, other = draw(KEY), draw(KEY), draw(jax.random.key(1))
  assert np.array_equal(first, again) and not np.array_equal(first, other)
  used = model.apply(params, x, model.stats) if model.stateful else model.apply(params, x)
  assert np.array_equal(used[0], used[1])  # nothing is dropped


def test_two_streams_draw_apart_and_dropout_draws_as_before():
  net = module(streams)
  model = fh.models.from_flax(net, (4,), 128)
  params = model.init(KEY)
  found = model.in_training(params, (), jnp.ones((8, 4)), jnp.ones(8), KEY)[0]
  assert not np.array_equal(found[:, :64] > 0, found[:, 64:] > 0)
  alone = net.apply(
    {"params": {}}, jnp.ones((8, 4)), True, rngs={"dropout": KEY, "drop_path": jax.random.key(5)}
  )
  np.testing.assert_array_equal(found[:, 64:], alone[:, 64:])


@pytest.mark.slow
def test_a_module_of_several_streams_trains():
  def body(self, x, train):
    h = nn.Dropout(0.1, rng_collection="drop_path")(nn.Dense(8)(x), deterministic=not train)
    return nn.Dense(3)(nn.Dropout(0.1)(h, deterministic=not train))

  x, y = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32), np.arange(30) % 3
  data = fh.data.from_arrays(KEY, x, y, num_clients=2)
  algorithm = fh.federated(fh.fedavg(fh.models.from_flax(module(body), (4,), 3), epochs=1))
  assert np.isfinite(fh.run(algorithm, data, rounds=1, cohort_size=2, key=KEY).infos.clients.loss).all()


# Models made by hand, whose examples nobody knows before they are trained.


def by_hand(apply, train=None, stats=()):
  return fh.Model(
    lambda key: {"w": jnp.ones((2, 3))}, apply, "by_hand", num_classes=3, train=train, stats=stats
  )


def linear(params, x, stats=None):
  return x @ params["w"]


def wrong(params, stats, x, real, key):
  raise RuntimeError("no such layer")


BY_HAND = {
  "raises": (by_hand(linear, wrong), r"RuntimeError: no such layer\)\. Mend it"),
  "another shape": (
    by_hand(linear, lambda params, stats, x, real, key: (x @ params["w"][:, :2, None], stats)),
    r"makes \(2, 5, 1\) in training and \(5, 3\) in use, of the same batch",
  ),
  "too few": (
    by_hand(linear, lambda params, stats, x, real, key: (x @ params["w"][:, :2], stats)),
    r"makes \(5, 2\) in training and \(5, 3\) in use",
  ),
  "no gradient": (
    by_hand(lambda params, x: jax.lax.while_loop(lambda h: h.sum() < 0, lambda h: h + 1, x @ params["w"])),
    r"cannot be trained \(ValueError: Reverse-mode differentiation does not work.*differentiated",
  ),
  "other statistics": (
    by_hand(linear, lambda p, stats, x, real, key: (x @ p["w"], {"m": x.mean(0)[:1]}), {"m": np.zeros(2)}),
    r"statistics become \{'m': \(1,\)\} in training, and are \{'m': \(2,\)\}",
  ),
}


@pytest.mark.parametrize("why", BY_HAND)
@pytest.mark.parametrize("method", [fh.fedavg, fh.superfed])
def test_a_model_by_hand_that_cannot_be_trained_is_refused(why, method):
  model, said = BY_HAND[why]
  data = fh.data.from_arrays(KEY, np.ones((12, 2), np.float32), np.arange(12) % 3, num_clients=2)
  with pytest.raises(fh.SettingError, match=f"model = 'by_hand': .*{said}"):
    fh.run(fh.federated(method(model, batch_size=6)), data, rounds=1, cohort_size=2, key=KEY, devices=1)


def test_a_model_by_hand_whose_inputs_have_no_gradient_is_refused_by_fedevg():
  apply = lambda params, x: jax.lax.while_loop(lambda h: h.sum() < 0, lambda h: h + 1, x @ params["w"])  # noqa: E731
  with pytest.raises(fh.SettingError, match="model = 'by_hand': cannot be trained"):
    energy_gradient(by_hand(apply), {"w": jnp.ones((2, 3))}, jnp.ones((4, 2)), jnp.zeros(4, int))
