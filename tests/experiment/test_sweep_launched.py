"""A launched sweep: one program, each member's folder as its own run would leave it."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import chex
import jax
import pytest
from launching import records, small
from ml_collections import ConfigDict
from orbax.checkpoint import CheckpointManager
from quick_compiler import environment
from rich.console import Console

from fedjax_het.config.grid import check_one_program, check_sweep
from fedjax_het.config.plan import plan
from fedjax_het.engine.engine import Engine
from fedjax_het.errors import DataError, NonFiniteLoss, SettingError
from fedjax_het.experiment import experiment, members, record, sweep
from fedjax_het.experiment.build import build
from fedjax_het.experiment.recorded import timeless
from fedjax_het.launcher import take_sweep
from fedjax_het.program.stopping import Stopped
from fedjax_het.program.where import Where
from fedjax_het.studies import partition
from fedjax_het.studies.members import members_table
from fedjax_het.workdir import folder as workdir
from fedjax_het.workdir import tracking
from fedjax_het.workdir.checkpoint import Checkpoints

GRID = {"seed": [0, 5], "algorithm.nu": [0.0, 2.0]}


def run(workdir, grid=GRID, devices=3, device_rows=None, **settings):
  where = Where(devices=devices, device_rows=device_rows)
  return sweep.run_sweep(small(), grid, str(workdir), where, **settings)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  """Four members on three devices."""
  workdir = tmp_path_factory.mktemp("sweep")
  return workdir, run(workdir)


@pytest.mark.slow
def test_a_member_is_its_own_run(whole, tmp_path):
  workdir, summaries = whole
  names = [f"seed={seed},algorithm.nu={nu}" for seed in GRID["seed"] for nu in GRID["algorithm.nu"]]
  assert sorted(path.name for path in (workdir / "members").iterdir()) == sorted(names)
  listed = json.loads((workdir / "sweep.json").read_text())
  assert [member["member"] for member in listed] == names
  assert [member["metrics"] for member in listed] == [summary["metrics"] for summary in summaries]
  own, config = workdir / "members" / names[3], small(seed=5, algorithm__nu=2.0)
  single = experiment.run_experiment(config, str(tmp_path), Where(devices=1))
  together = json.loads((own / "summary.json").read_text())
  left = [sorted(p.name for p in run.iterdir() if p.name != ".claim") for run in (own, tmp_path)]
  assert left[0] == left[1]  # whose claim is the sweep's
  assert sorted(p.name for p in (own / "figures").iterdir()) == sorted(
    p.name for p in (tmp_path / "figures").iterdir()
  )
  for key in set(single) - {"seconds", "metrics", "lambda"}:
    assert timeless(together[key]) == timeless(single[key]), key
  for key in ("metric", "picked_on", "picked_by"):
    assert together["lambda"][key] == single["lambda"][key], key
  assert together["lambda"]["picked_on"] == "validation"
  for ours, theirs in zip(records(own), records(tmp_path), strict=True):
    assert all(ours[key] == theirs[key] for key in ("round", "train_loss", "metrics"))
  built = build(plan(config))
  engine = Engine(built.algorithm, built.data, 5, devices=1)
  states = []
  for folder in (own, tmp_path):
    checkpoints = Checkpoints(folder / "checkpoints")
    states.append(checkpoints.restore(engine.init(jax.random.key(0)))[0].broadcast)
    checkpoints.close()
  chex.assert_trees_all_equal(*states)
  assert experiment.run_experiment(config, str(own), Where(devices=1)) == together  # complete


@pytest.mark.slow
def test_a_sweep_without_its_data_leaves_the_workdir_free(tmp_path, monkeypatch):
  def killed(*args):
    raise KeyboardInterrupt

  monkeypatch.setattr(sweep, "train", killed)
  missing = small(dataset="mnist", data_dir=str(tmp_path))
  with pytest.raises(DataError, match="mnist"):
    sweep.run_sweep(missing, {"seed": [0]}, str(tmp_path / "run"), Where(devices=1))
  assert not list(tmp_path.glob("run/**/*.json")) and not (tmp_path / "run" / "members").exists()
  with pytest.raises(KeyboardInterrupt):
    run(tmp_path / "run", {"seed": [0, 5]}, devices=1)
  assert len(list(tmp_path.glob("run/members/*/config.json"))) == 2
  with pytest.raises(SettingError, match=r"started with sweep\.seed"):
    run(tmp_path / "run", {"seed": [0, 6]}, devices=1)


@pytest.mark.slow
def test_a_stopped_sweep_goes_on_on_other_devices(whole, tmp_path, monkeypatch):
  class Stop(experiment.StopRequest):
    made = property(lambda self: True, lambda self, value: None)

  with monkeypatch.context() as patch:
    patch.setattr(experiment, "StopRequest", Stop)
    with pytest.raises(Stopped):
      run(tmp_path)
  assert not list(tmp_path.glob("members/*/summary.json"))
  summaries = run(tmp_path, dict(reversed(GRID.items())), devices=1)  # whatever the order of its flags
  assert [s["metrics"] for s in summaries] == [s["metrics"] for s in whole[1]]
  name = "seed=5,algorithm.nu=0.0"
  assert records(tmp_path / "members" / name) == records(whole[0] / "members" / name)
  with pytest.raises(SettingError, match="sweep"):
    run(tmp_path, {"seed": [0, 6], "algorithm.nu": [0.0, 2.0]})
  (tmp_path / "members" / ".DS_Store").write_text("")
  shutil.copytree(tmp_path / "members" / name, tmp_path / "members" / "algorithm.nu=0.0,seed=5")
  with pytest.raises(SettingError, match=r"has a member algorithm\.nu=0\.0,seed=5, by another order"):
    run(tmp_path)
  with pytest.raises(SettingError, match="holds a sweep, not a single run"):
    experiment.run_experiment(small(), str(tmp_path), Where(devices=1))


@pytest.mark.slow
def test_a_sweep_may_stream_its_examples(whole, tmp_path):
  with pytest.raises(SettingError, match=r"device_rows = 9: .* of each of 2 members"):
    run(tmp_path, device_rows=9)
  assert not list(tmp_path.rglob("*.json"))
  assert [s["metrics"] for s in run(tmp_path, devices=4, device_rows=1600)] == [
    s["metrics"] for s in whole[1]
  ]


DIVERGES = {"local.lr": [0.05, 1e30]}


def diverging(workdir, grid=DIVERGES):
  return sweep.run_sweep(small(rounds=4, eval_every=2), grid, str(workdir), Where(devices=1))


@pytest.mark.slow
def test_where_a_member_diverges_the_others_go_on(tmp_path, monkeypatch, capsys, caplog):
  """It keeps every file of a run, with null for metrics; a start from a checkpoint knows where it began."""
  summaries = diverging(tmp_path / "whole")
  assert "local.lr=1e+30; the other members go on" in caplog.text
  assert "The training loss became" in " ".join(capsys.readouterr().out.split())
  gone = summaries[1]["diverged"]
  assert "diverged" not in summaries[0] and summaries[0]["metrics"]["global"]["top1"]["mean"] > 0.05
  assert gone["round"] == 1 and 0 <= gone["client"] < 20 and gone["loss"] in ("nan", "inf")
  assert [m.get("diverged") for m in json.loads((tmp_path / "whole" / "sweep.json").read_text())] == [
    None,
    gone,
  ]
  own = tmp_path / "whole" / "members" / "local.lr=1e+30"
  for found in (summaries[1]["metrics"], records(own)[0]["metrics"]):
    assert {x for kind in found.values() for metric in kind.values() for x in metric.values()} == {None}
  healthy = own.parent / "local.lr=0.05"
  names = [sorted(str(path.relative_to(run)).split("tfevents")[0] for path in run.rglob("*")
                  if "checkpoints" not in path.parts) for run in (own, healthy)]  # fmt: skip
  assert names[0] == names[1] and len(records(own)) == len(records(healthy)) == 2

  class Stop(experiment.StopRequest):
    made = property(lambda self: True, lambda self, value: None)

  with monkeypatch.context() as patch:
    patch.setattr(experiment, "StopRequest", Stop)
    with pytest.raises(Stopped, match="after round 1"):
      diverging(tmp_path / "stopped")
  assert timeless(diverging(tmp_path / "stopped")) == timeless(summaries)


@pytest.mark.slow
def test_a_sweep_whose_members_all_diverge_ends(tmp_path):
  with pytest.raises(NonFiniteLoss, match=r"1e\+29: The .* in round 1 .*1e\+30: The .* checkpoint: none yet"):
    diverging(tmp_path, {"local.lr": [1e29, 1e30]})


def test_null_and_infinite_metrics_have_a_place_in_the_table(capsys):
  figures = dict.fromkeys(("mean", "std", "worst10", "best10", "gini", "gap"))
  for metric in ("top1", "auroc"):
    metrics = {"personalized": {metric: figures | {"worst10": float("inf")}, "loss": figures}}
    Console().print(members_table([{"seed": 0}], [{"metrics": metrics}]))
    assert "– ± –" in capsys.readouterr().out


class Killed(BaseException):
  """The end of the process."""


def written(workdir):
  """All files but those of TensorBoard and orbax, without wall-clock fields and how often it was started."""

  files = [path for path in workdir.rglob("*") if path.is_file() and "tensorboard" not in path.parts]
  found = {str(path.relative_to(workdir)): path for path in files if "checkpoints" not in path.parts}
  texts = {
    name: path.read_text().splitlines() if name.endswith("jsonl") else [path.read_text()]
    for name, path in found.items() if ".json" in name and path.name != "starts.jsonl"
  }  # fmt: skip
  checkpoints = {str(path.relative_to(workdir)) for path in workdir.rglob("checkpoints/*")}
  return (
    {name: timeless([json.loads(text) for text in lines]) for name, lines in texts.items()},
    {*found},
    checkpoints,
  )


@pytest.mark.slow
def test_a_sweep_that_is_killed_at_any_file_is_repaired(tmp_path, monkeypatch):
  """Each start dies before a file that the one before it did not reach; the last ends as if undisturbed."""
  done, reached = [], set()

  def write(path, text):
    name = str(path.relative_to(root))
    if deadly and name not in reached:
      reached.add(name)
      raise Killed
    done.append(name)
    real(path, text)

  def go():
    config = small(
      rounds=2, eval_every=1, algorithm={"name": "fedavg"}, model={"name": "logistic_regression"}
    )
    sweep.run_sweep(config, {"seed": [0, 5]}, str(root), Where(devices=1))

  monkeypatch.setattr(record.Record, "_draw", lambda *args: None)  # slow, and drawn before the summary
  monkeypatch.setattr(partition, "plot_partition", lambda *args: None)
  real = workdir.write_atomic
  for module in (workdir, tracking, record, sweep):
    monkeypatch.setattr(module, "write_atomic", write)
  root, deadly = tmp_path / "whole", False
  go()
  names = list(dict.fromkeys(done))
  assert len(names) == 8 and names[-1] == "sweep.json"
  root, deadly = tmp_path / "killed", True
  for _ in names:
    with pytest.raises(Killed):
      go()
  assert reached == {*names}
  go()
  assert written(tmp_path / "killed") == written(tmp_path / "whole")
  for damaged in ("sweep.json", "members/seed=5/summary.json"):
    path = root / damaged
    path.write_text(path.read_text()[:50])
    go()
    assert written(tmp_path / "killed") == written(tmp_path / "whole"), damaged


@pytest.mark.slow
def test_a_summary_follows_its_last_checkpoint(tmp_path, monkeypatch):
  """Which is written in the background: a run with a summary counts as complete."""
  events, save, wait = [], Checkpoints.save, CheckpointManager.wait_until_finished

  def write(path, text):
    events.append(path.name)
    workdir.write_atomic(path, text)

  monkeypatch.setattr(Checkpoints, "save", lambda *args: (save(*args), events.append("save")))
  monkeypatch.setattr(
    CheckpointManager, "wait_until_finished", lambda self: (wait(self), events.append("wait"))[0]
  )
  monkeypatch.setattr(record, "write_atomic", write)
  experiment.run_experiment(small(rounds=2), str(tmp_path), Where(devices=1))
  assert "wait" in events[events.index("save") : events.index("summary.json")]


@pytest.mark.slow
def test_a_picture_that_cannot_be_drawn_costs_no_table(tmp_path, monkeypatch, caplog):
  def unpaintable(*args, **settings):
    raise ValueError("too dark")

  monkeypatch.setattr(sweep, "plot_members", unpaintable)
  run(tmp_path, {"seed": [0, 5]}, devices=1)
  assert "not all pictures could be drawn" in caplog.text and "too dark" in caplog.text
  assert len(json.loads((tmp_path / "sweep.json").read_text())) == 2


@pytest.mark.slow
def test_a_complete_run_in_a_folder_that_cannot_be_written_is_shown(tmp_path, monkeypatch):
  def read_only(**settings):
    raise PermissionError(13, "Permission denied")

  def start(name):
    return experiment.run_experiment(small(rounds=1), str(tmp_path / name), Where(devices=1))

  summary = start("run")
  monkeypatch.setattr(workdir.tempfile, "TemporaryFile", read_only)
  assert start("run") == summary
  with pytest.raises(SettingError, match=r"cannot be written \(Permission denied\)"):
    start("other")
  monkeypatch.undo()
  with pytest.raises(SettingError, match=r"cannot be written \(File name too long"):
    start("x" * 300)


@pytest.mark.slow
def test_a_sweep_finds_its_data_elsewhere(whole, tmp_path, monkeypatch):
  shutil.copytree(whole[0], tmp_path / "sweep")
  monkeypatch.setattr(members, "build", None)  # complete: nothing is built
  config = small(data_dir=str(tmp_path))
  assert sweep.run_sweep(config, GRID, str(tmp_path / "sweep"), Where(devices=1)) == whole[1]
  with pytest.raises(SettingError, match=r"config\.local\.lr"):
    sweep.run_sweep(small(local__lr=0.2), GRID, str(tmp_path / "sweep"), Where(devices=1))


BAD = {
  "a field that is none": ({"algorithm.nuu": [1.0]}, "nu"),
  "a section that stays": ({"rounds": [1, 2]}, "rounds"),
  "a name": ({"algorithm.name": ["fedavg", "fedprox"]}, "numbers"),
  "another program": ({"local.batch_size": [5, 10]}, "run of its own"),
  "a value out of range": ({"local.lr": [0.1, -1.0]}, "lr = -1.0"),
  "a seed twice": ({"seed": [1, 1]}, "twice"),
  "a value twice": ({"local.lr": [0.05, 0.1, 0.050]}, "has 0.05 twice"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_grids_are_named_before_anything_is_built(name, tmp_path, monkeypatch):
  grid, message = BAD[name]
  monkeypatch.setattr(members, "build", None)
  with pytest.raises(SettingError, match=message):
    run(tmp_path, grid)


@pytest.mark.slow
def test_from_the_command_line(tmp_path):
  command = [
    sys.executable, "-m", "fedjax_het.run", "--sweep.seed=0,1", "--sweep.local.lr=0.05", "--mesh=clients:2",
    f"--workdir={tmp_path}", "--config.rounds=2", "--config.local.epochs=1",
  ]  # fmt: skip
  where = {"cwd": Path(__file__).parents[2], "env": environment()}
  done = subprocess.run(command, **where, capture_output=True, text=True, timeout=120)
  assert done.returncode == 0, done.stderr
  assert "seed" in done.stdout and len(json.loads((tmp_path / "sweep.json").read_text())) == 2


def test_sweep_flags_are_a_grid():
  rest, found = take_sweep(["run", "--sweep.seed=0,1", "--config.rounds=2", "-sweep.algorithm.nu=0.5"])
  assert rest == ["run", "--config.rounds=2"] and found == {"seed": [0, 1], "algorithm.nu": [0.5]}
  with pytest.raises(SettingError, match=r"'x' is no number\. Sweep numbers, as --sweep"):
    take_sweep(["run", "--sweep.seed=0,x"])
  with pytest.raises(SettingError, match=r"seed = '2': was given before\. Write --sweep\.seed=0,1,2\."):
    take_sweep(["run", "--sweep.seed=0,1", "--sweep.seed=2"])
  for field in ("rounds", "partition.alpha", "landscape.points"):
    with pytest.raises(SettingError, match=f"sweep.{field} = .*is not a seed.*Start a run of its own"):
      check_one_program({field: [1, 2]})
  for field, message in [("seeds", "unknown. Did you mean 'seed'?"), ("learning.lr", "unknown. Known: ")]:
    with pytest.raises(SettingError, match=rf"^sweep\.{field} = \[1, 2\]: {re.escape(message)}"):
      check_one_program({field: [1, 2]})
  with pytest.raises(SettingError, match=r"Write --sweep\.local\.lr=0\.1,0\.2\."):
    check_sweep(ConfigDict({"local": {"lr": 0.1}}), {"lr": [0.1, 0.2]})
