"""The study of membership inference: scores by a plain loop, whole runs, a sweep as shadows."""

import json

import jax
import numpy as np
import pytest
from launching import small, start
from small_parts import SIZES, federation, mlp, rows_of, softmax

import fedjax_het as fh
from fedjax_het.config.plan import plan
from fedjax_het.errors import DataError, SettingError
from fedjax_het.experiment.sweep import run_sweep
from fedjax_het.privacy.membership import lira
from fedjax_het.studies.membership import by_example, digests, lira_of, scores_of, shadows


def logits(params, x):
  h = np.tanh(x @ np.asarray(params["fc1"]["kernel"], float) + np.asarray(params["fc1"]["bias"], float))
  return h @ np.asarray(params["fc2"]["kernel"], float) + np.asarray(params["fc2"]["bias"], float)


@pytest.mark.slow
def test_scores_are_of_each_client_s_own_examples():
  data = federation(SIZES)
  algorithm = fh.federated(fh.ditto(mlp(), lr=0.3, epochs=2, batch_size=4))
  engine = fh.Engine(algorithm, data, 4, devices=1)
  state, _ = engine.advance(engine.init(jax.random.key(0)), 4)
  for part in ("train", "test"):
    found = scores_of(engine.evaluate(state, part, by_example), getattr(data, part).size)
    for model in ("global", "personalized"):
      losses, confidences = [], []
      for i in range(len(SIZES)):
        x, y = rows_of(data, i, part)
        shared = model == "global"
        params = state.broadcast.params if shared else jax.tree.map(lambda own, i=i: own[i], state.clients)
        p = softmax(logits(params, x))[np.arange(len(y)), y]
        losses.append(-np.log(p))
        confidences.append(np.log(p / (1 - p)))
      np.testing.assert_allclose(found[model].loss, np.concatenate(losses), rtol=1e-4, atol=1e-5)
      np.testing.assert_allclose(found[model].confidence, np.concatenate(confidences), rtol=1e-3, atol=1e-4)


def test_digests_know_an_example_again_wherever_it_lies():
  one, other = federation(SIZES), federation(SIZES, order=np.arange(len(SIZES))[::-1])
  assert not np.array_equal(one.train.start, other.train.start)
  np.testing.assert_array_equal(digests(one, "train"), digests(other, "train"))
  assert len({*digests(one, "train").tolist()}) == sum(SIZES)
  assert not {*digests(one, "train").tolist()} & {*digests(one, "test").tolist()}


def configured(**changes):
  return small(
    algorithm={"name": "ditto", "lam": 0.01}, model={"name": "two_nn", "hidden": 32}, test_fraction=0.5,
    membership={"nonmembers": "test", "keep": True},
    valid_fraction=0.0, local__lr=0.05, **changes,
  )  # fmt: skip


@pytest.mark.slow
def test_seeds_of_a_sweep_are_each_other_s_shadows(tmp_path):
  run_sweep(configured(rounds=5, eval_every=5, local__epochs=10), {"seed": [*range(6)]}, tmp_path)
  found = lira_of(tmp_path)
  assert {*found} == {"global", "personalized"} and found["global"]["runs"] == 6
  summary = json.loads((tmp_path / "members" / "seed=0" / "summary.json").read_text())["membership"]
  assert summary["members"] + summary["others"] == 1797
  # A client's own model has seen few examples often: it tells its members from others.
  assert summary["personalized"]["auc"] > summary["global"]["auc"] + 0.01 > 0.52
  assert all(own["std"] > 0 and 0.4 < own["auc"] < 0.7 for own in found.values())
  with np.load(tmp_path / "members" / "seed=0" / "membership.npz") as arrays:
    assert arrays["member"].sum() == summary["members"] and arrays["ids"].dtype == np.uint64


@pytest.mark.slow
def test_shadows_that_divide_the_same_clients_otherwise_are_one_program():
  """A client's own model of few, noisy rows tells its members; the runs are those of an engine each."""
  rng, count = np.random.default_rng(0), 8
  x, y = rng.normal(size=(96, 4)).astype(np.float32), rng.integers(0, 3, 96)
  parts = np.split(np.arange(96), 4)
  divided = [
    fh.federate(x, y, parts, jax.random.key(s), num_classes=3, test_fraction=0.5) for s in range(count)
  ]
  make = lambda lr: fh.federated(fh.ditto(mlp(20), lam=0.0, lr=lr, epochs=10, batch_size=4))  # noqa: E731
  keys = jax.random.split(jax.random.key(1), count)
  given = dict(rounds=6, cohort_size=4, devices=1)
  found = shadows(make, divided, keys, settings={"lr": [0.1] * count}, **given)
  assert lira([own["personalized"] for own in found])["auc"] > 0.6
  engine = fh.Engine(make(0.1), divided[3], 4, devices=1)
  state, _ = engine.advance(engine.init(keys[3]), 6)
  alone = scores_of(engine.evaluate(state, "test", by_example), divided[3].test.size)["global"]
  own = dict(zip(found[3]["global"].ids.tolist(), found[3]["global"].score))
  for name, value in zip(digests(divided[3], "test").tolist(), alone.confidence):
    assert own[name] == pytest.approx(value, rel=1e-4, abs=1e-5)


def test_too_few_runs_are_refused(tmp_path):
  with pytest.raises(DataError, match=r"0 files membership\.npz"):
    lira_of(tmp_path)


@pytest.mark.slow
def test_the_study_changes_no_figure(tmp_path):
  watched = start(configured(rounds=2), str(tmp_path / "watched"))
  plain = configured(rounds=2)
  del plain.membership
  assert start(plain, str(tmp_path / "plain"))["metrics"] == watched["metrics"]


def test_settings_are_checked():
  plan(configured())
  with pytest.raises(SettingError, match=r"membership\.nonmembers.*no client has a validation part"):
    plan(small(membership={"nonmembers": "valid"}, valid_fraction=0.0))
  with pytest.raises(SettingError, match="nonmembers = 'tests'"):
    plan(small(membership={"nonmembers": "tests"}))
  with pytest.raises(SettingError, match=r"membership\.part"):
    plan(small(membership={"part": "test"}))
