"""What methods with a server of their own ask of a run: the clients' sizes, validation rows, and figures."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import client
from small_parts import SIZES, federation, linear, mlp, rows_of

import fedjax_het as fh
from fedjax_het.config.algorithm import prepared_of
from fedjax_het.config.plan import plan
from fedjax_het.config.quickstart import get_config
from fedjax_het.engine.shown import shown_validation
from fedjax_het.entries import SIZES as OF_SIZES
from fedjax_het.errors import SettingError
from fedjax_het.experiment.build import build
from fedjax_het.methods import CLIENTS

LOCAL = dict(lr=0.1, epochs=1, batch_size=4)


def with_validation(sizes, uniform=False):
  """Clients whose test rows are their validation rows, too."""
  data = federation(sizes, [3] * len(sizes) if uniform else None)
  return dataclasses.replace(
    data, valid=data.test, limits=(data.limits[0], data.limits[2], data.limits[2]),
    uniform=(data.uniform[0], data.uniform[2], data.uniform[2]),
  )  # fmt: skip


def reporting() -> fh.ClientUpdate:
  """Sends its model back, and reports the mean of its validation rows and how many there are."""
  part = fh.fedavg(linear(), **LOCAL)

  def update(key, broadcast, state, data, context):
    rows = data.validation
    x, _ = rows.take(jnp.arange(rows.limit))
    total = jnp.where((jnp.arange(rows.limit) < rows.length)[:, None], x, 0.0).sum()
    figures = {"total": total, "count": jnp.float32(rows.length), "own": jnp.float32(data.length)}
    return broadcast, state, fh.Info(jnp.float32(0.0), jnp.int32(1), figures)

  return part._replace(update=update, needs=part.needs._replace(sees_data=("update",)))


@pytest.mark.parametrize("uniform", [pytest.param(True, marks=pytest.mark.slow), False])
def test_an_update_reads_the_clients_own_validation_rows(uniform):
  data = with_validation([6] * 5 if uniform else SIZES[:5], uniform)
  engine = fh.Engine(fh.federated(reporting()), data, 3, devices=2)
  _, infos = engine.advance(engine.init(jax.random.key(0)), 4)
  figures = (infos.clients.figures[name] for name in ("total", "count", "own"))
  for cohort, total, count, own in zip(infos.cohort, *figures):
    for i, *found in zip(cohort, total, count, own):
      x, _ = rows_of(data, i, "valid")
      np.testing.assert_allclose(found, [x.sum(), len(x), data.train.size[i]], rtol=1e-4, atol=1e-5)


def test_other_methods_are_shown_none():
  part = fh.fedavg(linear())
  assert shown_validation(part, federation((3,))) is part


@pytest.mark.slow
def test_validation_rows_are_streamed_and_shared_out_with_the_training_rows():
  """The bits are the same; half of `device_rows` has to hold both kinds of rows."""
  sizes = (6, 2, 7, 3, 5, 2, 6, 1, 7, 5, 4, 7)
  data = with_validation(sizes)
  algorithm = fh.federated(client("fedfomo", mlp(), batch_size=4))

  def left(**where):
    engine = fh.Engine(algorithm, data, 2, **where)
    state, infos = engine.advance(engine.init(jax.random.key(3)), 4)
    return jax.tree.map(np.asarray, (state._replace(key=()), infos))

  one = left(devices=1)
  most = int(sum(sorted(n + m for n, m in zip(sizes, np.asarray(data.valid.size)))[-2:]))
  assert 2 * most < len(data.y)
  chex.assert_trees_all_equal(one, left(devices=2))
  chex.assert_trees_all_equal(one, left(devices=2, device_rows=2 * most))
  with pytest.raises(SettingError, match=f"device_rows = {2 * most - 1}: half of them is a window"):
    left(devices=1, device_rows=2 * most - 1)
  bare = dataclasses.replace(
    data, valid=federation(sizes).valid, limits=(*data.limits[:1], 0, data.limits[2])
  )
  engine = fh.Engine(algorithm, bare, 2, devices=1)
  without = engine.advance(engine.init(jax.random.key(3)), 4)[0]
  assert not np.allclose(without.server.values, one[0].server.values)


@pytest.mark.slow
def test_dishonest_rows_are_not_validation_rows():
  data = with_validation(SIZES[:5])

  def read(**attack):
    engine = fh.Engine(fh.federated(reporting(), **attack), data, 3, devices=1)
    return engine.advance(engine.init(jax.random.key(0)), 2)[1].clients.figures

  chex.assert_trees_all_equal(read(), read(attack=fh.attacks.label_flip(0.5)))


def test_parts_are_made_of_sizes_whatever_the_labels_are():
  config = get_config("algorithm=fedamp").to_dict()
  built = build(plan(config))
  for task in (built.algorithm.client.task, fh.tasks.regression()):
    found = prepared_of(built.plan, built.data, task)
    np.testing.assert_array_equal(found["sizes"], np.asarray(built.data.train.size))
  np.testing.assert_array_equal(built.prepared["sizes"], np.asarray(built.data.train.size))
  assert built.algorithm.client.needs.num_clients == built.data.num_clients == 20
  assert "prepared_digest" in built.digests
  config["algorithm"] = {"name": "sosicfl"}
  with pytest.raises(SettingError, match=r"sosicfl.*counts of classes"):
    prepared_of(plan(config), built.data, fh.tasks.regression())
  assert CLIENTS["fedamp"].prepare({}, num_clients=7)["sizes"].tolist() == [1] * 7
  np.testing.assert_array_equal(OF_SIZES.make([[1, 2], [3, 4]], seed=3), [3, 7])


def test_figures_of_mixing_and_server_stand_side_by_side():
  part, data = fh.fedavg(linear(), **LOCAL), federation((4, 4, 4))
  server = fh.server.sgd()._replace(figures=lambda state, feedback: {"round": jnp.float32(feedback.round)})
  mixing = fh.mixing.static()._replace(figures=lambda feedback: {"largest": feedback.sizes.max() * 1.0})

  def figures(*parts):
    engine = fh.Engine(fh.federated(part, *parts), data, 2, devices=1)
    return engine.advance(engine.init(jax.random.key(0)), 2)[1].figures

  found = figures(mixing, server)
  assert found["round"].tolist() == [0.0, 1.0] and found["largest"].tolist() == [4.0, 4.0]
  assert {*figures(fh.mixing.static(), server)} == {"round"}
  wrong = server._replace(figures=lambda state, feedback: {"sizes": feedback.sizes})
  with pytest.raises(SettingError, match=r"server's figures.*is not a scalar"):
    figures(fh.mixing.static(), wrong)
