"""Many runs as one program are the runs."""

import dataclasses

import chex
import jax
import numpy as np
import pytest
from small_parts import federation, linear, mlp

import fedjax_het as fh

SIZES = (9, 1, 7, 3, 12)


def make(mu=0.01, nu=1.0, lr=0.1):
  return fh.federated(fh.superfed(mlp(), mu=mu, nu=nu, start_round=1, lr=lr, epochs=1, batch_size=4))


def close(a, b):
  chex.assert_trees_all_close(a, b, rtol=2e-5, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("member_batch", [3, 1])
def test_members_are_single_runs(member_batch):
  """A grid of (μ, ν) with two seeds: states, rounds, each metric of each client, and what is made of them."""
  data = federation(SIZES)
  result = fh.sweep(
    make, {"mu": [0.0, 0.5], "nu": [0.0, 2.0], "lr": [0.1]}, seeds=[3, 7], data=data, rounds=4,
    cohort_size=3, eval_every=2, member_batch=member_batch, client_batch=5, devices=3,
  )  # fmt: skip
  assert sorted(result.history) == [2, 4] and result.infos.cohort.shape == (8, 4, 3)
  assert result.members[1] == {"seed": 3, "mu": 0.0, "nu": 2.0, "lr": 0.1} and result.members[4]["seed"] == 7
  for m, member in enumerate(result.members):
    key = jax.random.key(member.pop("seed"))
    single = fh.run(make(**member), data, rounds=4, cohort_size=3, key=key, devices=1)
    close(jax.tree.map(lambda leaf: leaf[m], result.state.broadcast), single.state.broadcast)
    close(jax.tree.map(lambda leaf: leaf[m], result.state.clients), single.state.clients)
    close(jax.tree.map(lambda leaf: leaf[m], result.history[4]), single.evaluation)
    close(jax.tree.map(lambda leaf: leaf[m], result.infos), single.infos)
    assert result.picked[m] == single.picked
    close(result.metrics[m], single.metrics)
  kernels = np.asarray(result.state.broadcast.params["fc1"]["kernel"])
  apart = np.abs(kernels[:, None] - kernels).max((2, 3))
  assert apart[~np.eye(8, dtype=bool)].min() > 1e-3  # or a setting had no part in it


def test_settings_go_with_a_function_of_them():
  data, given = federation(SIZES), dict(rounds=1, cohort_size=2, key=jax.random.key(0))
  with pytest.raises(fh.SettingError, match="made already"):
    fh.run(make(), data, settings={"mu": 1.0}, **given)
  with pytest.raises(fh.SettingError, match="is not an algorithm"):
    fh.run(make, data, **given)
  with pytest.raises(fh.SettingError, match="mu = -1"):
    fh.run(make, data, settings={"mu": -1.0}, **given)


@pytest.mark.slow
def test_standard_error_shows_how_far_it_is_where_that_is_asked_for(capsys):
  given = dict(data=federation(SIZES), rounds=2, cohort_size=2)
  fh.sweep(make, {"lr": [0.1, 1e30]}, **given, progress=True)
  out, err = capsys.readouterr()
  first, *_, last = err.splitlines()
  assert not out and first.startswith("compiling") and "round 2/2 (100 %)" in last
  assert "train loss" in last and "nan" not in last and "diverged 1" in last
  fh.run(make(), **given, key=jax.random.key(0), progress=True)
  assert "top-1" in capsys.readouterr().err.splitlines()[-1]
  fh.run(make(), **given, key=jax.random.key(0))  # no terminal
  assert capsys.readouterr() == ("", "")


@pytest.mark.slow
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
  for name, value in (("cohort_size", 1.5), ("devices", 0), ("devices", 99)):
    with pytest.raises(fh.SettingError, match=f"^{name} = {value}: "):
      fh.sweep(make, data=federation(SIZES), **two | {name: value})
  for seeds in (["a"], [0.5], []):
    with pytest.raises(fh.SettingError, match=r"^seeds = "):
      fh.sweep(make, data=federation(SIZES), **two | {"seeds": seeds})
  with pytest.raises(fh.SettingError, match="not alike"):
    fh.sweep(make, data=[federation(SIZES), federation(SIZES[:-1])], **two)
  with pytest.raises(fh.SettingError, match="one for each of 2 seeds"):
    fh.sweep(make, data=[federation(SIZES)], **two)
  own = federation(SIZES)
  for changes in ({"scale": 0.5}, {"x": np.asarray(own.x, np.float16)}, {"num_classes": own.num_classes + 1}):
    with pytest.raises(fh.SettingError, match="not alike"):
      fh.sweep(make, data=[own, dataclasses.replace(own, **changes)], **two)
  rows = np.arange(len(own.y))
  validated, plain = (
    fh.federate(own.x, own.y, np.array_split(rows, 5), jax.random.key(0), num_classes=own.num_classes,
                test_fraction=test, valid_fraction=valid)
    for test, valid in ((0.2, 0.25), (0.4, 0.0))
  )  # fmt: skip
  with pytest.raises(
    fh.SettingError, match=r"valid_fraction = .*: some members have examples to validate on"
  ):
    fh.sweep(make, data=[validated, plain], **two)


def light(lr):
  return fh.federated(fh.fedavg(linear(), lr=lr, weight_decay=1.0, epochs=1, batch_size=4))


@pytest.mark.slow
@pytest.mark.parametrize(("member_batch", "others"), [(3, [0.1, 0.2, 0.05]), (1, [0.1, 0.05])])
def test_where_a_member_diverges_the_others_go_on(member_batch, others):
  """Bit for bit as in a sweep without it; it is known until then, and NaN from then on."""
  settings = dict(data=federation(SIZES), rounds=5, cohort_size=3, eval_every=1, devices=1)
  result, without = (
    fh.sweep(light, {"lr": lrs}, member_batch=member_batch, **settings) for lrs in ([0.1, 1e5, 0.05], others)
  )
  first, gone, last = result.diverged
  assert first is None and last is None and gone.loss in ("nan", "inf")
  finite = np.isfinite(result.infos.clients.loss[1])
  at = np.argwhere(~finite)[0]
  assert (gone.round, gone.client) == (at[0] + 1, result.infos.cohort[1][tuple(at)])
  assert 1 < gone.round < 5
  for done, evaluation in result.history.items():
    assert all(np.isnan(leaf[1]).all() for leaf in jax.tree.leaves(evaluation)) == (done >= gone.round)
    assert np.isfinite(evaluation.global_["top1"][1]).any() == (done < gone.round)
  assert all(np.isnan(x) for kind in result.metrics[1].values() for m in kind.values() for x in m.values())
  for m, k in ((0, 0), (2, len(others) - 1)):
    assert result.metrics[m] == without.metrics[k] and without.diverged[k] is None
    pairs = zip(*(jax.tree.leaves((r.state.broadcast, r.infos, r.history)) for r in (result, without)))
    assert all(np.array_equal(a[m], b[k], equal_nan=True) for a, b in pairs)


@pytest.mark.slow
def test_a_sweep_whose_members_all_diverge_ends():
  each = r".*'lr': 10+\.0}: The training loss became \w+ in round \d at client \d"
  with pytest.raises(fh.NonFiniteLoss, match=2 * each):
    fh.sweep(light, {"lr": [1e5, 1e8]}, data=federation(SIZES), rounds=9, cohort_size=5, devices=1)
