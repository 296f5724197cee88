"""A study on the digits: what its trials reach, what they may see, and that a kill changes nothing."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from quick_compiler import environment

from fedjax_het.config.plan import plan
from fedjax_het.config.quickstart import get_config
from fedjax_het.engine.base import Runs
from fedjax_het.errors import NonFiniteLoss, SettingError
from fedjax_het.experiment.sweep import run_sweep
from fedjax_het.program.stopping import Stopped
from fedjax_het.program.where import Where
from fedjax_het.tune import rung as rungs
from fedjax_het.tune import study
from fedjax_het.tune.space import Span
from fedjax_het.tune.study import run_tune
from fedjax_het.workdir.folder import Workdir

pytest.importorskip("optuna")
ROOT = Path(__file__).parents[2]
ONE = Where(devices=1)
SPACE = {"local.lr": Span(0.01, 1.0, log=True)}


def small(**changes):
  config = get_config("algorithm=fedavg")
  config.update(rounds=6, eval_every=2, num_clients=6, cohort_size=3, valid_fraction=0.2)
  config.model.hidden = 4
  config.update(changes)
  return config


def lines(folder):
  return [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_trials_are_members_of_a_sweep_by_validation_alone(tmp_path, monkeypatch):
  real, seen = Runs.evaluate, []

  def evaluate(self, state, part="test", *more, **named):
    seen.append((type(self).__name__, part))
    return real(self, state, part, *more, **named)

  monkeypatch.setattr(Runs, "evaluate", evaluate)
  summary, trials = run_tune(small(), SPACE, str(tmp_path / "study"), ONE, trials=6, batch=4)
  assert {own for own in seen if own[0] == "Members"} == {("Members", "valid")}
  assert ("Engine", "test") in seen
  found = lines(tmp_path / "study")
  assert [own["trial"] for own in found] == [*range(6)] and [own["batch"] for own in found] == [0] * 4 + [
    1
  ] * 2
  # 4, 2, 1 trials of the first batch and 2, 1, 1 of the second one.
  assert sorted(len(own["rungs"]) for own in found) == [1, 1, 1, 2, 3, 3]
  assert [own.state == "complete" for own in trials] == [len(own["rungs"]) == 3 for own in found]
  values = [own["values"]["local.lr"] for own in found]
  assert all(0.01 <= value <= 1.0 for value in values) and len({*values}) == 6
  summaries = run_sweep(small(), {"local.lr": values}, str(tmp_path / "sweep"), ONE)
  for own, value, of_sweep in zip(found, values, summaries):
    folder = tmp_path / "sweep" / "members" / f"local.lr={value}"
    judged = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    valid = {line["round"]: line["valid"]["personalized"]["top1"]["mean"] for line in judged}
    assert own["rungs"] == [{"round": r, "valid": valid[r]} for r in (2, 4, 6)[: len(own["rungs"])]]
    assert len(own["rungs"]) < 3 or own["client_steps"] == of_sweep["client_steps"]
  best = max((own for own in found if len(own["rungs"]) == 3), key=lambda own: own["rungs"][-1]["valid"])
  config = json.loads((tmp_path / "study" / "best" / "config.json").read_text())
  assert config["local"]["lr"] == best["values"]["local.lr"]
  assert summary["valid"]["personalized"]["top1"]["mean"] == pytest.approx(
    best["rungs"][-1]["valid"], abs=0.05
  )
  assert (tmp_path / "study" / "figures" / "tuning.png").stat().st_size > 5000
  seen.clear()  # a complete study is shown again, and other settings are refused
  again, same = run_tune(small(), SPACE, str(tmp_path / "study"), ONE, trials=6, batch=4)
  assert not seen and again["metrics"] == summary["metrics"] and same == trials
  with pytest.raises(SettingError, match=r"trials = 7: the study in .* was begun with trials = 6"):
    run_tune(small(), SPACE, str(tmp_path / "study"), ONE, trials=7, batch=4)


def test_trials_of_a_list_with_a_float_train_with_floats(tmp_path):
  """Batches of whole numbers alone would need a program of their own."""
  space = {"local.lr": (1, 0.5), "local.momentum": (0, 0.9), "algorithm.mu": (0, 1)}
  own = study.Study(Workdir(tmp_path), {}, space, plan(small()), True, 4, 2)
  drawn = []
  for number in range(4):
    own._ask(number)
    drawn.append(own._values(number))
  assert {type(values[path]) for values in drawn for path in ("local.lr", "local.momentum")} == {float}
  assert {type(values["algorithm.mu"]) for values in drawn} == {int}


@pytest.mark.slow
def test_trials_that_diverge_are_left(tmp_path):
  space = {"local.lr": (0.1, 1e30)}
  _, trials = run_tune(small(rounds=3, eval_every=3), space, str(tmp_path / "a"), ONE, trials=4, batch=4)
  states = {own.values["local.lr"]: own.state for own in trials}
  assert states[1e30] == "diverged" and "complete" in {own.state for own in trials}
  assert all(math.isnan(own.value) for own in trials if own.state == "diverged")
  with pytest.raises(NonFiniteLoss, match="Every trial has diverged"):
    space = {"local.lr": (1e30, 2e30)}
    run_tune(small(rounds=3, eval_every=3), space, str(tmp_path / "b"), ONE, trials=2, batch=2)


@pytest.mark.slow
def test_a_request_to_stop_keeps_the_rung(tmp_path, monkeypatch):
  real, stops = rungs.chunks, []

  def chunks(*args, **more):
    for chunk in real(*args, **more):
      yield chunk
      if not stops:
        stops.append(os.kill(os.getpid(), signal.SIGTERM))

  unbroken = run_tune(small(), SPACE, str(tmp_path / "a"), ONE, trials=2, batch=2)[1]
  monkeypatch.setattr(rungs, "chunks", chunks)
  with pytest.raises(Stopped, match="Stopped by SIGTERM; the same command goes on"):
    run_tune(small(), SPACE, str(tmp_path / "b"), ONE, trials=2, batch=2)
  assert run_tune(small(), SPACE, str(tmp_path / "b"), ONE, trials=2, batch=2)[1] == unbroken


@pytest.mark.slow
def test_a_study_goes_on_from_every_step_between_rungs(tmp_path, monkeypatch):
  """It is broken off before and after each write of storage and checkpoints, and ends as an unbroken one."""
  steps = [
    (study.Study, "_ask"), (study, "hand_on"), (study.Study, "_settle"), (study.Study, "_write"),
    (study.Study, "_report"),
  ]  # fmt: skip
  unbroken = run_tune(small(), SPACE, str(tmp_path / "a"), ONE, trials=3, batch=2)[1]
  for place, name in steps:
    real = getattr(place, name)
    for before in (True, False):

      def broken(*args, real=real, before=before):
        if not before:
          real(*args)
        raise InterruptedError

      monkeypatch.setattr(place, name, broken)
      with pytest.raises((InterruptedError, SettingError)):
        run_tune(small(), SPACE, str(tmp_path / "b"), ONE, trials=3, batch=2)
    monkeypatch.setattr(place, name, real)
  assert run_tune(small(), SPACE, str(tmp_path / "b"), ONE, trials=3, batch=2)[1] == unbroken


@pytest.mark.slow
def test_a_killed_study_goes_on_as_an_unbroken_one(tmp_path):
  flags = [
    "--config=configs/quickstart.py:algorithm=fedavg", "--config.rounds=6", "--config.model.hidden=4",
    "--config.num_clients=6", "--config.cohort_size=3", "--config.valid_fraction=0.2", "--trials=6",
    "--batch=4", "--space.local.lr=0.01:1:log", "--mesh=clients:1", "--space.local.weight_decay=0.0001,0.01",
  ]  # fmt: skip

  def start(folder):
    command = [sys.executable, "-m", "fedjax_het.tune", *flags, f"--workdir={folder}"]
    return subprocess.Popen(
      command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )

  def killed(folder, when):
    process = start(folder)
    while not when() and process.poll() is None:
      time.sleep(0.02)
    process.kill()
    told, _ = process.communicate()
    assert process.returncode == -signal.SIGKILL, told
    assert not (folder / "best" / "summary.json").exists()

  unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"

  def done():
    return len(lines(broken)) if (broken / "trials.jsonl").exists() else 0

  said, _ = (process := start(unbroken)).communicate()
  assert process.returncode == 0, said
  assert "space: local.lr: numbers from 0.01 to 1, log-uniform" in said and "Best of 6 trials" in said
  checkpoints = broken / "checkpoints"
  killed(broken, (broken / "study.db").exists)
  # A rung's folder may be gone before it is seen; what trials.jsonl has by then stays.
  killed(broken, lambda: (checkpoints / "batch0" / "rung1").exists() or done() >= 4)
  killed(broken, lambda: (checkpoints / "batch1" / "rung0").exists() or done() == 6)
  killed(broken, lambda: done() == 6)
  said, _ = (process := start(broken)).communicate()
  assert process.returncode == 0, said
  assert (broken / "trials.jsonl").read_bytes() == (unbroken / "trials.jsonl").read_bytes()
  summaries = [json.loads((folder / "best" / "summary.json").read_text()) for folder in (broken, unbroken)]
  assert summaries[0]["metrics"] == summaries[1]["metrics"]
  assert not [path for path in checkpoints.glob("batch*")]
