"""What a run tells of its conditions: their names, the honest clients, and rounds without uploads."""

import io
import json
from types import SimpleNamespace

import numpy as np
import pytest
from launching import config_of, records, start
from rich.console import Console

from fedjax_het.compare.runs import find
from fedjax_het.conditions import conditions_of, in_words
from fedjax_het.engine.round import RoundInfo, over_rounds
from fedjax_het.experiment.moments import together
from fedjax_het.experiment.report import report
from fedjax_het.studies import plots
from fedjax_het.studies.plots import learning_curve
from fedjax_het.studies.reported import Arrivals, Attacked
from fedjax_het.studies.study import Curve, Moment

FEW = dict(algorithm={"name": "fedavg"}, rounds=4, eval_every=2, model={"name": "logistic_regression"})


def shown(summary):
  out = io.StringIO()
  Console(file=out, width=100).print(report(summary))
  return out.getvalue()


def test_conditions_are_those_that_change_something():
  sections = {
    "attack": {"name": "alie", "share": 0.2}, "uploads": [{"name": "clip"}, {"name": "sign"}],
    "participation": {"name": "uniform"}, "aggregation": {"name": "mean"}, "asynchronous": {"buffer": 3},
    "system": {}, "mixing": {"name": "krum"}, "rounds": 5,
  }  # fmt: skip
  found = conditions_of(sections)
  assert found == {"uploads": ["clip", "sign"], "attack": "alie", "asynchronous": "fedbuff"}
  assert in_words(found) == "uploads clip and sign, attack alie, asynchronous fedbuff"
  assert conditions_of({"uploads": (), "attack": "alie"}) == {}
  assert "conditions: attack alie\n" in shown({"conditions": {"attack": "alie"}})
  assert "conditions" not in shown({})
  summary = {"metrics": {}, "honest": 16, "num_clients": 20}
  assert "means over the 16 honest of 20 clients" in shown(summary)


def moment(done, evaluations=None):
  return Moment(done, evaluations, False, None, None, None)


def infos(present, dishonest=()):
  clients = SimpleNamespace(loss=np.arange(1.0, 1 + np.size(present)).reshape(np.shape(present)))
  return RoundInfo(None, None, None, clients, present=np.array(present), dishonest=dishonest)


def test_rounds_without_uploads_are_counted_also_after_a_stop():
  some = infos([[True, False], [False, False], [False, False]])
  going, ended = moment(3), moment(4, SimpleNamespace())
  study = Arrivals(None)
  study.resume(0, None)
  assert study.watch(some, going) == {} and study.section(ended) == {"participation": {"empty": 2 / 3}}
  later, earlier = Arrivals(None), Arrivals(None)
  kept = json.loads(json.dumps(study.checkpoint_state()))
  later.resume(3, kept)
  one = infos([[True, True]])
  assert later.watch(one, ended) == study.watch(one, ended) == {
    "participation": {"arrived": 0.75, "empty": 0.5}
  }  # fmt: skip
  assert later.section(ended) == study.section(ended) == {"participation": {"empty": 0.5}}
  earlier.resume(3, {"arrived": [1, 0, 0], "empty": [0.0, 1.0, 1.0]})  # of a version that did not count
  assert earlier.watch(one, ended)["participation"]["empty"] == 0.5 and earlier.section(ended) == {}
  assert "20.0 % of the rounds had no upload." in shown({"participation": {"empty": 0.2}})
  assert "No round had an upload" in shown({"participation": {"empty": 1.0}})
  assert "upload" not in shown({"participation": {"empty": 0.0}})


def test_progress_of_a_sweep_leaves_out_the_losses_over_nobody():
  found = together([{"train_loss": 1.0, "top1": np.nan}, {"train_loss": np.nan, "top1": np.nan}])
  assert found["train_loss"] == 1.0 and np.isnan(found["top1"])


def test_a_loss_over_nobody_is_none():
  study, ended = Attacked(None), moment(2, SimpleNamespace())
  study.resume(0, None)
  bad = np.array([[False, True], [False, True]])
  assert study.watch(infos([[True, False], [True, True]], bad), ended) == {
    "attack": {"attackers": 0.5, "attackers_loss": 4.0}
  }  # fmt: skip
  found = study.watch(infos([[True, False]], bad[:1]), ended)["attack"]
  assert found["attackers"] == 0 and np.isnan(found["attackers_loss"])
  assert np.isnan(over_rounds([])) and over_rounds([1.0, 2.0]) == 1.5


def test_a_value_that_is_none_is_a_gap_and_a_missing_one_is_not(tmp_path, monkeypatch):
  drawn = []
  monkeypatch.setattr(plots, "save", lambda figure, path: drawn.append(figure) or path)
  holes = np.array([1.0, np.nan, 3.0, np.nan])
  there = np.array([True, True, True, False])
  curves = [Curve("a", "cohort", holes, there=there), Curve("b", "cohort", holes)]
  learning_curve(np.arange(1, 5), curves, tmp_path / "a.png")
  first, second = (ax.lines[0] for ax in drawn[0].axes)
  np.testing.assert_array_equal(first.get_ydata(), [1.0, np.nan, 3.0])
  np.testing.assert_array_equal(second.get_ydata(), [1.0, 3.0])
  assert "last: 3" in first.get_label()


@pytest.mark.slow
def test_a_run_in_which_nobody_arrives(tmp_path, monkeypatch):
  panels = []
  draw = learning_curve
  monkeypatch.setattr(
    "fedjax_het.experiment.record.learning_curve",
    lambda rounds, curves, *more, **named: panels.append([own.metric for own in curves]) or draw(
      rounds, curves, *more, **named
    ),
  )  # fmt: skip
  attack = {"name": "sign_flip", "share": 0.25}
  config = config_of(**FEW, system={"name": "lognormal", "deadline": 1e-3}, attack=attack)
  summary = start(config, str(tmp_path / "late"))
  assert summary["conditions"] == {"attack": "sign_flip", "system": "lognormal"}
  assert summary["participation"] == {"empty": 1.0}
  assert 0 < summary["honest"] < summary["num_clients"]
  for line in records(tmp_path / "late"):
    assert line["train_loss"] is None and line["attack"] == {"attackers": 0.0, "attackers_loss": None}
  assert "empty" in panels[0] and "train_loss" in panels[0] and not {"arrived", "attackers"} & {*panels[0]}
  (tmp_path / "late" / "summary.json").unlink()
  (run,) = find([tmp_path / "late"])
  assert run.state == "round 4 of 4"
