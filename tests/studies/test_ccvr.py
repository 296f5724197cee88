"""CCVR: class statistics pooled over clients, features drawn of them, and the last layer trained on these."""

import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from changed_configs import with_values
from flax import linen as nn
from small_parts import CLASSES, federation, mlp

import fedjax_het as fh
from fedjax_het.config.plan import plan
from fedjax_het.config.quickstart import get_config
from fedjax_het.errors import SettingError
from fedjax_het.experiment.experiment import run_experiment
from fedjax_het.models.features import LinearHead, linear_head
from fedjax_het.program.where import Where
from fedjax_het.studies import ccvr
from fedjax_het.studies.ccvr import (
  Calibration,
  Moments,
  calibrated,
  drawn,
  moments_of,
  pooled,
  raised,
  with_head,
)

SMALL = {"rounds": 2, "eval_every": 2, "cohort_size": 3, "model": {"name": "two_nn", "hidden": 8}}


def test_pooled_statistics_are_those_of_all_features_together():
  """Of clients with no example, one, or many of a class, as NumPy computes them of all rows at once."""
  rng = np.random.default_rng(0)
  sizes, z = (1, 2, 9, 30, 5), rng.normal(size=(47, 4)) + 3
  y = np.where(np.arange(47) < 20, rng.integers(0, 2, 47), rng.choice([0, 1, 3], 47))
  y[0] = 4  # one example in all
  ends = np.cumsum(sizes)
  found = pooled(moments_of(z[end - n : end], y[end - n : end], 6) for n, end in zip(sizes, ends))
  np.testing.assert_array_equal(found.examples, np.bincount(y, minlength=6))
  for c in (0, 1, 3):
    np.testing.assert_allclose(found.mean[c], z[y == c].mean(0), rtol=1e-12)
    np.testing.assert_allclose(found.covariance[c], np.cov(z[y == c].T), rtol=1e-9, atol=1e-12)
  np.testing.assert_array_equal(found.mean[[2, 5]], 0)
  np.testing.assert_allclose(found.mean[4], z[0])
  np.testing.assert_allclose(found.covariance[[2, 4, 5]], 0, atol=1e-12)


def test_features_are_drawn_of_each_class_that_is_there():
  rng = np.random.default_rng(0)
  root = rng.normal(size=(3, 2, 2))
  moments = Moments(np.array([5.0, 0.0, 7.0]), rng.normal(size=(3, 2)), root @ root.transpose(0, 2, 1))
  z, y = drawn(jax.random.key(1), moments, 4000)
  assert z.dtype == np.float32 and y.tolist() == [0] * 4000 + [2] * 4000
  for c in (0, 2):
    np.testing.assert_allclose(z[y == c].mean(0), moments.mean[c], atol=0.1)
    np.testing.assert_allclose(np.cov(z[y == c].T), moments.covariance[c], atol=0.15)
  np.testing.assert_array_equal(z, drawn(jax.random.key(1), moments, 4000)[0])


def test_the_last_layer_s_steps_by_hand():
  """Adam on the mean cross entropy, in float64."""
  rng = np.random.default_rng(0)
  z, y = rng.normal(size=(12, 4)), rng.integers(0, 3, 12)
  own = [rng.normal(size=(4, 3)), rng.normal(size=3)]
  head = LinearHead(*(jnp.asarray(leaf, jnp.float32) for leaf in own))
  found = calibrated(head, jnp.asarray(z, jnp.float32), jnp.asarray(y), steps=6, lr=0.1)
  m, v = [np.zeros_like(leaf) for leaf in own], [np.zeros_like(leaf) for leaf in own]
  for t in range(1, 7):
    f = z @ own[0] + own[1]
    away = np.exp(f) / np.exp(f).sum(1, keepdims=True) - np.eye(3)[y]
    for i, g in enumerate((z.T @ away / 12, away.mean(0))):
      m[i], v[i] = 0.9 * m[i] + 0.1 * g, 0.999 * v[i] + 0.001 * g**2
      own[i] = own[i] - 0.1 * (m[i] / (1 - 0.9**t)) / (np.sqrt(v[i] / (1 - 0.999**t)) + 1e-8)
  for leaf, wanted in zip(found, own):
    np.testing.assert_allclose(leaf, wanted, rtol=1e-4, atol=1e-5)


def test_another_last_layer():
  model = mlp()
  params = model.init(jax.random.key(0))
  head = LinearHead(jnp.ones((5, CLASSES)), jnp.full(CLASSES, 2.0))
  found = with_head(model, params, head)
  np.testing.assert_array_equal(linear_head(model)(found).kernel, 1)
  np.testing.assert_array_equal(found["fc2"]["bias"], 2)
  np.testing.assert_array_equal(found["fc1"]["kernel"], params["fc1"]["kernel"])
  del params["fc2"]["bias"]
  assert {*with_head(model, params, head)["fc2"]} == {"kernel"}


@pytest.mark.slow
def test_a_run_reports_before_and_after(tmp_path):
  """The global model is judged as in the summary, and better after its last layer was trained again."""
  config = with_values(get_config("algorithm=fedavg"), SMALL | {"ccvr": {"per_class": 50, "lr": 0.01}})
  run_experiment(config, str(tmp_path / "own"), Where(devices=1))
  found = json.loads((tmp_path / "own" / "summary.json").read_text())
  own = found["ccvr"]
  assert own["classes"] == 10 and (own["per_class"], own["steps"], own["lr"], own["power"]) == (
    50,
    200,
    0.01,
    1,
  )
  for metric, figures in found["metrics"]["global"].items():
    assert own["before"][metric] == pytest.approx(figures, rel=1e-5, abs=1e-6)
  assert next(iter(own["before"])) == next(iter(own["after"])) == "top1"
  assert own["after"]["loss"]["mean"] < own["before"]["loss"]["mean"]
  assert own["after"]["top1"]["mean"] > own["before"]["top1"]["mean"]


def moment(broadcast, liars=None):
  seen = SimpleNamespace(dishonest=liars)
  return SimpleNamespace(broadcast=lambda: broadcast, diverged=False, evaluations=seen)


@pytest.mark.parametrize("power", [1.0, 0.5])
def test_the_whole_study_by_hand(power):
  """The last layer is trained on powers of the features, and the calibrated model has them before it."""
  model, data, key = mlp(), federation((9, 1, 30, 12)), jax.random.key(3)
  client = fh.fedavg(model, lr=0.1)
  broadcast = client.init_broadcast(jax.random.key(0))
  study = object.__new__(Calibration)
  settings = {"per_class": 6, "steps": 4, "lr": 0.3, "power": power}
  config = SimpleNamespace(studies={"ccvr": settings})
  study.run = SimpleNamespace(algorithm=fh.federated(client), data=data, key=key, config=config)
  liars = np.array([False, False, True, False]) if power == 1.0 else None
  found = study.section(moment(broadcast, liars))["ccvr"]

  params = jax.tree.map(np.asarray, broadcast.params)

  def features(x):
    h = np.tanh(x @ params["fc1"]["kernel"] + params["fc1"]["bias"])
    return np.sign(h) * np.abs(h) ** power

  x, y = np.asarray(data.x), np.asarray(data.y)
  rows = [data.train.rows(np.array([i])) for i in range(data.num_clients)]
  theirs = [moments_of(features(x[own]), y[own], CLASSES) for own in rows]
  z, labels = drawn(jax.random.fold_in(key, ccvr.DRAWS), pooled(theirs), 6)
  head = calibrated(LinearHead(**params["fc2"]), z, labels, **settings)
  plain = params["fc2"]["kernel"], params["fc2"]["bias"]
  for name, (kernel, bias), raise_ in (("before", plain, 1.0), ("after", head, power)):
    right = []
    for i in range(data.num_clients):
      if liars is not None and liars[i]:  # its examples are read, and it is not judged
        continue
      own = data.test.rows(np.array([i]))
      h = np.tanh(x[own] @ params["fc1"]["kernel"] + params["fc1"]["bias"])
      logits = np.sign(h) * np.abs(h) ** raise_ @ np.asarray(kernel) + np.asarray(bias)
      right.append((logits.argmax(1) == y[own]).mean() if len(own) else np.nan)
    assert found[name]["top1"]["mean"] == pytest.approx(np.nanmean(right), abs=1e-6), name


class Normalised(nn.Module):
  """A small network with running statistics."""

  @nn.compact
  def __call__(self, x, train: bool):
    h = nn.BatchNorm(use_running_average=not train)(nn.Dense(6)(x))
    return nn.Dense(CLASSES, name="head")(nn.relu(h))


def test_a_model_with_running_statistics_is_judged_on_powers_of_its_features():
  model = fh.models.from_flax(Normalised(), (4,), CLASSES, head=("head",))
  client, data = fh.fedavg(model, lr=0.1), federation((9, 8))
  broadcast = client.init_broadcast(jax.random.key(0))
  config = SimpleNamespace(studies={"ccvr": {"per_class": 2, "steps": 1, "lr": 1e-9, "power": 1 - 1e-6}})
  run = SimpleNamespace(algorithm=fh.federated(client), data=data, key=jax.random.key(3), config=config)
  found = Calibration(run).section(moment(broadcast))["ccvr"]
  assert found["after"]["loss"]["mean"] == pytest.approx(found["before"]["loss"]["mean"], rel=1e-3)


def test_signs_stay_under_a_power():
  z = jnp.array([[-4.0, 0.0, 9.0]])
  np.testing.assert_allclose(raised(z, 0.5), [[-2, 0, 3]], rtol=1e-6)
  assert raised(z, 1.0) is z


@pytest.mark.parametrize(
  "algorithm, words",
  [("local", "ccvr = .*: local has no global model"), ("fedrod", "ccvr = .*: fedrod has no global model")],
)
def test_a_method_without_such_a_model_is_refused(algorithm, words):
  config = with_values(get_config(f"algorithm={algorithm}"), SMALL | {"ccvr": {"per_class": 50}})
  with pytest.raises(SettingError, match=words):
    plan(config)


def test_labels_that_are_no_classes_and_models_without_a_linear_head_are_refused():
  def check(model):
    Calibration.check_run({"steps": 5}, SimpleNamespace(algorithm=fh.federated(fh.fedavg(model))))

  check(mlp())
  with pytest.raises(SettingError, match=r"ccvr = .*goes by classes"):
    check(fh.models.make("two_nn", (4,), 1, fh.tasks.regression()))
  with pytest.raises(SettingError, match="names no head"):
    check(mlp()._replace(head=()))
