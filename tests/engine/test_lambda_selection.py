"""The λ of the headline: picked on validation where there is any, by the task's own metric, never on test."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from small_parts import CLASSES, FEATURES, federation, mlp

import fedjax_het as fh
from fedjax_het.config.plan import plan
from fedjax_het.config.quickstart import get_config
from fedjax_het.engine.evaluate import Evaluation
from fedjax_het.engine.lambda_selection import Evaluations, Pick, pick, picking
from fedjax_het.engine.run import Result, summarize
from fedjax_het.experiment import build, experiment
from fedjax_het.program.where import Where
from fedjax_het.studies.lambda_line import best_lambda, lambda_report

KEY = jax.random.key(0)
NAN = np.nan


def seen(**metrics):
  """An evaluation with these personalised metrics [K, M]; the global model's are the first column."""
  values = {name: np.asarray(own, np.float64) for name, own in metrics.items()}
  values.setdefault("loss", 1.0 - values["top1"])
  return Evaluation(values, {name: own[:, 0] for name, own in values.items()})


TEST = seen(top1=[[0.9, 0.5, 0.1], [0.7, 0.5, 0.1]])
VALID = seen(top1=[[0.1, 0.6, 0.2], [NAN, NAN, NAN]])  # the second client has no validation part


def test_validation_decides_where_there_is_any():
  assert pick(Evaluations(TEST)) == Pick(0, "test", "top1")
  assert pick(Evaluations(TEST, VALID)) == Pick(1, "validation", "top1")
  metrics = summarize(Evaluations(TEST, VALID))
  assert metrics["personalized"]["top1"]["mean"] == pytest.approx(0.5)
  assert metrics["global"]["top1"]["mean"] == pytest.approx(0.8)


def test_one_model_a_client_is_no_pick():
  one = seen(top1=[[0.9], [0.7]])
  assert pick(Evaluations(one)) == Pick(0, "own", "top1")


def test_clients_that_do_not_count_are_counted():
  clients = {
    "personalized": {"top1": np.array([NAN, 1.0]), "loss": np.zeros(2)},
    "global": {"top1": np.ones(2)},
  }
  result = Result(*[None] * 8)._replace(clients=clients)
  assert result.left_out == {"personalized": {"top1": 1}}
  picked = pick(Evaluations(TEST, VALID))
  with_validation = result._replace(picked=picked, validation=VALID)
  assert with_validation.left_out == {"personalized": {"top1": 1}, "validation": {"top1": 1}}
  assert picking(Evaluations(TEST, VALID), picked).tolist() == [True, False]
  assert picking(Evaluations(TEST), pick(Evaluations(TEST))).tolist() == [True, True]
  assert lambda_report((0.0, 0.5, 1.0), Evaluations(TEST, VALID))["picked_clients"] == 1


def test_binary_tasks_pick_by_auroc_and_nobody_of_one_class_counts():
  accuracy = [[0.9, 0.5, 0.1], [0.9, 0.5, 0.1]]
  test = seen(top1=accuracy, auroc=[[0.2, 0.3, 0.8], [NAN, NAN, NAN]])
  assert pick(Evaluations(test)) == Pick(2, "test", "auroc")
  one_class = seen(top1=accuracy, auroc=np.full((2, 3), NAN))
  assert pick(Evaluations(test, one_class)) == Pick(0, "validation", "top1")
  nobody = seen(top1=np.full((2, 3), NAN))
  assert pick(Evaluations(nobody)).column == 0
  assert lambda_report((0.0, 0.5, 1.0), Evaluations(nobody))["common"] is None


def test_the_report_over_lambda_is_of_the_metric_on_test():
  test = seen(top1=[[0.9, 0.9, 0.9]] * 3, auroc=[[0.6, 0.7, 0.9], [NAN] * 3, [0.8, 0.5, 0.1]])
  valid = seen(
    top1=[[0.5, 0.5, 0.5]] * 3, auroc=[[0.9, 0.8, 0.8], [0.2, 0.2, 0.2], [NAN] * 3],
    loss=[[3.0, 2.0, 1.0], [2.0, np.inf, 1.0], [1.0, 1.0, 1.0]],
  )  # fmt: skip
  report = lambda_report((0.0, 0.5, 1.0), Evaluations(test, valid))
  assert report["metric"] == report["picked_by"] == "auroc" and report["picked_on"] == "validation"
  assert report["common"] == 0.0
  np.testing.assert_allclose(report["mean"], [0.7, 0.6, 0.5])
  np.testing.assert_allclose(report["std"], [0.1, 0.1, 0.4])
  assert report["per_client_test_optimistic"]["mean"] == pytest.approx(0.85)
  # The first client's own choice is λ = 0, ties go to the lower loss, and without a value to the common one.
  assert best_lambda(valid, pick(Evaluations(test, valid))).tolist() == [0, 2, 0]
  assert report["validation"]["mean"] == pytest.approx((0.6 + 0.8) / 2)


def test_a_low_metric_is_chosen_by_its_own_direction():
  """Each client's own λ of a loss or an error is the lowest."""
  valid = seen(top1=[[0.0, 0.0]] * 2, mse=[[0.3, 0.2], [0.1, 0.4]])
  assert best_lambda(valid, Pick(0, "validation", "mse")).tolist() == [1, 0]
  assert best_lambda(valid._replace(personalized={**valid.personalized, "r2": valid.personalized["mse"]}),
                     Pick(0, "validation", "r2")).tolist() == [0, 1]  # fmt: skip
  report = lambda_report((0.0, 1.0), Evaluations(valid, valid, headlines=("mse",)))
  assert (report["metric"], report["common"]) == ("mse", 0.0)
  assert report["per_client_test_optimistic"]["mean"] == pytest.approx(0.15) == report["validation"]["mean"]


def contrary(binary=False):
  """Clients whose test labels are others than those they train and validate on: good there is bad here."""
  data = federation((30, 24, 20), tests=(12, 12, 12))
  y = np.asarray(data.y) % 2 if binary else np.asarray(data.y).copy()
  starts, sizes = np.asarray(data.train.start), np.asarray(data.train.size)
  test = data.test.rows()
  y[test] = 1 - y[test] if binary else (y[test] + 1) % CLASSES
  valid = type(data.train)(starts + sizes - 10, np.full_like(sizes, 10))
  train = type(data.train)(starts, sizes - 10)
  return dataclasses.replace(
    data, y=y, num_classes=2 if binary else CLASSES, train=train, valid=valid,
    limits=(20, 10, 12), uniform=(False, True, True),
  )  # fmt: skip


def make(model, nu=1.0):
  return fh.federated(fh.superfed(model, nu=nu, start_round=0, epochs=3, lr=0.2))


@pytest.mark.slow
@pytest.mark.parametrize("binary", [False, True])
def test_a_run_and_a_sweep_pick_on_validation(binary):
  data = contrary(binary)
  model = fh.models.logistic_regression((FEATURES,), 1 if binary else CLASSES)
  metric = "auroc" if binary else "top1"
  settings = {"rounds": 2, "cohort_size": 3, "eval_every": 1, "devices": 1}
  result = fh.run(make(model), data, key=KEY, **settings)
  on_valid, on_test = (
    np.nanmean(e.personalized[metric], axis=0) for e in (result.validation, result.evaluation)
  )
  assert on_valid.argmax() != on_test.argmax()  # or it could not be told
  assert result.picked == (on_valid.argmax(), "validation", metric)
  assert result.metrics["personalized"][metric]["mean"] == pytest.approx(on_test[on_valid.argmax()])
  assert result.history[-1]["metrics"] == result.metrics
  mean = result.metrics["personalized"][metric]["mean"]
  assert f"personalized {metric} {mean:.4f}" in repr(result) and "array" not in repr(result)
  np.testing.assert_array_equal(
    result.clients["personalized"]["loss"], result.evaluation.personalized["loss"][:, on_valid.argmax()]
  )
  swept = fh.sweep(lambda nu: make(model, nu), {"nu": [1.0]}, seeds=KEY[None], data=data, **settings)
  assert swept.picked == [result.picked]
  assert "{'seed': 0, 'nu': 1.0}: personalized" in repr(swept) and "array" not in repr(swept)
  assert swept.metrics[0]["personalized"][metric]["mean"] == pytest.approx(
    result.metrics["personalized"][metric]["mean"], abs=1e-5
  )


@pytest.mark.slow
def test_validation_parts_are_judged_where_there_are_any(monkeypatch):
  """With them each judged round has `valid`; without them there is one evaluation, as ever."""
  real = fh.Engine.evaluate
  parts = []

  def evaluate(self, state, part="test", **named):
    parts.append(part)
    return real(self, state, part, **named)

  monkeypatch.setattr(fh.Engine, "evaluate", evaluate)
  settings = {
    "key": KEY,
    "rounds": 10,
    "cohort_size": 2,
    "eval_every": 5,
    "late_evaluations": 2,
    "devices": 1,
  }
  algorithm, data = fh.federated(fh.fedavg(mlp(), lr=0.1)), contrary()
  result = fh.run(algorithm, data, **settings)
  assert parts == ["test", "valid"] * 3 and result.picked.on == "own" and not result.left_out
  assert [(own["round"], "valid" in own) for own in result.history] == [(5, True), (9, True), (10, True)]
  params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), result.model_of())
  x, y = np.asarray(data.x, np.float64), np.asarray(data.y)
  hidden = np.tanh(x @ params["fc1"]["kernel"] + params["fc1"]["bias"])
  right = (hidden @ params["fc2"]["kernel"] + params["fc2"]["bias"]).argmax(1) == y
  own = [right[start : start + size].mean() for start, size in zip(*map(np.asarray, data.valid))]
  assert result.valid["global"]["top1"]["mean"] == pytest.approx(np.mean(own), abs=1e-6)
  assert result.valid["global"]["top1"]["std"] == pytest.approx(np.std(own), abs=1e-6)
  assert result.valid == result.history[-1]["valid"]
  swept = fh.sweep(
    lambda lr: fh.federated(fh.fedavg(mlp(), lr=lr)), {"lr": [0.1]}, seeds=KEY[None], data=data,
    **{name: own for name, own in settings.items() if name != "key"},
  )  # fmt: skip
  assert swept.valid[0]["global"]["top1"] == pytest.approx(result.valid["global"]["top1"], abs=1e-6)
  parts.clear()
  there = data.valid
  none = dataclasses.replace(
    data, valid=type(there)(there.start, np.zeros_like(there.size)), limits=(20, 0, 12),
    uniform=(False, True, True),
  )  # fmt: skip
  without = fh.run(algorithm, none, **settings)
  assert parts == ["test"] * 3 and without.validation is None and without.valid == {}
  assert not any("valid" in own for own in without.history)
  assert without.metrics == result.metrics  # and training has the same bits
  jax.tree.map(np.testing.assert_array_equal, without.model_of(), result.model_of())


# As launched.


@pytest.mark.slow
def test_a_launched_binary_task_with_clients_of_one_class(tmp_path, monkeypatch, capsys):
  """AUROC picks λ on validation, in the summary and at each evaluation; who has none is counted."""
  source = build.datasets.load("digits")
  binary = source._replace(y=(source.y > 4).astype(np.int32), num_classes=2)
  monkeypatch.setattr(build.datasets, "load", lambda *_, **__: binary)
  config = get_config()
  config.update(rounds=2, eval_every=1, model={"name": "two_nn", "hidden": 4}, num_clients=6)
  config.partition = {"name": "pathological", "shards_per_client": 2}
  config.local.epochs, config.algorithm.start, config.valid_fraction = 1, 0.0, 0.3
  summary = experiment.run_experiment(config, str(tmp_path / "run"), Where(devices=1))
  data = build.build(plan(config)).data
  single = sum(
    len(set(data.y[start : start + size].tolist())) < 2 for start, size in zip(*map(np.asarray, data.test))
  )
  assert 0 < single < 6
  assert summary["left_out"] == {"personalized": {"auroc": single}, "global": {"auroc": single}}
  curve = summary["lambda"]
  assert (curve["metric"], curve["picked_on"], curve["picked_by"]) == ("auroc", "validation", "auroc")
  at = curve["grid"].index(curve["common"])
  assert summary["metrics"]["personalized"]["auroc"]["mean"] == curve["mean"][at]
  lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
  assert lines[-1]["metrics"] == summary["metrics"]
  shown = " ".join(capsys.readouterr().out.split())  # a narrow terminal breaks the lines
  both = sum(
    len(set(data.y[start : start + size].tolist())) == 2 for start, size in zip(*map(np.asarray, data.valid))
  )
  assert curve["picked_clients"] == both < 6
  assert f"{single} client" in shown and f"on the validation parts of {both} clients, by AUROC" in shown
