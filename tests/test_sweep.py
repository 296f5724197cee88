"""Many runs as one program are the runs."""

import jax
import numpy as np
import pytest
from parts import federation, mlp

import fedjax_het as fh

SIZES = (9, 1, 7, 3, 12)


def make(nu=1.0, lr=0.1):
  return fh.federated(fh.superfed(mlp(), nu=nu, start_round=1, lr=lr, epochs=1, batch_size=4))


def close(a, b):
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-6), a, b)


@pytest.mark.parametrize("member_batch", [3, 1])
def test_members_are_single_runs(member_batch):
  data = federation(SIZES)
  result = fh.sweep(
    make, {"nu": [0.0, 2.0], "lr": [0.1]}, seeds=[3, 7], data=data, rounds=4, cohort_size=3, eval_every=2,
    member_batch=member_batch, client_batch=5, devices=3,
  )  # fmt: skip
  assert sorted(result.history) == [2, 4] and result.infos.cohort.shape == (4, 4, 3)
  assert result.members[1] == {"seed": 3, "nu": 2.0, "lr": 0.1} and result.members[2]["seed"] == 7
  for m, member in enumerate(result.members):
    key = jax.random.key(member["seed"])
    algorithm = make(nu=member["nu"], lr=member["lr"])
    single = fh.run(algorithm, data, rounds=4, cohort_size=3, key=key, devices=1)
    close(jax.tree.map(lambda leaf: leaf[m], result.state.broadcast), single.state.broadcast)
    close(jax.tree.map(lambda leaf: leaf[m], result.state.clients), single.state.clients)
    close(jax.tree.map(lambda leaf: leaf[m], result.history[4]), single.evaluation)
    close(jax.tree.map(lambda leaf: leaf[m], result.infos), single.infos)
    assert result.metrics[m]["global"]["loss"]["mean"] == pytest.approx(
      single.metrics["global"]["loss"]["mean"]
    )


def test_members_may_have_their_own_data():
  data, keys = [federation(SIZES, seed=s) for s in range(2)], jax.random.split(jax.random.key(2), 2)
  result = fh.sweep(make, seeds=keys, data=data, rounds=2, cohort_size=5)
  for m in range(2):
    single = fh.run(make(), data[m], rounds=2, cohort_size=5, key=keys[m], devices=1)
    close(jax.tree.map(lambda leaf: leaf[m], result.state.broadcast), single.state.broadcast)


def test_mistakes_are_named():
  two = dict(seeds=[0, 1], rounds=2, cohort_size=2)
  with pytest.raises(fh.SettingError, match="nu"):
    fh.sweep(make, {"nu": []}, data=federation(SIZES), **two)
  with pytest.raises(fh.SettingError, match="cohort_size"):
    fh.sweep(make, data=federation(SIZES), **two | {"cohort_size": 6})
  with pytest.raises(fh.SettingError, match="not alike"):
    fh.sweep(make, data=[federation(SIZES), federation(SIZES[:-1])], **two)
  with pytest.raises(fh.SettingError, match="one for each of 2 seeds"):
    fh.sweep(make, data=[federation(SIZES)], **two)
  with pytest.raises(fh.NonFiniteLoss, match="member 1"):
    fh.sweep(make, {"lr": [0.1, 1e30]}, data=federation(SIZES), rounds=3, cohort_size=5)
