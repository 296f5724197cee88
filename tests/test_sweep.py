"""Many runs as one program are the runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from parts import federation, mlp

import fedjax_het as fh

SIZES = (9, 1, 7, 3, 12)


def make(nu=1.0, lr=0.1):
  return fh.federated(fh.superfed(mlp(), nu=nu, start_round=2, lr=lr, epochs=1, batch_size=4))


def close(a, b):
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-6), a, b)


@pytest.mark.parametrize("member_batch", [None, 1, 2])
def test_members_are_single_runs(member_batch):
  data, keys = federation(SIZES), jax.random.split(jax.random.key(1), 3)
  settings = {"nu": [0.0, 1.0, 2.0], "lr": [0.1, 0.05, 0.2]}
  result = fh.sweep(
    make, data, keys=keys, settings=settings, rounds=4, cohort_size=3, eval_every=2,
    member_batch=member_batch, devices=2,
  )  # fmt: skip
  assert sorted(result.history) == [2, 4] and result.infos.cohort.shape == (3, 4, 3)
  for m in range(3):
    algorithm = make(nu=settings["nu"][m], lr=settings["lr"][m])
    single = fh.run(algorithm, data, rounds=4, cohort_size=3, key=keys[m], devices=1)
    close(jax.tree.map(lambda leaf: leaf[m], result.state.broadcast), single.state.broadcast)
    close(jax.tree.map(lambda leaf: leaf[m], result.state.clients), single.state.clients)
    close(jax.tree.map(lambda leaf: leaf[m], result.history[4]), single.evaluation)
    close(jax.tree.map(lambda leaf: leaf[m], result.infos), single.infos)
    assert result.metrics[m]["global"]["loss"]["mean"] == pytest.approx(
      single.metrics["global"]["loss"]["mean"]
    )


def test_members_may_have_their_own_data():
  data, keys = [federation(SIZES, seed=s) for s in range(2)], jax.random.split(jax.random.key(2), 2)
  result = fh.sweep(make, data, keys=keys, rounds=2, cohort_size=5)
  for m in range(2):
    single = fh.run(make(), data[m], rounds=2, cohort_size=5, key=keys[m], devices=1)
    close(jax.tree.map(lambda leaf: leaf[m], result.state.broadcast), single.state.broadcast)


def test_mistakes_are_named():
  keys = jax.random.split(jax.random.key(0), 2)
  with pytest.raises(fh.SettingError, match="nu"):
    fh.sweep(make, federation(SIZES), keys=keys, settings={"nu": [1.0]}, rounds=1, cohort_size=2)
  with pytest.raises(fh.SettingError, match="cohort_size"):
    fh.sweep(make, federation(SIZES), keys=keys, rounds=1, cohort_size=6)
  with pytest.raises(fh.SettingError, match="not alike"):
    fh.sweep(make, [federation(SIZES), federation(SIZES[:-1])], keys=keys, rounds=1, cohort_size=2)
  bad = jnp.asarray([0.1, 1e30])
  with pytest.raises(fh.NonFiniteLoss, match="member 1"):
    fh.sweep(make, federation(SIZES), keys=keys, settings={"lr": bad}, rounds=3, cohort_size=5)
