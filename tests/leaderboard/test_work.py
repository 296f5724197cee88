"""The board's work: rows that are there are skipped, others are made until the time is over, and go on."""

import json
import signal
from pathlib import Path

import pytest

from fedjax_het.engine.base import Runs
from fedjax_het.errors import NonFiniteLoss, SettingError
from fedjax_het.leaderboard import row as rows
from fedjax_het.leaderboard.board import Row, read_board, rows_of
from fedjax_het.leaderboard.raw import fingerprint, made_by, path_of, read_raw, write_raw
from fedjax_het.leaderboard.row import at_edge, figures, make_row
from fedjax_het.leaderboard.work import OfOne, states_of, tell, told, work
from fedjax_het.program.stopping import Stopped
from fedjax_het.program.where import Where
from fedjax_het.tune.space import Span

ROOT = Path(__file__).parents[2]
TINY = read_board(ROOT / "tests" / "shared" / "tiny_board.py")
ONE = Where(devices=1)
ALL = rows_of(TINY, [], [])


def made(row, mean=0.5):
  seeds = {str(seed): {"mean": mean + 0.01 * seed} for seed in (1, 2)}
  return {
    "made_by": made_by(TINY, row), "metric": "top1", "chosen": {"local.lr": 0.1}, "seeds": seeds,
    "tuning": {"seconds": 2.0}, "seconds": 1.0,
  }  # fmt: skip


def test_rows_are_there_stale_missing_refused_or_elsewhere(tmp_path, capsys):
  write_raw(tmp_path, Row("one", "fedavg"), made(Row("one", "fedavg")))
  old = made(Row("one", "ditto"))
  old["made_by"]["trials"] = 9
  write_raw(tmp_path, Row("one", "ditto"), old)
  path_of(tmp_path, Row("one", "qffl")).write_text("{ damaged")
  found = states_of(TINY, ALL, tmp_path, on_gpu=False)
  assert [*found.there] == [Row("one", "fedavg"), Row("one", "ditto")]
  assert found.stale == {Row("one", "ditto"): ["trials = 5, was 9"]}
  assert found.missing == [Row("one", "qffl"), Row("one", "adam")]
  assert {*found.refused} == {Row("one", "cfl"), Row("two", "cfl")}
  assert "needs all 6 clients" in found.refused[Row("one", "cfl")]
  assert [row.method for row in found.elsewhere] == ["fedavg", "ditto", "qffl", "adam"]
  assert len(states_of(TINY, ALL, tmp_path, on_gpu=True).missing) == 6
  tell(found)
  said = capsys.readouterr().out
  assert "2 rows are there, 2 are missing, 4 need a GPU, 2 do not go together." in said
  assert "stale: one, ditto: trials = 5, was 9." in said


def test_no_row_is_begun_when_the_time_is_over_and_the_next_call_goes_on(tmp_path, capsys):
  raw, places = tmp_path / "raw", []
  now = iter(range(0, 10_000, 50))

  def make(board, row, place, where, display, **settings):
    places.append((row, place, settings["data_dir"]))
    return made(row)

  def call(minutes):
    missing = states_of(TINY, ALL, raw, on_gpu=True).missing
    return work(
      TINY,
      missing,
      raw,
      tmp_path / "wd",
      ONE,
      minutes=minutes,
      data_dir="D",
      make=make,
      clock=lambda: next(now),
    )

  assert call(0.0) == []  # which is over at once
  assert [row.method for row in call(1.5)] == ["fedavg"]
  assert "1.5 minutes are over: 7 rows are left" in capsys.readouterr().out
  begun = call(1000.0)
  assert [row.method for row in begun] == ["ditto", "qffl", "adam", "fedavg", "ditto", "qffl", "adam"]
  assert call(1000.0) == []  # all are there
  first, place, data = places[0]
  assert data == "D" and place == tmp_path / "wd" / "one" / f"fedavg-{fingerprint(made_by(TINY, first))}"
  assert "board ETA" in capsys.readouterr().out


def test_a_rows_result_in_a_line():
  text = told(made(Row("one", "fedavg")))
  assert text == "top1 0.5150 over 2 seeds with local.lr = 0.1, after 3 s"


def test_figures_of_a_seed():
  summary = {
    "metrics": {"personalized": {"auroc": {"mean": 0.7, "worst10": 0.5}, "ece": {"mean": 0.1}}},
    "weighted": {"personalized": {"auroc": 0.8}}, "bytes": {"up": 3, "down": 4}, "client_steps": 9,
    "seconds": {"train": 1.0, "compile": 2.0},
  }  # fmt: skip
  assert figures(summary, "auroc") == {
    "mean": 0.7, "worst": 0.5, "weighted": 0.8, "global": None, "ece": 0.1, "up": 3, "down": 4,
    "client_steps": 9, "train_seconds": 1.0, "compile_seconds": 2.0,
  }  # fmt: skip
  assert figures(summary | {"diverged": {"round": 3}}, "auroc") == {"diverged": True}


def test_values_at_the_edge_of_their_range():
  space = {"a": Span(0.01, 1.0, True), "b": Span(0.0, 1.0), "c": (1, 2)}
  assert at_edge({"a": 0.012, "b": 0.5, "c": 1}, space) == ["a"]
  assert at_edge({"a": 0.9, "b": 0.97, "c": 2}, space) == ["a", "b"]
  assert at_edge({"a": 0.013, "b": 0.05, "c": 2}, space) == []


@pytest.mark.parametrize(
  ("error", "noted"),
  [
    (NonFiniteLoss("Every trial has diverged."), True),
    (SettingError("model", "m", "has no head", "Take another."), True),
    (SettingError("algorithm.lam", 1, "is too much", "Take less."), True),
    (SettingError("calibration", "fedlc", "goes by classes", "Leave it out."), True),
    (SettingError("workdir", "w", "is of another study", "Take another."), False),
  ],
)
def test_a_row_that_fails_is_noted_and_a_mistake_of_the_call_is_not(error, noted, tmp_path, monkeypatch):
  def find(*args, **settings):
    raise error

  monkeypatch.setattr(rows, "find", find)
  try:
    found = make_row(TINY, Row("one", "fedavg"), tmp_path, ONE, OfOne(""))
  except SettingError:
    assert not noted
  else:
    assert noted and found["failed"] == str(error) and "seeds" not in found
    assert json.loads((tmp_path / rows.CLOCK).read_text())["tuning"] >= 0


@pytest.mark.slow
def test_a_row_that_was_stopped_goes_on_and_is_judged_by_validation(tmp_path, monkeypatch):
  pytest.importorskip("optuna")
  row, real, seen = Row("one", "fedavg"), Runs.evaluate, []

  def evaluate(self, state, part="test", *more, **named):
    seen.append(part)
    return real(self, state, part, *more, **named)

  monkeypatch.setattr(Runs, "evaluate", evaluate)
  with monkeypatch.context() as patch:

    def stopped(*args, **settings):
      raise Stopped("Stopped.", signal.SIGTERM)

    patch.setattr(rows, "run_sweep", stopped)
    with pytest.raises(Stopped):
      make_row(TINY, row, tmp_path / "a", ONE, OfOne(""))
  assert {*seen} == {"valid"}
  seen.clear()
  work(TINY, [row], tmp_path / "raw", tmp_path / "b", ONE, minutes=1.0)
  whole = read_raw(tmp_path / "raw", row)
  count = len(seen)
  seen.clear()
  found = json.loads(json.dumps(make_row(TINY, row, tmp_path / "a", ONE, OfOne(""))))
  assert 0 < len(seen) < count  # the trials were not trained again
  for own in (found, whole):
    for seed in own["seeds"].values():
      seed.pop("train_seconds"), seed.pop("compile_seconds")
  assert found["seeds"] == whole["seeds"] and found["chosen"] == whole["chosen"]
  assert found["tuning"]["states"] == {"complete": 1, "pruned": 3} and found["num_clients"] == 6
  assert {*found["seeds"]} == {*"12345"} and found["tuning"]["valid"] == whole["tuning"]["valid"]
