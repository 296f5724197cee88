"""Bytes with a scale train and are judged as the floats that they stand for, wherever examples are read."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

import fedjax_het as fh
from fedjax_het.clients.objective import training_loss
from fedjax_het.data.files import Source
from fedjax_het.data.scale import as_read, scale_of
from fedjax_het.data.sources import resized
from fedjax_het.experiment.dry_run import step_flops
from fedjax_het.studies import downstream as judge
from fedjax_het.studies import synthetic

KEY = jax.random.key(0)
SIZES = (9, 2, 5, 7, 3)
ROWS = np.random.default_rng(0).integers(0, 9, (sum(SIZES), 4), np.uint8)
MODEL = fh.models.logistic_regression((4,), 3)
SETTINGS = {"rounds": 2, "cohort_size": 3}


def clients(x, scale):
  parts = np.split(np.arange(len(x)), np.cumsum(SIZES)[:-1])
  return fh.federate(x, ROWS.sum(1) % 3, parts, KEY, num_classes=3, scale=scale)


BYTES, FLOATS = clients(ROWS, 0.5), clients(ROWS.astype(np.float32) * 0.5, None)


def make(lr=0.1):
  return fh.federated(fh.fedavg(MODEL, lr=lr, epochs=1, batch_size=2), fh.mixing.qffl())


@pytest.fixture(scope="module")
def floats():
  return fh.run(make(), FLOATS, key=KEY, devices=1, **SETTINGS)


@pytest.mark.slow
@pytest.mark.parametrize(
  "where",
  [
    {"devices": 1, "client_batch": 2},
    {"devices": 2, "client_batch": 1},  # clients are cut between devices
    {"devices": 1, "device_rows": 40},
  ],
)
def test_bytes_train_as_the_floats_they_stand_for(where, floats):
  found = fh.run(make(), BYTES, key=KEY, **SETTINGS, **where)
  np.testing.assert_allclose(found.infos.clients.loss, floats.infos.clients.loss, rtol=1e-5)
  np.testing.assert_allclose(found.infos.losses, floats.infos.losses, rtol=1e-5)
  np.testing.assert_allclose(found.clients["global"]["loss"], floats.clients["global"]["loss"], rtol=1e-5)


@pytest.mark.slow
def test_members_of_a_sweep_read_bytes_alike(floats):
  found = fh.sweep(make, {"lr": [0.1]}, seeds=KEY[None], data=[BYTES], devices=1, **SETTINGS)
  np.testing.assert_allclose(found.infos.clients.loss[0], floats.infos.clients.loss, rtol=1e-5)
  np.testing.assert_allclose(found.history[2].global_["loss"][0], floats.clients["global"]["loss"], rtol=1e-5)


def test_features_of_0_and_1_are_not_divided():
  """Also by a model that multiplies whole numbers and cannot be differentiated by them."""
  model = fh.models.two_nn((4,), 3, hidden=4)
  params = model.init(KEY)
  for data in (clients(ROWS % 2, None), clients((ROWS % 2).astype(np.float32), None)):
    view = data.clients(jax.numpy.array(0))
    found = training_loss(model, params, view)
    x, y = (np.asarray(leaf)[data.train.rows(np.array([0]))] for leaf in (data.x, data.y))
    logits = np.asarray(model.apply(params, x.astype(np.float32)), np.float64)
    wanted = (np.log(np.exp(logits).sum(1)) - logits[np.arange(len(y)), y]).mean()
    assert float(found) == pytest.approx(wanted, rel=1e-5)


def test_only_images_have_a_scale_of_their_own():
  assert scale_of(np.zeros((5, 4), np.uint8), None) == 1.0
  assert scale_of(np.zeros((5, 4, 4), np.uint8), None) == 1 / 255
  assert scale_of(np.zeros((5, 4, 4), np.int32), None) is None
  assert as_read(np.full((1, 1, 1), 255, np.uint8), None).max() == 1.0


@pytest.mark.slow
@pytest.mark.parametrize(("scale", "most"), [(None, 1.0), (1 / 51, 5.0)])
def test_the_judge_of_synthetic_bytes_reads_the_same_floats(monkeypatch, scale, most):
  """The judge's network sees real rows as clients do, and synthetic ones within their bounds."""
  rng = np.random.default_rng(1)
  x, y = rng.integers(0, 256, (40, 4, 4, 1), np.uint8), np.arange(40) % 2
  source = fh.data.Source(x, y, x[:6], y[:6], 2, "bytes", scale=scale)
  data = fh.federate(x, y, [np.arange(20), np.arange(20, 40)], KEY, num_classes=2, scale=scale)
  seen = []

  def downstream(key, model, x, y):
    jax.debug.callback(lambda x: seen.append(np.asarray(x)), x)
    return model.init(key), 0.0

  def first(rng, real, y):
    rows = np.concatenate([np.flatnonzero(real[1] == c)[:4] for c in range(2)])
    return real[0][rows], real[1][rows]

  monkeypatch.setattr(judge, "downstream", downstream)
  monkeypatch.setattr(synthetic, "as_many", first)
  made = rng.uniform(-3, 9, (8, 4, 4, 1)).astype(np.float32)
  found = synthetic.worth({}, source, data, KEY, made, np.arange(8) % 2)
  jax.effects_barrier()
  np.testing.assert_array_equal(seen[0], np.clip(made, 0, np.float32(most)))
  rows = np.asarray(data.x)[data.train.rows()].astype(np.float64) * (scale or 1 / 255)
  labels = np.asarray(data.y)[data.train.rows()]
  each = [rows[labels == c][:4].reshape(4, -1) for c in range(2)]
  apart = [np.linalg.norm(r[:, None] - r[None], axis=-1).sum() / 12 for r in each]
  assert found["within_class_distance"]["real"] == pytest.approx(np.mean(apart), rel=1e-5)


@pytest.mark.slow
def test_examples_with_noise_are_judged_as_they_are_held():
  """Noise of clients makes floats of bytes, whose scale is then done; the official test set keeps its own."""
  rng = np.random.default_rng(1)
  y = np.arange(60) % 2
  x = (rng.integers(0, 100, (60, 2, 2, 1)) + 100 * y[:, None, None, None]).astype(np.int16)
  source = fh.data.Source(x, y, x[:6], y[:6], 2, "whole", scale=1 / 200)
  data = fh.federate(x, y, [np.arange(30), np.arange(30, 60)], KEY, num_classes=2, scale=1 / 200)
  shifted = fh.data.feature_shift(KEY, data, fh.data.growing_noise(1e-6))
  assert shifted.scale is None and np.asarray(shifted.x).dtype == np.float32
  given = {"model": {"name": "logistic_regression"}, "steps": 200, "lr": 0.1}
  made = (x[:20] / 200).astype(np.float32)
  plain, found = (synthetic.worth(given, source, own, KEY, made, y[:20]) for own in (data, shifted))
  assert plain["downstream"]["local"]["mean"] == found["downstream"]["local"]["mean"] == 1.0
  assert plain["downstream"]["official"] == found["downstream"]["official"] == 1.0
  assert plain["within_class_distance"]["real"] == pytest.approx(
    found["within_class_distance"]["real"], rel=1e-3
  )


def test_a_dry_run_counts_bytes_as_floats():
  class Plan:
    model = MODEL

  counted = []
  for data in (BYTES, FLOATS):
    plan = Plan()
    plan.data = data
    counted.append(step_flops(plan, 2))
  assert counted[0] == counted[1] > 0


PIXELS = np.random.default_rng(1).random((len(ROWS), 4, 4, 1))


def test_images_of_two_bytes_are_read_as_those_of_one(caplog):
  x = (PIXELS * 65535).astype(np.uint16)
  x[0] = 65535
  np.testing.assert_array_equal(as_read(x, None), x.astype(np.float32) * np.float32(1 / 65535))
  np.testing.assert_array_equal(as_read(x, 1 / 4095), x.astype(np.float32) * np.float32(1 / 4095))
  assert as_read(x[..., 0], None).dtype == np.uint16  # may be ids of pairs of texts
  assert as_read(x[:, 0, :, 0], None).dtype == np.uint16
  assert clients(x, None).x.dtype == np.uint16 and "uint16" not in caplog.text
  clients(x // 16, None)
  assert "the largest value is 4095. If their range is smaller, say so: scale=1/4095" in caplog.text


@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.int64, np.uint32])
def test_images_of_other_whole_numbers_need_a_scale(dtype):
  x = (PIXELS * 256).astype(dtype)
  with pytest.raises(fh.SettingError, match=r"x = .*4, 4, 1.*up to 255.*scale=1/255, or store bytes"):
    clients(x, None)
  data = clients(x, 1 / 255)
  np.testing.assert_allclose(as_read(data.x, data.scale), as_read(data.x.astype(np.uint8), None), rtol=1e-6)


class Net(nn.Module):
  """A module of a user's own, of numbers."""

  @nn.compact
  def __call__(self, x):
    return nn.Dense(3)(x.reshape(len(x), -1))


class Words(nn.Module):
  """A module of a user's own, of ids."""

  @nn.compact
  def __call__(self, x):
    return nn.Dense(3)(nn.Embed(9, 2)(x).reshape(len(x), -1))


@pytest.mark.parametrize(
  "module", [Net(), lambda rngs: nnx.Sequential(lambda x: x[:, 0, :], nnx.Linear(4, 3, rngs=rngs))]
)
def test_own_modules_of_floats_are_told_of_whole_numbers(module):
  model = fh.models.from_flax(module, (2, 4), 3)
  params = model.init(KEY)
  x = np.arange(16, dtype=np.int32).reshape(2, 2, 4)
  with pytest.warns(UserWarning, match=r"x = int32: .* made for float32.*scale=1/255.*dtype=jnp.int32"):
    model.apply(params, x)
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    model.apply(params, x.astype(np.float32))
    model.apply(params, x > 3)
  if isinstance(module, Net):
    square = fh.models.from_flax(module, (2, 2, 1), 3)
    with pytest.raises(fh.SettingError, match=r"x = 'int32': the module was made for float32.*scale=1/255"):
      square.apply(square.init(KEY), x.reshape(4, 2, 2, 1))


@pytest.mark.slow
@pytest.mark.parametrize("axes", [(4,), (2, 4)])
def test_ids_of_texts_are_ids(axes):
  model = fh.models.from_flax(Words(), axes, 3, dtype=jnp.int32)
  x = np.random.default_rng(0).integers(0, 9, (len(ROWS), *axes))
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    data = clients(x, None)
    assert data.x.dtype == np.int32
    model.apply(model.init(KEY), as_read(data.x, data.scale))
    table = fh.models.from_flax(Net(), (4,), 3)
    table.apply(table.init(KEY), x.reshape(-1, 4))


def test_images_of_two_bytes_keep_their_type_where_they_are_resized():
  x = np.full((3, 4, 4, 1), 40_000, np.uint16)
  source = Source(x, np.zeros(3, np.int32), x[:0], np.zeros(0, np.int32), 2, "own")
  found = resized(source, 8)
  assert found.x.dtype == found.x_test.dtype == np.uint16 and (found.x == 40_000).all()
