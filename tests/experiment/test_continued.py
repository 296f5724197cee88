"""Runs that go on: after a checkpoint that was asked for, and for more rounds than they were begun with."""

import json
import os
import signal

import numpy as np
import pytest
from cases import with_every
from launching import records, small, start
from test_launcher import final_state

from fedjax_het.config.plan import plan
from fedjax_het.engine import run as engine_run
from fedjax_het.errors import SettingError
from fedjax_het.experiment import experiment, extend, sweep
from fedjax_het.experiment.recorded import timeless
from fedjax_het.program.where import Where
from fedjax_het.workdir import checkpoint
from fedjax_het.workdir.checkpoint import Checkpoints
from fedjax_het.workdir.folder import prepare


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  """An uninterrupted run and its summary."""
  workdir = tmp_path_factory.mktemp("whole")
  return workdir, start(small(), str(workdir))


@pytest.mark.slow
def test_a_run_that_is_asked_for_a_checkpoint_writes_one_and_goes_on(whole, tmp_path, monkeypatch):
  saved, real, save = [], experiment.chunks, Checkpoints.save

  def asked(*args):
    for chunk in real(*args):
      if int(chunk.state.round) == 5:  # between two evaluations
        os.kill(os.getpid(), signal.SIGUSR1)
      yield chunk

  monkeypatch.setattr(experiment, "chunks", asked)
  monkeypatch.setattr(engine_run, "SECONDS_A_CHUNK", 0.0)  # a round a chunk
  monkeypatch.setattr(
    Checkpoints, "save", lambda self, done, *args: (saved.append(done), save(self, done, *args))
  )
  assert start(small(), str(tmp_path))["metrics"] == whole[1]["metrics"]
  assert saved == [3, 5, 6, 7] and records(tmp_path) == records(whole[0])


@pytest.mark.parametrize(("large", "apart", "written"), [
  (2**28, 60.0, [2, 4, 6]), (0, 0.0, [2, 4, 6]), (0, 60.0, [6]),
])  # fmt: skip
def test_a_large_state_is_not_written_at_evaluations_that_follow_each_other_quickly(
  tmp_path, monkeypatch, large, apart, written
):
  saved, save = [], Checkpoints.save
  monkeypatch.setattr(checkpoint, "LARGE", large)
  monkeypatch.setattr(checkpoint, "LARGE_SECONDS", apart)
  monkeypatch.setattr(
    Checkpoints, "save", lambda self, done, *args: (saved.append(done), save(self, done, *args))
  )
  start(plain(rounds=6, eval_every=2), str(tmp_path))
  assert saved == written


# More rounds, or fewer.


def plain(**changes):
  return small(algorithm={"name": "fedavg"}, model={"name": "logistic_regression"}, **changes)


def by_rounds(rounds):
  return small(
    rounds=rounds, algorithm={"name": "fedevg", "per_class": 1}, model={"name": "energy_mlp"}, local={},
    server={"name": "sgld"},
  )  # fmt: skip


def private(rounds, **changes):
  target = {"name": "gaussian", "epsilon": 8.0}
  return plain(rounds=rounds, mixing={"name": "uniform"}, aggregation=target, **changes)


def begun(folder, config, steps=()):
  """The folder as a run of a configuration leaves it with these checkpoints."""
  run = prepare(folder, config.to_dict())
  for step in steps:
    (run.checkpoints / str(step)).mkdir()
  return run


def test_more_rounds_are_another_t_of_the_same_run(tmp_path):
  run = begun(tmp_path, plain(rounds=9), [6, 9])
  assert extend.earlier_rounds(run, plan(plain(rounds=9))) is None
  assert extend.earlier_rounds(run, plan(plain(rounds=20))) == 9
  assert extend.earlier_rounds(run, plan(plain(rounds=20, data_dir="x")), ["data_dir"]) == 9
  assert extend.earlier_rounds(run, plan(plain(rounds=20, seed=1))) is None  # `check` refuses it
  with pytest.raises(SettingError, match=r"local\.lr = 0\.1.*rounds = 9"):
    start(plain(rounds=20, local__lr=0.1), str(tmp_path))
  assert extend.earlier_rounds(begun(tmp_path / "new", plain(rounds=9)), plan(plain(rounds=3))) == 9


REFUSED = {
  "a share": (
    small(rounds=10), small(rounds=20),
    r"rounds = 20: .*begun with rounds = 10 and algorithm\.start_round = 3, which would be 6 with this many. "
    r"Add --config\.algorithm\.start=None --config\.algorithm\.start_round=3 to go on",
  ),
  "what follows": (
    plain(rounds=10, eval_every=1), plain(rounds=20, eval_every=2),
    r"eval_every = 1, which would be 2 with this many\. Add --config\.eval_every=1 to go on",
  ),
  "a schedule": (
    by_rounds(10), by_rounds(20),
    "server = sgld goes by their number in every round. Use another workdir",
  ),
  "noise for a target, before what follows": (
    private(10, eval_every=1), private(20, eval_every=2),
    "aggregation = gaussian goes by their number in every round. Use another workdir",
  ),
  "fewer than done": (plain(rounds=10), plain(rounds=5), "10 are done. Ask for at least 10, or use another"),
}  # fmt: skip


@pytest.mark.parametrize("why", REFUSED)
def test_rounds_that_would_be_another_method_are_refused(tmp_path, why):
  old, new, message = REFUSED[why]
  run = begun(tmp_path, old, [9, 10])
  before = run.config_path.read_bytes()
  with pytest.raises(SettingError, match=message):
    extend.earlier_rounds(run, plan(new))
  assert run.config_path.read_bytes() == before


def test_a_share_that_is_said_in_rounds_goes_on(tmp_path):
  run = begun(tmp_path, small(rounds=10), [9])
  same = small(rounds=20, algorithm__start=None, algorithm__start_round=3)
  assert extend.earlier_rounds(run, plan(same)) == 10


def test_checkpoints_that_a_longer_run_does_not_go_through_are_no_start_of_it(tmp_path):
  run = begun(tmp_path / "a", plain(rounds=7), [6, 7])
  run.summary_path.write_text("{}")
  extend.take_up(run, plan(plain(rounds=9)), 7)
  assert [path.name for path in run.checkpoints.iterdir()] == ["6"]
  assert json.loads(run.config_path.read_text())["rounds"] == 9
  assert (run.root / "summary.7_rounds.json").exists() and not run.summary_path.exists()
  with pytest.raises(SettingError, match="only checkpoint is of round 7, which is no multiple of eval_every"):
    extend.earlier_rounds(begun(tmp_path / "b", plain(rounds=7), [7]), plan(plain(rounds=9)))


@pytest.mark.slow
@pytest.mark.parametrize("old", with_every([6, 7], 6))
def test_a_complete_run_goes_on_to_the_bits_of_one_that_was_begun_so(whole, tmp_path, old):
  run = tmp_path / "run"
  same = {"algorithm__start": None, "algorithm__start_round": 2}
  start(small(rounds=old, algorithm__start=0.4) if old == 6 else small(rounds=old, **same), str(run))
  summary = start(small(rounds=11, **same), str(run))
  other = start(small(rounds=11, **same), str(tmp_path / "other"))
  assert timeless(summary) == timeless(other) and records(run) == records(tmp_path / "other")
  for ours, theirs in zip(final_state(run)[0], final_state(tmp_path / "other")[0], strict=True):
    np.testing.assert_array_equal(ours, theirs)
  assert json.loads((run / f"summary.{old}_rounds.json").read_text())["rounds"] == old
  with pytest.raises(SettingError, match="11 are done"):
    start(small(rounds=8, **same), str(run))
  assert start(small(rounds=11, **same), str(run)) == summary


@pytest.mark.slow
def test_a_kill_while_the_rounds_become_more_is_made_good(tmp_path, monkeypatch):
  class Killed(BaseException):
    pass

  def killed(*args, **settings):
    raise Killed

  start(plain(rounds=3), str(tmp_path / "run"))
  for module, name in ((extend, "write_atomic"), (experiment, "prepare"), (experiment, "train")):
    with monkeypatch.context() as patch:
      patch.setattr(module, name, killed)
      with pytest.raises(Killed):
        start(plain(rounds=5), str(tmp_path / "run"))
    assert not (tmp_path / "run" / "summary.json").exists()
  summary = start(plain(rounds=5), str(tmp_path / "run"))
  assert timeless(summary) == timeless(start(plain(rounds=5), str(tmp_path / "other")))


@pytest.mark.slow
def test_a_complete_sweep_goes_on(tmp_path):
  def run(name, rounds):
    grid = {"seed": [0, 5]}
    return timeless(sweep.run_sweep(plain(rounds=rounds), grid, str(tmp_path / name), Where(devices=1)))

  run("a", 3)
  with pytest.raises(SettingError, match="3 are done"):
    run("a", 2)
  found = run("a", 7)
  assert found == run("whole", 7)
  for member in ("seed=0", "seed=5"):
    folder = tmp_path / "a" / "members" / member
    assert records(folder) == records(tmp_path / "whole" / "members" / member)
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["7"]
    assert (folder / "summary.3_rounds.json").exists()
  assert len(json.loads((tmp_path / "a" / "sweep.json").read_text())) == 2
  assert (tmp_path / "a" / "sweep.3_rounds.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("writes", with_every(range(3), 1))
def test_a_kill_while_a_sweep_s_rounds_become_more_is_made_good(tmp_path, monkeypatch, writes):
  def run(rounds):
    return sweep.run_sweep(plain(rounds=rounds), {"seed": [0, 5]}, str(tmp_path), Where(devices=1))

  class Killed(BaseException):
    pass

  done, real = [], extend.take_up

  def killed(*args):
    if len(done) == writes:
      raise Killed
    done.append(real(*args))

  run(3)
  with monkeypatch.context() as patch, pytest.raises(Killed):
    patch.setattr(extend, "take_up", killed)
    run(7)
  assert len(done) == writes and [own["rounds"] for own in run(7)] == [7, 7]
