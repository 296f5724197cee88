"""The launcher: what a run leaves behind, stopping and continuing, and every kind of bad input."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cases import with_every
from forked import forked
from launching import final_state, records, small, start
from ml_collections import ConfigDict

from fedjax_het.config.plan import plan
from fedjax_het.engine import run as engine_run
from fedjax_het.engine.engine import Engine
from fedjax_het.errors import DataError, SettingError
from fedjax_het.experiment import dry_run as dry_runs
from fedjax_het.experiment import experiment
from fedjax_het.experiment.dry_run import dry_run
from fedjax_het.program.stopping import Stopped

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  """An uninterrupted run and its summary."""
  workdir = tmp_path_factory.mktemp("whole")
  return workdir, start(small(), str(workdir))


def test_what_a_run_leaves(whole):
  workdir, summary = whole
  assert json.loads((workdir / "summary.json").read_text()) == summary
  assert json.loads((workdir / "config.json").read_text())["rounds"] == 7
  assert [line["round"] for line in records(workdir)] == [3, 6, 7]
  figures = {path.name for path in (workdir / "figures").iterdir()}
  assert figures == {
    "partition.png", "learning_curve.png", "accuracy_over_clients.png", "lambda_curve.png", "mixing.png",
  }  # fmt: skip
  for line in records(workdir):
    mixing = line["mixing"]
    assert sum(mixing["coefficients"]) == pytest.approx(1.0) and len(mixing["coefficients"]) == 5
    assert 0 < mixing["entropy"] <= np.log(5) + 1e-6 and mixing["objective"] is None
  assert list((workdir / "checkpoints").iterdir()) and list((workdir / "tensorboard").iterdir())
  assert summary["algorithm"] == "superfed_mm" and summary["dataset"] == "digits"
  assert summary["rounds"] == 7 and summary["num_clients"] == 20
  assert set(summary["seconds"]) == {"compile", "train", "eval"}
  parameters = 64 * 8 + 8 + 8 * 8 + 8 + 8 * 10 + 10
  assert summary["bytes"] == {"up": 7 * 5 * 4 * parameters, "down": 7 * 5 * 4 * parameters}
  for kind in ("personalized", "global"):
    assert set(summary["metrics"][kind]) >= {"top1", "top5", "loss", "ece", "mce"}
    for values in summary["metrics"][kind].values():
      assert set(values) == {"mean", "std", "worst10", "best10", "gini", "gap"}
  assert summary["lambda"]["picked_on"] == "validation" and summary["lambda"]["picked_by"] == "top1"
  best = summary["lambda"]["grid"].index(summary["lambda"]["common"])
  assert summary["metrics"]["personalized"]["top1"]["mean"] == summary["lambda"]["mean"][best]
  assert "left_out" not in summary
  optimistic = summary["lambda"]["per_client_test_optimistic"]["mean"]
  assert optimistic >= max(summary["lambda"]["mean"])
  assert 0 <= summary["lambda"]["validation"]["mean"] <= optimistic


@pytest.mark.slow
def test_fair_mixing_from_the_command_lines_registry(tmp_path):
  """Every server and a mixing with memory by name; losses recorded where asked, without changing a run."""
  summary = start(
    small(mixing=ConfigDict({"name": "aaggff_d", "cdf": "weibull"}), server__name="yogi", server__lr=0.01),
    str(tmp_path / "fair"),
  )
  assert summary["mixing"] == "aaggff_d" and summary["server"] == "yogi"
  assert all(line["mixing"]["objective"] > 0 for line in records(tmp_path / "fair"))
  plain, watched = (
    start(small(**given), str(tmp_path / f"run{len(given)}")) for given in ({}, {"record_losses": True})
  )
  assert plain["metrics"] == watched["metrics"]
  assert all(line["mixing"]["objective"] > 0 for line in records(tmp_path / "run1"))


@pytest.mark.slow
def test_client_steps_are_those_of_the_cohorts(whole):
  _, summary = whole
  built = experiment.build(plan(small()))
  engine = Engine(built.algorithm, built.data, 5, devices=1)
  _, infos = engine.advance(engine.init(built.key), 7)
  sizes = np.asarray(built.data.train.size)[infos.cohort]
  assert summary["client_steps"] == int(np.ceil(sizes / 10).sum())


def test_complete_run_finishes_at_once(whole, monkeypatch):
  workdir, summary = whole
  monkeypatch.setattr(experiment, "engine_of", None)  # would fail if anything were built
  assert start(small(), str(workdir)) == summary


@pytest.mark.slow
@pytest.mark.parametrize("stop_at", with_every([2, 3, 5, 7], 3, 7))
def test_stopped_run_continues_to_the_same_end(whole, tmp_path, monkeypatch, stop_at):
  class Killed(Exception):
    pass

  real = experiment.chunks

  def stopping(*args):
    for chunk in real(*args):
      yield chunk
      if int(chunk.state.round) >= stop_at:
        raise Killed

  monkeypatch.setattr(experiment, "chunks", stopping)
  with pytest.raises(Killed):
    start(small(), str(tmp_path))
  monkeypatch.setattr(experiment, "chunks", real)
  assert not (tmp_path / "summary.json").exists()
  resumed = start(small(), str(tmp_path), devices=2 if stop_at == 2 else 1)
  workdir, summary = whole
  assert [line["round"] for line in records(tmp_path)] == [3, 6, 7]
  assert records(tmp_path) == records(workdir)
  for ours, theirs in zip(final_state(tmp_path)[0], final_state(workdir)[0], strict=True):
    np.testing.assert_array_equal(ours, theirs)
  assert resumed["metrics"] == summary["metrics"]
  assert resumed["client_steps"] == summary["client_steps"]


@pytest.mark.slow
@pytest.mark.parametrize("asked", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_asked_to_stop_leaves_a_checkpoint_and_goes_on(
  whole, tmp_path, monkeypatch, asked, ctrl_c
):
  real = experiment.chunks

  def terminated(*args):
    for chunk in real(*args):
      if int(chunk.state.round) == 5:  # between two evaluations
        os.kill(os.getpid(), asked)
      yield chunk

  monkeypatch.setattr(experiment, "chunks", terminated)
  monkeypatch.setattr(engine_run, "SECONDS_A_CHUNK", 0.0)  # a round a chunk
  with pytest.raises(Stopped, match=f"{asked.name} after round 5") as stopped:
    start(small(), str(tmp_path))
  assert stopped.value.by == asked
  assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
  assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
  assert (tmp_path / "checkpoints" / "5").is_dir()
  monkeypatch.setattr(experiment, "chunks", real)
  assert start(small(), str(tmp_path))["metrics"] == whole[1]["metrics"]
  assert records(tmp_path) == records(whole[0])


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["truncated", "changed", "gone"])
def test_damaged_checkpoint_falls_back_to_the_one_before(whole, tmp_path, damage, caplog):
  workdir = tmp_path / "run"
  shutil.copytree(whole[0], workdir)
  (workdir / "summary.json").unlink()
  newest = workdir / "checkpoints" / "7"
  data = max(
    (path for path in (newest / "state").rglob("*") if path.is_file()), key=lambda p: p.stat().st_size
  )
  content = bytearray(data.read_bytes())
  if damage == "gone":
    data.unlink()
  else:
    content[len(content) // 2] ^= 0xFF
    data.write_bytes(content if damage == "changed" else content[: len(content) // 2])
  summary = start(small(), str(workdir))
  assert "round 7 is damaged" in caplog.text and (workdir / "checkpoints" / "damaged_7").is_dir()
  assert summary["metrics"] == whole[1]["metrics"] and records(workdir) == records(whole[0])
  assert sorted(p.name for p in (workdir / "checkpoints").iterdir()) == ["6", "7", "damaged_7"]


@pytest.mark.slow
def test_dry_run_says_what_the_run_takes(whole, monkeypatch):
  monkeypatch.setattr(Engine, "advance", None)  # nothing is trained
  plan = dry_run(small())
  widths = 64 * 8, 8 * 8, 8 * 10
  assert plan["parameters"] == sum(widths) + 8 + 8 + 10
  assert {way: 7 * count for way, count in plan["bytes"].items()} == whole[1]["bytes"]
  assert plan["client_state_bytes"] == 20 * 4 * plan["parameters"]
  assert plan["memory_bytes"] >= plan["data_bytes"] + plan["client_state_bytes"]
  assert plan["host_bytes"] > plan["memory_bytes"] + plan["client_state_bytes"] + 100e6
  assert plan["flops_a_client_step"] == pytest.approx(2 * 10 * (3 * sum(widths) - widths[0]), rel=0.3)
  assert plan["client_steps"] == pytest.approx(whole[1]["client_steps"], rel=0.3)


@pytest.mark.parametrize(
  ("states", "more"),
  [("over the devices", 60 + 7), ("on the host", 60 + 7 + 7), ("on the disk of d", 60 + 7)],
)
def test_the_memory_of_the_process(monkeypatch, states, more):
  """What it took so far, that of its CPU devices, states that the host keeps, and their copy to be saved."""
  monkeypatch.setattr(dry_runs, "peak_memory", lambda: 100)
  found = {"memory_bytes": 30, "client_state_bytes": 7, "states": states}
  assert dry_runs.host_memory(found, 2) == 100 + more
  monkeypatch.setattr(dry_runs, "peak_memory", lambda: None)
  assert dry_runs.host_memory(found, 2) is None


def test_other_config_is_refused(whole):
  workdir, _ = whole
  with pytest.raises(SettingError, match=r"local\.lr = 0\.1.*started with local\.lr = 0\.05"):
    start(small(local__lr=0.1, seed=5), str(workdir))


BAD = {
  "algorithm": (dict(algorithm__name="superfed"), "superfed_mm"),
  "leftover setting": (dict(algorithm__nuu=1.0), r"Did you mean 'nu'\? Known: [\w, ]+\.$"),
  "another method's setting": (
    dict(algorithm__name="fedavg"),
    "mu = 0.01: unknown.*behind the file's name.*configs/quickstart.py:algorithm=fedavg",
  ),
  "shape": (dict(model__shape=(8, 8)), r"model\.shape = \(8, 8\): comes from the data set"),
  "num_classes": (dict(model__num_classes=5), r"model\.num_classes = 5: comes from the data set"),
  "clients of the partition": (dict(partition__num_clients=5), "comes from the field num_clients"),
  "folder of the data": (dict(dataset_options={"data_dir": "x"}), "comes from the field data_dir"),
  "classes of downstream": (
    dict(downstream={"model": {"name": "two_nn", "num_classes": 5}}),
    r"downstream\.model\.num_classes = 5: comes from the data set",
  ),
  "dataset": (dict(dataset="digit"), "Did you mean 'digits'"),
  "model": (dict(model__name="two_cn"), "Did you mean 'two_cnn'"),
  "partition": (dict(partition__name="dirichle"), "Did you mean 'dirichlet'"),
  "partition option": (dict(partition__alfa=1.0), "Did you mean 'alpha'"),
  "config key": (dict(roundz=3), "Did you mean 'rounds'"),
  "mixing": (dict(mixing__name="statik"), "Did you mean 'static'"),
  "server": (dict(server__name="sdg"), "Did you mean 'sgd'"),
  "cohort": (dict(cohort_size=21), "cohort_size = 21"),
  "clients": (dict(num_clients=100_000, cohort_size=5), "num_clients"),
  "shards": (
    dict(partition={"name": "pathological", "shards_per_client": 500}),
    r"partition\.shards_per_client = 500",
  ),
  "alpha": (dict(partition__alpha=-1.0), "alpha = -1.0"),
  "test_fraction": (dict(test_fraction=1.5), "test_fraction = 1.5"),
  "valid_fraction": (dict(valid_fraction=-0.1), "valid_fraction = -0.1"),
  "mu": (dict(algorithm__mu=-1.0), "mu = -1.0"),
  "nu": (dict(algorithm__nu=-1.0), "nu = -1.0"),
  "start": (dict(algorithm__start=1.0), r"never comes \(start = 1\.0\): local models would never move"),
  "start beyond": (dict(algorithm__start=1.5), "algorithm.start = 1.5"),
  "start twice": (
    dict(algorithm__start_round=2),
    "start_round = 2.*start = 0.3.*algorithm.start=None leaves",
  ),
  "start at the end": (
    dict(algorithm={"name": "superfed_lm", "start_round": 7}),
    "start_round = 7.*rounds = 7.*Use 0 to 6",
  ),
  "start of a method without": (dict(algorithm={"name": "fedavg", "start": 0.4}), "start = 0.4: unknown"),
  "lr": (dict(local__lr=-0.1), "lr = -0.1"),
  "lr of the server": (dict(server__lr=-1.0), "lr = -1.0"),
  "rounds": (dict(rounds=0), "rounds = 0"),
  "eval_every": (dict(eval_every=0), "eval_every = 0"),
  "batch_size": (dict(local__batch_size=0), "batch_size = 0"),
  "no number": (dict(mixing={"name": "qffl", "q": "x"}), r"mixing\.q = 'x': not a number\. Give a number"),
  "no flag": (dict(model__bias="maybe"), "bias = 'maybe': of the wrong type. It must be bool"),
  "option of the data": (dict(dataset_options={"leeky": True}), "leeky"),
  "std of inputs": (dict(model__std=0.0), "std = 0.0"),
  "cdf": (dict(mixing={"name": "aaggff_d", "cdf": "weibul"}), "Did you mean 'weibull'"),
  "q": (dict(mixing={"name": "qffl", "q": -1.0}), "q = -1.0"),
  "epsilon": (dict(mixing={"name": "fedmgda", "epsilon": 2.0}), "epsilon = 2.0"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named_before_any_compile(name, tmp_path, monkeypatch):
  changes, message = BAD[name]
  monkeypatch.setattr(experiment, "engine_of", None)
  with pytest.raises(SettingError, match=message):
    start(small(**changes), str(tmp_path / "run"))


@pytest.mark.slow
def test_batch_larger_than_the_clients_is_allowed(tmp_path):
  summary = start(small(local__batch_size=10_000, rounds=1), str(tmp_path))
  assert summary["client_steps"] == 5


@pytest.mark.slow
def test_missing_data_file(tmp_path):
  with pytest.raises(DataError, match="mnist"):
    start(small(dataset="mnist", data_dir=str(tmp_path)), str(tmp_path / "run"))


@pytest.mark.slow
def test_a_workdir_belongs_to_the_first_configuration_that_comes_to_its_rounds(tmp_path, monkeypatch):
  def killed(*args):
    raise KeyboardInterrupt

  monkeypatch.setattr(experiment, "train", killed)
  with pytest.raises(DataError):
    start(small(dataset="mnist", data_dir=str(tmp_path)), str(tmp_path / "run"))
  with pytest.raises(SettingError, match="devices"):
    start(small(seed=5), str(tmp_path / "run"), devices=1000)
  with pytest.raises(KeyboardInterrupt):
    start(small(), str(tmp_path / "run"))
  with pytest.raises(SettingError, match="started with seed = 0"):
    start(small(seed=5), str(tmp_path / "run"))


def test_workdir_that_cannot_be_written(tmp_path):
  (tmp_path / "file").write_text("")
  with pytest.raises(SettingError, match="workdir"):
    start(small(), str(tmp_path / "file" / "run"))


def launch(*flags: str) -> subprocess.CompletedProcess:
  command = [sys.executable, "-m", "fedjax_het.run", *flags]
  return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


WRONG = {
  "--config.roundz=3": "Did you mean 'rounds'",
  "--config.zebra.name=pair": (
    "config.zebra.name = 'pair': zebra is unknown to the configuration. Known: aggregation"
  ),
  "--config.locl.lr=3": "locl is unknown to the configuration. Did you mean 'local'",
  "--config.model.hidden=abc": "config.model.hidden = abc: is no whole number",
  "--config=configs/nope.py": "[Errno 2] No such file or directory: 'configs/nope.py'",
  "--config.model.layrs=3": "Did you mean 'layers'",
  "--config=configs/table_2_3.py:dataset=mnst": "Did you mean 'mnist'",
  "--config.cohort_size=50": "cohort_size = 50",
  "--mesh=client:2": "Write --mesh=clients:4",
  "--distributed": "found no cluster",
  "--config.model=resnet20": "config.model = resnet20: is a section of settings. Write",
  "--config.rounds=3 --config=configs/quickstart.py": "Put --config=FILE before",
  "--list superfed_mm": "settings are given as --list=superfed_mm",
  "--rounds=3": "Settings are given as --config.NAME=VALUE",
}


@pytest.mark.slow
def test_command_line_says_what_is_wrong_in_one_line(tmp_path):
  with forked() as run:
    for flags, message in WRONG.items():
      done = run("fedjax_het.run", [*flags.split(), f"--workdir={tmp_path}/run"], ROOT)
      assert done.returncode == 1
      assert message in done.stderr and "Traceback" not in done.stderr
      assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.slow
def test_command_line_runs(tmp_path):
  config = ["--config=configs/quickstart.py:algorithm=superfed_lm", "--config.rounds=2"]
  late = ["--config.algorithm.start=None", "--config.algorithm.start_round=1"]
  done = launch(*config, *late, f"--workdir={tmp_path}")
  assert done.returncode == 0, done.stderr
  assert "top-1" in done.stdout and json.loads((tmp_path / "summary.json").read_text())["rounds"] == 2
