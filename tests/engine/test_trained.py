"""Predictions of a trained model: the run's own test figures row by row, and all names that are wrong."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import in_other_tests, with_every
from flax import linen as nn
from small_parts import linear

import fedjax_het as fh
from fedjax_het.engine.trained import trained
from fedjax_het.methods import CLIENTS

KEY = jax.random.key(0)


def clients_data(standardize=(0, 1, 2), **more):
  rng = np.random.default_rng(0)
  x = rng.normal(3, 2, (120, 4)).astype(np.float32)
  x[::11, 1] = np.nan
  y = (np.nan_to_num(x[:, 0]) + rng.normal(size=120) > 3).astype(int) + (np.arange(120) % 3 == 0)
  return x, fh.data.from_groups(KEY, x, y, np.array(["a", "b", "c", "d"])[np.arange(120) % 4],
                                standardize=standardize, **more)  # fmt: skip


class Normed(nn.Module):
  """Running statistics, which the models of a line estimate from the client's training rows."""

  @nn.compact
  def __call__(self, x, train: bool):
    return nn.Dense(3)(nn.relu(nn.BatchNorm(use_running_average=not train)(nn.Dense(8)(x))))


# Whose clients' models have another form than the server's, or that read features.
FEATURES = ("knn_per", "fedrod", "fedproto", "fedcp", "gpfl")
METHODS = {
  **{name: CLIENTS[name].factory for name in FEATURES},
  "fedavg": fh.fedavg, "ditto": fh.ditto, "superfed_mm": functools.partial(fh.superfed_mm, start_round=1),
  "fedper": fh.fedper, "apfl": fh.apfl, "fedprox": fh.fedprox, "scaffold": fh.scaffold, "pfedme": fh.pfedme,
  "lg_fedavg": fh.lg_fedavg, "fedrep": fh.fedrep,
  "superfed_lm": functools.partial(fh.superfed_lm, start_round=1), "superfed_mm of a normed model": None,
}  # fmt: skip


@functools.cache
def ran(name, pooled=False):
  x, data = clients_data(pooled=pooled)
  model, method = fh.models.two_nn((4,), 3, hidden=8), METHODS[name]
  if method is None:
    model, method = fh.models.from_flax(Normed(), shape=(4,), num_classes=3), METHODS["superfed_mm"]
  own = () if name in FEATURES else (fh.mixing.static(), fh.server.sgd())
  algorithm = fh.federated(method(model, lr=0.1), *own)
  return x, data, fh.run(algorithm, data, rounds=3, cohort_size=2, key=KEY, progress=False)


def own_rows(x, data, number):
  """A client's test rows as they came: the inverse of the laid-out rows, by their unscaled last column."""
  held = np.asarray(data.x)[data.test.rows(np.array([number]))]
  return x[[int(np.flatnonzero(x[:, 3] == row[3])[0]) for row in held]]


@pytest.mark.filterwarnings("ignore:knn_per chooses")
@pytest.mark.parametrize(
  "name", ["ditto", *(pytest.param(name, marks=in_other_tests(name)) for name in METHODS)]
)
def test_predictions_are_the_run_s_own_row_by_row(name):
  x, data, result = ran(name)
  used = result.trained
  assert used.clients == ("a", "b", "c", "d")
  for number, client in enumerate(used.clients):
    rows, y = own_rows(x, data, number), np.asarray(data.y)[data.test.rows(np.array([number]))]
    right = used.predict(rows, client) == y
    np.testing.assert_allclose(right.mean(), result.clients["personalized"]["top1"][number], rtol=1e-6)
    chance = used.predict_proba(rows, client)
    np.testing.assert_allclose(chance.sum(1), 1, rtol=1e-5)
    loss = -np.log(chance[np.arange(len(y)), y]).mean()
    np.testing.assert_allclose(loss, result.clients["personalized"]["loss"][number], rtol=1e-4)


def test_the_global_model_predicts_and_wrong_names_are_named():
  x, data, result = ran("ditto", pooled=True)
  used = result.trained
  same = used.predict(own_rows(x, data, 2))
  truth = np.asarray(data.y)[data.test.rows(np.array([2]))]
  np.testing.assert_allclose((same == truth).mean(), result.clients["global"]["top1"][2], rtol=1e-6)
  assert result.trained is used
  assert jax.tree.structure(result.model_of("a")) == jax.tree.structure(result.model_of())
  with pytest.raises(fh.SettingError, match=r"client = 'e': was not in training.*Known: a, b, c, d"):
    used.predict(x[:3], "e")
  with pytest.raises(fh.SettingError, match=r"rows = 'float32 .3, 2.': are no examples. Give numbers, .n, 4"):
    used.predict(x[:3, :2], "a")
  with pytest.raises(fh.SettingError, match="each client's rows were standardised by its own"):
    ran("ditto")[2].trained.predict(x[:3])


@pytest.mark.filterwarnings("ignore:knn_per chooses")
@pytest.mark.slow
@pytest.mark.parametrize(
  "name", with_every(METHODS, "superfed_mm", "apfl", "ditto", "superfed_mm of a normed model")
)
def test_a_saved_model_predicts_the_same(name, tmp_path):
  x, _, result = ran(name)
  result.trained.save(tmp_path / "models.npz")
  again = fh.load_model(tmp_path / "models.npz")
  for client in "abcd":
    assert (again.predict(x, client) == result.trained.predict(x, client)).all()
    ours = result.trained.predict_proba(x, client)
    np.testing.assert_allclose(again.predict_proba(x, client), ours, rtol=1e-6, atol=1e-7)
  result.trained.export(tmp_path / "a.jax", "a")
  program = jax.export.deserialize(bytearray((tmp_path / "a.jax").read_bytes()))
  labels, chance = program.call(x)
  assert (labels == result.trained.predict(x, "a")).all()
  np.testing.assert_allclose(chance, result.trained.predict_proba(x, "a"), rtol=1e-4, atol=1e-6)
  again.save(tmp_path / "again.npz")
  twice = fh.load_model(tmp_path / "again.npz")
  assert (twice.predict_proba(x, "c") == again.predict_proba(x, "c")).all()
  (tmp_path / "torn.npz").write_bytes((tmp_path / "models.npz").read_bytes()[:500])
  with pytest.raises(fh.DataError, match=r"torn.npz"):
    fh.load_model(tmp_path / "torn.npz")


def test_files_of_models_name_the_package_that_they_need(tmp_path, monkeypatch):
  used = ran("ditto", pooled=True)[2].trained
  with pytest.raises(fh.DataError, match=r"nowhere.npz: no such file"):
    fh.load_model(tmp_path / "nowhere.npz")
  monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
  message = r"path = '.*m.npz': needs the package flatbuffers, .*pip install 'fedjax_het\[export\]'"
  for use in (used.save, used.export, fh.load_model):
    with pytest.raises(fh.SettingError, match=message):
      use(tmp_path / "m.npz")


def test_numbers_and_several_labels_are_decided():
  logits = np.array([[2.0, -1.0, 0.0], [-3.0, 4.0, 1.0]], np.float32)
  assert fh.tasks.multilabel().decide(logits).tolist() == [[1, 0, 0], [0, 1, 1]]
  assert fh.tasks.classification().decide(logits).tolist() == [0, 1]
  assert fh.tasks.binary().decide(logits[:, :1]).tolist() == [1, 0]
  np.testing.assert_allclose(
    fh.tasks.binary().probabilities(logits[:, :1])[:, 1], 1 / (1 + np.exp([-2, 3])), rtol=1e-6
  )
  assert fh.tasks.regression().decide(logits[:, :1]).tolist() == [2, -3]


def test_a_client_s_model_is_traced_once_for_all_and_made_once_for_each():
  """By the client's own rows alone, training and validation ones, which are of other numbers in each."""
  x, y = np.random.default_rng(0).normal(size=(21, 4)).astype(np.float32), np.arange(21) % 3
  owners = [np.arange(7), np.arange(7, 10), np.arange(10, 21)]
  data, traced = fh.federate(x, y, owners, KEY, num_classes=3, valid_fraction=0.3), []
  client = fh.fedavg(linear(), lr=0.1)

  def personalize(broadcast, state, data, context, lam):
    traced.append(True)
    rows = [data, data.validation]
    means = [
      jnp.where((i := jnp.arange(own.limit)) < own.size, own.take(i)[0][:, 0], 0).sum() for own in rows
    ]
    return jax.tree.map(lambda leaf: leaf + means[0] + 100 * means[1] + context.client, broadcast.params)

  state = fh.Engine(fh.federated(client), data, 2, devices=1).init(KEY)
  client = client._replace(
    personalize=personalize, needs=client.needs._replace(sees_data=("personalize", "validation"))
  )
  used = trained(fh.federated(client), data, state, 2, 0)
  for i in range(3):
    sums = [data.x[part.rows(np.array([i])), 0].sum() for part in (data.train, data.valid)]
    moved = jax.tree.leaves(used.personal(i))[0] - jax.tree.leaves(state.broadcast.params)[0]
    np.testing.assert_allclose(moved, sums[0] + 100 * sums[1] + i, rtol=1e-4)
    assert used.personal(i) is used.personal(i)
  assert len(traced) == 1


@pytest.mark.slow
def test_members_of_a_sweep_predict_as_they_were_evaluated():
  x, data = clients_data()
  model = fh.models.two_nn((4,), 3, hidden=8)
  make = lambda lr: fh.federated(fh.ditto(model, lr=lr), fh.mixing.static(), fh.server.sgd())  # noqa: E731
  found = fh.sweep(make, {"lr": [0.01, 0.2]}, [0, 1], data=data, rounds=3, cohort_size=2, progress=False)
  for member in range(4):
    for number, client in enumerate("abcd"):
      y = np.asarray(data.y)[data.test.rows(np.array([number]))]
      right = (found.models(member).predict(own_rows(x, data, number), client) == y).mean()
      np.testing.assert_allclose(right, found.history[3].personalized["top1"][member, number, 0], rtol=1e-6)
