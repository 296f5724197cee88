"""Means by test examples, clients without any, the official test set, and a partition's own seed."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from absl import logging

import fedjax_het as fh
from fedjax_het.config.fields import fields
from fedjax_het.config.grid import check_sweep
from fedjax_het.config.plan import plan
from fedjax_het.config.quickstart import get_config
from fedjax_het.engine.checks import tell_untested
from fedjax_het.engine.run import Result, without
from fedjax_het.experiment.build import build, notes_of
from fedjax_het.metrics.fairness import weighted_mean, weighted_of_models
from fedjax_het.studies import STUDIES, Watched
from fedjax_het.studies.client_metrics import ClientMetrics
from fedjax_het.studies.official import BATCH, OfficialTest
from fedjax_het.studies.study import Moment

KEY, RNG = jax.random.key(0), np.random.default_rng(0)


def told(monkeypatch):
  said = []
  monkeypatch.setattr(logging, "warning", lambda text, *args: said.append(text % args))
  return said


def small(test_fraction=0.2):
  x, y = RNG.normal(size=(40, 4)).astype(np.float32), np.arange(40) % 3
  parts = [np.arange(3), np.arange(3, 20), np.arange(20, 40)]
  return fh.federate(x, y, parts, KEY, num_classes=3, test_fraction=test_fraction)


def test_a_mean_by_examples_weighs_by_them_and_leaves_out_who_has_none():
  values, sizes = [0.5, np.nan, 1.0, 0.0], [1, 0, 2, 1]
  assert weighted_mean(values, sizes) == pytest.approx((0.5 + 2.0) / 4)
  assert np.isnan(weighted_mean([np.nan], [0]))
  assert weighted_of_models({"global": {"top1": values}}, sizes) == {"global": {"top1": pytest.approx(0.625)}}
  with pytest.raises(fh.SettingError, match="sizes = "):
    weighted_mean(values, [1])


def test_clients_without_test_rows_are_told(monkeypatch):
  said = told(monkeypatch)
  tell_untested([small(0.5)])
  assert said == []
  tell_untested([small()])
  assert said == ["1 of 3 clients have no test examples: the metrics' means over the clients leave them out."]


def test_a_result_shows_how_many_its_mean_leaves_out():
  clients = {"personalized": {"top1": np.array([np.nan, 1.0, 0.5])}}
  result = Result(*[None] * 9)._replace(clients=clients, test_sizes=np.array([0, 1, 3]))
  assert result.left_out == {"personalized": {"top1": 1}}
  assert result.weighted == {"personalized": {"top1": pytest.approx(0.625)}}
  assert without(result.left_out) == " (without 1 client that lack test examples)" and without({}) == ""


@pytest.mark.slow
def test_a_run_and_a_sweep_tell_who_is_left_out(monkeypatch):
  said = told(monkeypatch)
  make = lambda lr: fh.federated(fh.fedavg(fh.models.two_nn((4,), 3, hidden=3), lr=lr, epochs=1))  # noqa: E731
  found = fh.run(make(0.1), small(), rounds=1, cohort_size=2, key=KEY)
  assert "(without 1 client that lack test examples)" in repr(found) and len(said) == 1
  assert found.left_out["global"]["top1"] == 1
  hits = found.clients["global"]["top1"][1:] * found.test_sizes[1:]
  assert found.weighted["global"]["top1"] == pytest.approx(hits.sum() / found.test_sizes.sum())
  swept = fh.sweep(make, {"lr": [0.1, 0.2]}, data=small(), rounds=1, cohort_size=2)
  assert [own["global"]["top1"] for own in swept.left_out] == [1, 1] and len(said) == 2


def official(count, **changes):
  config = get_config("algorithm=fedavg")
  experiment = build(plan(config))
  config.update(changes)
  x, y = experiment.source.x[:count], experiment.source.y[:count]
  source = experiment.source._replace(x_test=x, y_test=y, standardize=())
  run = Watched(
    plan(config),
    experiment.algorithm,
    experiment.data,
    source,
    experiment.parts,
    KEY,
    Path(),
    False,
    experiment.model,
  )
  broadcast = experiment.algorithm.client.init_broadcast(KEY)
  return run, Moment(1, None, False, lambda: broadcast, None, None)


def test_the_global_model_is_judged_on_the_official_test_set():
  run, now = official(BATCH + 44)
  assert OfficialTest in STUDIES and OfficialTest.fits(run)
  found = OfficialTest(run).section(now)["official"]
  x, y = run.source.x_test, run.source.y_test
  x = x * np.float32(run.source.scale or (1 / 255 if x.dtype == np.uint8 else 1))
  logits = np.asarray(run.model.apply(now.broadcast().params, x))
  assert found["examples"] == BATCH + 44
  assert found["metrics"]["top1"] == pytest.approx((logits.argmax(1) == y).mean())
  exps = np.exp(logits - logits.max(1, keepdims=True))
  likely = (exps / exps.sum(1, keepdims=True))[np.arange(len(y)), y]
  assert found["metrics"]["loss"] == pytest.approx(-np.log(likely).mean(), rel=1e-5)
  json.dumps(found)
  assert f"{BATCH + 44} official test examples: top-1" in str(OfficialTest.rows({"official": found}))
  assert OfficialTest.rows({}) is None and OfficialTest(run).section(now._replace(diverged=True)) == {}


def test_it_is_judged_at_every_evaluation_if_asked():
  """`best` is the first best of the recorded rounds, also of a run that was continued; by default nothing."""
  run, now = official(30, record_official=True)
  OfficialTest.check_run(True, run)
  now = now._replace(evaluations=object(), seconds={"train": 2.0})
  study, plain = OfficialTest(run), OfficialTest(official(30)[0])
  zero = jax.tree.map(np.zeros_like, now.broadcast())
  rounds = [(1, zero), (2, now.broadcast()), (3, now.broadcast())]
  found = []
  for round, broadcast in rounds:
    line = study.watch(None, now._replace(round=round, broadcast=lambda own=broadcast: own))
    found.append(line["official"]["top1"])
    state = json.loads(json.dumps(study.checkpoint_state()))
    study = OfficialTest(run)
    study.resume(round, state)
  assert study.watch(None, now._replace(evaluations=None)) == {}
  own = study.section(now)["official"]
  place = int(np.argmax(found))
  assert own["best"] == {"value": max(found), "round": place + 1, "seconds": 2.0}
  assert plain.watch(None, now) == {} and plain.checkpoint_state() is None
  assert plain.section(now)["official"] == {name: own[name] for name in ("examples", "metrics")}
  with pytest.raises(fh.SettingError, match="record_official = True: digits has no official test set"):
    OfficialTest.check_run(True, official(0)[0])
  config = get_config("algorithm=fedper")
  config.record_official = True
  with pytest.raises(fh.SettingError, match="record_official = True: fedper has no global model"):
    plan(config)


def test_it_is_judged_only_where_there_is_one():
  run, _ = official(0)
  assert not OfficialTest.fits(run)
  run, _ = official(5)
  assert not OfficialTest.fits(run._replace(source=run.source._replace(standardize=(0,))))
  alone = run.algorithm.client._replace(global_model=None)
  assert not OfficialTest.fits(run._replace(algorithm=run.algorithm._replace(client=alone)))


def test_the_terminal_shows_the_means_by_examples():
  metrics = {"global": {"top1": {"mean": 0.5, "std": 0.0}}}
  group = ClientMetrics.rows({"metrics": metrics, "weighted": {"global": {"top1": 0.625}}})
  assert "each client counting by its test examples: global top-1" in str(group.renderables[1])


def test_a_partition_may_have_a_seed_of_its_own():
  digest = lambda *seeds: build(plan(config_with(*seeds))).digests["clients_digest"]  # noqa: E731
  as_run = digest(5, None)
  assert digest(6, None) != as_run == digest(6, 5) == digest(7, 5)
  first, second = (build(plan(config_with(seed, 5))) for seed in (6, 7))
  assert not np.array_equal(*(jax.random.key_data(each.key) for each in (first, second)))
  assert any("partition.seed = 5" in note for note in notes_of(first))
  _, configs = check_sweep(config_with(0, 5), {"seed": [0, 1]})
  assert [own.partition_seed for own in configs] == [5, 5]
  assert "partition.seed" in {field.path for field in fields(config_with(0, 5).to_dict())}
  for wrong in (-1, 0.5, "a", 2**32, True):
    with pytest.raises(fh.SettingError, match=r"partition\.seed"):
      config_with(0, wrong)


def config_with(seed, own):
  config = get_config("algorithm=fedavg")
  config.seed = seed
  config.partition.seed = own
  plan(config)
  return config
