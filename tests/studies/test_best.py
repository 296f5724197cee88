"""The best of all evaluations, when a level was reached, and whether a stop changes what is remembered."""

import types

import numpy as np
import pytest
from small_parts import mlp

import fedjax_het as fh
from fedjax_het.engine.evaluate import Evaluation
from fedjax_het.engine.lambda_selection import Evaluations
from fedjax_het.studies.best import Best, best, reached, sooner
from fedjax_het.studies.study import Moment

COURSE = {"rounds": [5, 10, 15, 20], "seconds": [1.0, 2.5, 3.0, 9.0], "global": [0.2, 0.6, None, 0.6]}


def test_the_first_best_and_the_first_that_is_good_enough():
  assert best(COURSE, "global", "top1") == {"value": 0.6, "round": 10, "seconds": 2.5}
  assert best(COURSE, "global", "loss") == {"value": 0.2, "round": 5, "seconds": 1.0}
  gone = {**COURSE, "global": [None, float("nan"), None, None]}
  assert best(gone, "global", "top1") == {"value": None, "round": None, "seconds": None}
  assert reached(COURSE, "global", 0.6, "top1") == {"round": 10, "seconds": 2.5}
  assert reached(COURSE, "global", 0.61, "top1") == {"round": None, "seconds": None}
  assert reached(COURSE, "global", 0.3, "rmse") == {"round": 5, "seconds": 1.0}


def test_how_many_times_sooner():
  own = {"metric": "top1", "course": {**COURSE, "global": [0.5, 0.7, 0.7, 0.7]}}
  other = {"metric": "top1", "course": COURSE, "global": {"value": 0.6, "round": 20, "seconds": 5.0}}
  assert sooner(own, other, "global") == 2.0
  assert sooner(own, other, "global", of="seconds") == 2.0  # of 5.0 and 2.5
  own["course"]["seconds"] = [1.0, 4.0, 5.0, 6.0]
  assert sooner(own, other, "global", of="seconds") == 1.25
  own["course"]["global"] = [0.5, 0.5, 0.5, 0.59]
  assert sooner(own, other, "global") is None and sooner(own, other, "global", "seconds") is None


def evaluation(personalized, global_):
  return Evaluation({"top1": np.array(personalized)[:, None]}, {"top1": np.array(global_)})


def moment(round, own, global_, seconds):
  evaluations = Evaluations(evaluation(own, global_), headlines=("top1",))
  nothing = lambda *_: None  # noqa: E731
  return Moment(round, evaluations, False, nothing, nothing, nothing, {"train": seconds})


def test_a_run_s_course_also_after_a_stop():
  run = types.SimpleNamespace(config=types.SimpleNamespace(studies={"to_accuracy": {"global": 0.45}}))
  study = Best(run)
  study.resume(0, None)
  assert study.section(moment(0, [0.0], [0.0], 0.0)) == {}
  study.watch(None, moment(3, [0.25, 0.75], [0.5, 0.0], 1.5))
  study.watch(None, moment(4, [0.0], [0.0], 1.6)._replace(evaluations=None))
  books = study.checkpoint_state()
  other = Best(run)
  other.resume(3, books)
  study.watch(None, moment(6, [1.0, 1.0], [1.0, 1.0], 7.0))  # lost with the stop
  other.watch(None, moment(6, [0.25, 0.5], [0.5, 0.5], 4.0))
  found = other.section(moment(6, [0.0], [0.0], 0.0))
  assert found["best"] == {
    "metric": "top1",
    "course": {"rounds": [3, 6], "seconds": [1.5, 4.0], "personalized": [0.5, 0.375], "global": [0.25, 0.5]},
    "personalized": {"value": 0.5, "round": 3, "seconds": 1.5},
    "global": {"value": 0.5, "round": 6, "seconds": 4.0},
  }
  assert found["to_accuracy"] == {"global": {"level": 0.45, "round": 6, "seconds": 4.0}}
  text = "\n".join(str(line) for line in Best.rows(found).renderables)
  assert "  personalised 50.00 (round 3)\n  global 50.00 (round 6)\n" in text
  assert "in round 6, after 4 s" in text


def test_a_level_of_one_model():
  study = Best(types.SimpleNamespace(config=types.SimpleNamespace(studies={"to_accuracy": {"global": 0.45}})))
  study.resume(0, None)
  study.watch(None, moment(3, [0.5, 0.5], [0.5, 0.5], 2.0))
  found = study.section(moment(3, [0.5, 0.5], [0.5, 0.5], 2.0))
  assert found["to_accuracy"] == {"global": {"level": 0.45, "round": 3, "seconds": 2.0}}


def test_levels_that_are_refused():
  client = fh.fedavg(mlp())
  for good in (None, {}, 0.7, {"global": 0.5}):
    Best.check(good, client)
  for bad in ("much", True, {"global": "much"}, {"all": 0.5}, float("nan"), {"global": float("inf")}):
    with pytest.raises(fh.SettingError, match="to_accuracy"):
      Best.check(bad, client)
  local = client._replace(global_model=None, name="local")
  Best.check(0.7, local)  # of the models that there are
  with pytest.raises(fh.SettingError, match="local has no global model"):
    Best.check({"global": 0.5}, local)
