"""Experiment trackers: what they are sent, resume, sweeps as groups, and that none can stop a run."""

import json
import types

import pytest
from launching import config_of, small, start

from fedjax_het.config.plan import plan
from fedjax_het.config.same import with_defaults
from fedjax_het.errors import SettingError
from fedjax_het.experiment import sweep
from fedjax_het.program.where import Where
from fedjax_het.workdir import trackers
from fedjax_het.workdir.folder import prepare
from fedjax_het.workdir.trackers import Service, Trackers, check_installed

LINE = {"round": 3, "train_loss": 0.5, "metrics": {"personalized": {"top1": {"mean": 0.25, "gap": None}}}}
CONFIG = {"seed": "0", "local.lr": "0.05"}


class Kept(Service):
  """A tracker in memory, which fails where it is told to."""

  def __init__(self, where, project, run):
    self.calls, self.where, self.project, self.fails = [], where, project, where.removeprefix("fails: ")
    MADE.append(self)

  def _call(self, name, *given):
    self.calls.append((name, *given))
    if name == self.fails:
      raise ConnectionError(f"{name} cannot be reached")

  def begin(self, name, group, config, known):
    self._call("begin", name, group, dict(config), dict(known))
    self.identity = known or {"run": "abc"}

  def log(self, round, numbers):
    self._call("log", round, dict(numbers))

  def finish(self, numbers, files):
    self._call("finish", dict(numbers), [path.name for path in files])

  def close(self, failed=False):
    self._call("close", failed)


MADE: list[Kept] = []


@pytest.fixture(autouse=True)
def kept(monkeypatch):
  MADE.clear()
  monkeypatch.setitem(trackers.SERVICES, "mlflow", Kept)
  monkeypatch.setattr(trackers, "check_installed", lambda tracking: None)
  from fedjax_het.experiment import record

  monkeypatch.setattr(record, "check_installed", lambda tracking: None)
  return MADE


def run_in(folder):
  return prepare(folder, {"seed": 0})


def test_a_tracker_gets_configuration_figures_summary_and_files(tmp_path):
  run = run_in(tmp_path / "hospitals")
  own = Trackers(run, {"mlflow": "there", "project": "p"}, CONFIG)
  own.log(LINE)
  run.summary_path.write_text("{}")
  own.finish(
    {"rounds": 3, "dataset": "digits", "late": {"top1": 0.5}}, [run.summary_path, run.root / "lost.png"]
  )
  own.close()
  assert MADE[0].calls == [
    ("begin", "hospitals", "", CONFIG, {}),
    ("log", 3, {"train_loss": 0.5, "metrics/personalized/top1/mean": 0.25}),
    ("finish", {"rounds": 3, "late/top1": 0.5}, ["summary.json"]),
  ]  # fmt: skip
  assert MADE[0].project == "p"


def test_a_run_that_goes_on_is_the_same_run_and_no_round_is_sent_twice(tmp_path):
  run = run_in(tmp_path / "run")
  first = Trackers(run, {"mlflow": "there"}, CONFIG)
  first.log(LINE)
  first.close(failed=True)
  second = Trackers(run, {"mlflow": "there"}, CONFIG)
  second.log(LINE)
  second.log({**LINE, "round": 6})
  assert MADE[0].calls[-1] == ("close", True)
  assert [call[0:2] for call in MADE[1].calls] == [("begin", "run"), ("log", 6)]
  assert MADE[1].calls[0][-1] == {"run": "abc"}
  other = Trackers(run, {"mlflow": "elsewhere"}, CONFIG)  # another server knows nothing of it
  other.log(LINE)
  assert MADE[2].calls[0][-1] == {} and MADE[2].calls[1][1] == 3


def test_members_of_a_sweep_are_a_group(tmp_path):
  Trackers(run_in(tmp_path / "grid" / "members" / "seed=1"), {"mlflow": "there"}, CONFIG)
  assert MADE[0].calls[0][1:3] == ("grid/seed=1", "grid")


@pytest.mark.parametrize("when", ["begin", "log", "finish", "close"])
def test_a_tracker_that_fails_is_a_warning_and_left_out(tmp_path, when, monkeypatch):
  said = []
  monkeypatch.setattr(trackers.logging, "warning", lambda text, *given: said.append(text % given))
  own = Trackers(run_in(tmp_path / "run"), {"mlflow": f"fails: {when}"}, CONFIG)
  own.log(LINE)
  own.log({**LINE, "round": 6})
  if when == "finish":
    own.finish({}, [])
  own.close()
  own.close()
  assert len(said) == 1 and f"mlflow failed (ConnectionError: {when} cannot be reached)" in said[0]
  assert [call[0] for call in MADE[0].calls].count(when) == 1


def test_where_figures_go_is_no_part_of_what_a_configuration_is():
  plain, tracked = config_of(), config_of(tracking={"mlflow": "http://localhost:5000"})
  assert with_defaults(plan(plain).written) == with_defaults(plan(tracked).written)
  assert plan(tracked).tracking == {"mlflow": "http://localhost:5000"}


@pytest.mark.parametrize(
  ("tracking", "problem"),
  [
    ({"mlflov": "x"}, r"tracking\.mlflov"),
    ({"wandb": "on"}, r"tracking\.wandb = 'on': unknown"),
    ({"project": "p"}, r"names no tracker, and so has no effect"),
    ({"mlflow": 5000}, r"tracking\.mlflow = 5000: of the wrong type"),
  ],
)
def test_a_section_that_cannot_be_is_refused(tracking, problem):
  with pytest.raises(SettingError, match=problem):
    plan(config_of(tracking=tracking))


def test_a_package_that_is_missing_is_named_with_its_extra(monkeypatch):
  found = types.SimpleNamespace(find_spec=lambda name: None)
  monkeypatch.setattr(trackers.importlib, "util", found)
  with pytest.raises(
    SettingError, match=r"tracking\.wandb = 'offline': the package wandb is not installed.*\[wandb\]"
  ):
    check_installed({"wandb": "offline"})


@pytest.mark.slow
@pytest.mark.parametrize("where", ["there", "fails: log"])
def test_a_run_is_tracked_and_continues_with_other_trackers(tmp_path, where):
  config = small(algorithm={"name": "fedavg"})
  plain = start(config, str(tmp_path / "plain"))
  tracked = start(small(algorithm={"name": "fedavg"}, tracking={"mlflow": where}), str(tmp_path / "run"))
  assert tracked["metrics"] == plain["metrics"]
  rounds = [call[1] for call in MADE[0].calls if call[0] == "log"]
  assert rounds == ([3, 6, 7] if where == "there" else [3])
  if where == "there":
    numbers, files = MADE[0].calls[-1][1:]
    assert "summary.json" in files and "learning_curve.png" in files and "config.json" in files
    assert numbers["rounds"] == 7
  assert start(config, str(tmp_path / "run"))["metrics"] == plain["metrics"]  # the same configuration


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of packages that MLflow uses
def test_mlflow_keeps_runs_and_a_sweep_in_a_store_of_sqlite(tmp_path, monkeypatch):
  mlflow = pytest.importorskip("mlflow")
  monkeypatch.undo()
  monkeypatch.chdir(tmp_path)
  uri = f"sqlite:///{tmp_path}/mlflow.db"
  sweep.run_sweep(
    small(algorithm={"name": "fedavg"}, tracking={"mlflow": uri}), {"seed": [0, 1]},
    str(tmp_path / "o'neil" / "grid"), Where(devices=1),
  )  # fmt: skip
  client = mlflow.MlflowClient(tracking_uri=uri)
  found = client.search_runs([client.get_experiment_by_name("fedjax_het").experiment_id])
  by_name = {run.info.run_name: run for run in found}
  assert {*by_name} == {"grid", "grid/seed=0", "grid/seed=1"}
  for seed in (0, 1):
    run = by_name[f"grid/seed={seed}"]
    summary = json.loads(
      (tmp_path / "o'neil" / "grid" / "members" / f"seed={seed}" / "summary.json").read_text()
    )
    top1 = summary["metrics"]["personalized"]["top1"]["mean"]
    assert run.data.metrics["summary/metrics/personalized/top1/mean"] == pytest.approx(top1)
    assert run.data.params["seed"] == str(seed) and run.info.status == "FINISHED"
    assert run.data.tags["mlflow.parentRunId"] == by_name["grid"].info.run_id
    assert [m.step for m in client.get_metric_history(run.info.run_id, "train_loss")] == [3, 6, 7]
    assert {file.path for file in client.list_artifacts(run.info.run_id)} == {
      "config.json", "figures", "summary.json",
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_wandb_writes_an_offline_run(tmp_path, monkeypatch):
  pytest.importorskip("wandb")
  monkeypatch.undo()
  start(small(algorithm={"name": "fedavg"}, tracking={"wandb": "offline"}), str(tmp_path / "run"))
  (folder,) = (tmp_path / "run" / "wandb").glob("offline-run-*")
  assert next(folder.glob("run-*.wandb")).stat().st_size > 0
  identity = json.loads((tmp_path / "run" / "trackers.json").read_text())["wandb"]["identity"]["run"]
  assert identity in folder.name
