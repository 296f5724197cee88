"""Early stopping by validation: when, why, resumed, and the model of the best round."""

import json

import numpy as np
import pytest
from launching import config_of, records, small, start

import fedjax_het as fh
from fedjax_het.config.grid import check_sweep
from fedjax_het.config.plan import plan
from fedjax_het.engine import stopping
from fedjax_het.engine.stopping import Stopping
from fedjax_het.errors import SettingError
from fedjax_het.workdir.checkpoint import Checkpoints


def rounds_of(values, metric="top1", **settings):
  """(rounds that were the best so far, the round of the end, why), of a course of values."""
  own, best = Stopping(**settings), []
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(stopping, "pick", lambda evaluations: evaluations)
    patch.setattr(stopping, "on_validation", lambda value: {"personalized": {metric: {"mean": value.value}}})
    for number, value in enumerate(values, 1):
      seen = type("Seen", (), {"value": value, "column": 0})
      if own.watch(number, seen):
        best.append(number)
      if own.why:
        return best, number, own.why
  return best, None, ""


def test_a_run_ends_when_nothing_has_improved_for_so_many_evaluations():
  best, end, why = rounds_of([0.1, 0.3, 0.2, 0.3, 0.25, 0.9], patience=3)
  assert (best, end) == ([1, 2], 5)
  assert (
    why
    == "The personalized top1 on the validation parts has not improved on 0.3 of round 2 in 3 evaluations."
  )
  assert rounds_of([0.1, 0.2, 0.3, 0.2, 0.4], patience=2) == ([1, 2, 3, 5], None, "")
  assert rounds_of([0.1, 0.105, 0.109, 0.2], patience=2, least=0.01)[:2] == ([1], 3)
  assert rounds_of([3.0, 2.0, 2.5, 1.0], metric="loss", patience=2)[0] == [1, 2, 4]
  assert rounds_of([np.nan, np.nan, 0.1, np.nan], patience=2) == ([3], None, "")


@pytest.mark.parametrize(
  ("changes", "problem"),
  [
    ({"stopping": {"least": 0.1}}, r"stopping\.patience = None: is missing"),
    ({"stopping": {"patience": 0}}, r"stopping\.patience = 0"),
    ({"stopping": {"patience": 2, "model": "globl"}}, r"stopping\.model = 'globl'.*global"),
    ({"stopping": {"patience": 2}, "valid_fraction": 0.0}, "there are no validation parts to go by"),
    ({"stopping": {"patience": 2}, "eval_every": None}, "only the last round is evaluated"),
  ],
)
def test_a_section_that_cannot_be_is_refused(changes, problem):
  with pytest.raises(SettingError, match=problem):
    plan(config_of(**changes))


def test_what_cannot_be_stopped_is_refused():
  with pytest.raises(SettingError, match=r"stopping\.model = 'global': fedper has no global model"):
    plan(config_of("algorithm=fedper", stopping={"patience": 2, "model": "global"}))
  with pytest.raises(SettingError, match="all train to the last round"):
    check_sweep(config_of(stopping={"patience": 2}), {"seed": [0, 1]})


def stopped(**more):
  """Evaluates every round; nothing counts as an improvement, so the first evaluation is the best."""
  own = {"patience": 2, "least": 1.0, **more}
  return small(algorithm={"name": "fedavg"}, rounds=7, eval_every=1, stopping=own)


@pytest.mark.slow
def test_a_run_ends_early_says_why_and_keeps_the_best_round_s_model(tmp_path):
  summary = start(stopped(keep_best=True), str(tmp_path / "run"))
  assert summary["rounds"] == 3 and [line["round"] for line in records(tmp_path / "run")] == [1, 2, 3]
  own = summary["stopping"]
  assert own["round"] == 1 and own["waited"] == 2 and "has not improved on" in own["why"]
  again = start(stopped(keep_best=True), str(tmp_path / "run"))  # complete
  assert again["rounds"] == 3
  one = start(small(algorithm={"name": "fedavg"}, rounds=1, eval_every=1), str(tmp_path / "one"))
  assert summary["bytes"]["up"] == 3 * one["bytes"]["up"]
  best, last = fh.load_run(tmp_path / "run", best=True), fh.load_run(tmp_path / "run")
  expected = fh.load_run(tmp_path / "one")
  for name, leaf in expected.model_of()["fc1"].items():
    np.testing.assert_array_equal(best.model_of()["fc1"][name], leaf)
    assert (np.asarray(last.model_of()["fc1"][name]) != np.asarray(leaf)).any()
  with pytest.raises(SettingError, match="keep_best"):
    fh.load_run(tmp_path / "one", best=True)


@pytest.mark.slow
def test_a_killed_run_ends_where_an_uninterrupted_one_does(tmp_path, monkeypatch):
  whole = start(stopped(), str(tmp_path / "whole"))

  class Killed(Exception):
    pass

  def killed_after(round):
    save = Checkpoints.save

    def saved(self, done, *args):
      save(self, done, *args)
      self.wait()
      if done == round:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
      patch.setattr(Checkpoints, "save", saved)
      start(stopped(), str(tmp_path / "run"))

  killed_after(2)  # before the end
  killed_after(3)  # at the end, before the summary
  summary = start(stopped(), str(tmp_path / "run"))
  assert summary["stopping"] == whole["stopping"] and summary["metrics"] == whole["metrics"]
  assert records(tmp_path / "run") == records(tmp_path / "whole")
  assert json.loads((tmp_path / "run" / "summary.json").read_text())["rounds"] == 3
