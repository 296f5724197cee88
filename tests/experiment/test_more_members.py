"""Members that are added to a complete sweep: further seeds, and further values of another swept field."""

import json
import shutil

import numpy as np
import pytest
from launching import final_state, records, small

from fedjax_het.errors import DataError, SettingError
from fedjax_het.experiment import experiment, more_members, sweep
from fedjax_het.experiment.recorded import timeless
from fedjax_het.program.stopping import Stopped
from fedjax_het.program.where import Where
from fedjax_het.workdir.folder import Workdir, as_json

SOME, ALL = {"seed": [0, 5]}, {"seed": [5, 0, 7, 8]}


def plain(**changes):
  return small(algorithm={"name": "fedavg"}, model={"name": "logistic_regression"}, **changes)


def run(folder, grid, rounds=4, **changes):
  config = plain(rounds=rounds, eval_every=2, **changes)
  return timeless(sweep.run_sweep(config, grid, str(folder), Where(devices=1)))


def files(folder):
  """Path -> (content, time of change) of all files below a folder, but for the sweep's claim."""
  return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def names_of(run):
  """The names of a run's files but for TensorBoard's and Orbax's, which are others in every start."""
  found = {path.name for path in run.rglob("*") if "checkpoints" not in path.parts}
  return {name for name in found if "tfevents" not in name}


def begun(folder, grid, summaries=True, table=True):
  """A folder as a sweep leaves it, without what its members trained."""
  names = [f"seed={seed}" for seed in grid["seed"]]
  for name in names:
    own = folder / "members" / name
    own.mkdir(parents=True)
    if summaries:
      (own / "summary.json").write_text("{}")
  (folder / "config.json").write_text(as_json({"config": plain().to_dict(), "sweep": grid}))
  if table:
    (folder / "sweep.json").write_text(json.dumps([{"member": name} for name in names]))
  return Workdir(folder)


def test_more_seeds_are_members_of_a_complete_sweep_alone(tmp_path):
  root = begun(tmp_path / "whole", SOME)
  assert more_members.earlier_members(root, ALL) == (SOME, ["seed=0", "seed=5"])
  for other in (SOME, {"seed": [0, 7]}, {"seed": [0.0, 5, 7]}, {"seed": [0, 5, 7], "local.lr": [0.1]}):
    assert more_members.earlier_members(root, other) is None  # `check` refuses all but the first
  with pytest.raises(SettingError, match=r"started with sweep\.seed = \[0, 5\]"):
    sweep.run_sweep(plain(), {"seed": [0, 7]}, str(root.root), Where(devices=1))
  with pytest.raises(SettingError, match=r"started with config\.local\.lr"):
    sweep.run_sweep(plain(local__lr=0.2), ALL, str(root.root), Where(devices=1))
  assert more_members.earlier_members(Workdir(tmp_path / "new"), ALL) is None
  for lacks in ("summaries", "table"):
    root = begun(tmp_path / lacks, SOME, **{lacks: False})
    with pytest.raises(SettingError, match=r"sweep\.seed = \[5, 0, 7, 8\].*not complete.*--sweep\.seed=0,5;"):
      sweep.run_sweep(plain(), ALL, str(root.root), Where(devices=1))
    assert not list(root.root.glob("sweep.*_members.json"))


@pytest.fixture(scope="module")
def some(tmp_path_factory):
  """A complete sweep of two seeds."""
  folder = tmp_path_factory.mktemp("some")
  run(folder, SOME)
  return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  """A sweep that had all four seeds from the start."""
  folder = tmp_path_factory.mktemp("whole")
  run(folder, ALL)
  return folder


@pytest.mark.slow
def test_more_seeds_are_trained_alone_to_the_bits_of_a_sweep_of_all(some, whole, tmp_path, capsys):
  folder = tmp_path / "a"
  shutil.copytree(some, folder)
  earlier = (folder / "sweep.json").read_text()
  kept = files(folder / "members")
  assert {path.relative_to(folder).parts[1] for path in kept} == {"seed=0", "seed=5"}
  summaries = run(folder, ALL)
  assert "2 members are complete and stay as they are; 2 are added" in " ".join(
    capsys.readouterr().out.split()
  )
  now = files(folder / "members")
  assert {path: now[path] for path in kept} == kept
  assert [own["seconds"] for own in summaries if "seconds" in own] == [] and len(summaries) == 4
  for seed in (7, 8):
    ours, theirs = (own / "members" / f"seed={seed}" for own in (folder, whole))
    assert records(ours) == records(theirs)
    for a, b in zip(*(final_state(own, plain(seed=seed))[0] for own in (ours, theirs)), strict=True):
      np.testing.assert_array_equal(a, b)
    names = [names_of(own) for own in (ours, theirs)]
    assert names[0] == names[1]
  table = json.loads((folder / "sweep.json").read_text())
  assert [row["seed"] for row in table] == ALL["seed"]
  assert [row["metrics"] for row in table] == [own["metrics"] for own in summaries]
  assert json.loads((folder / "config.json").read_text())["sweep"] == ALL
  assert (folder / "sweep.2_members.json").read_text() == earlier
  assert not (folder / "sweep.kept.json").exists()
  assert [path.name for path in (folder / "checkpoints").iterdir()] == ["4"]
  before = files(folder)
  assert run(folder, ALL) == summaries and files(folder) == before  # complete
  assert run(folder, ALL, rounds=6) == run(tmp_path / "longer", ALL, rounds=6)  # all go on together


@pytest.mark.slow
def test_members_that_are_being_added_go_on_after_a_stop_and_after_kills(some, whole, tmp_path, monkeypatch):
  class Killed(BaseException):
    pass

  class Stop(experiment.StopRequest):
    made = property(lambda self: True, lambda self, value: None)

  def killed(*args, **settings):
    raise Killed

  folder = tmp_path / "a"
  shutil.copytree(some, folder)
  kept = files(folder / "members")
  with monkeypatch.context() as patch:
    patch.setattr(sweep, "prepare", killed)
    with pytest.raises(Killed):
      run(folder, ALL)
  assert not (folder / "sweep.json").exists()
  with monkeypatch.context() as patch:
    patch.setattr(experiment, "StopRequest", Stop)
    with pytest.raises(Stopped):
      run(folder, ALL)
  for grid in (SOME, {"seed": [*ALL["seed"], 9]}):
    with pytest.raises(SettingError, match=r"sweep\.seed"):
      run(folder, grid)
  with pytest.raises(SettingError, match="rounds = 9: members are being added to the sweep"):
    run(folder, ALL, rounds=9)
  for name in ("write_checkpoint_of_all", "_draw", "settle"):
    with monkeypatch.context() as patch:
      patch.setattr(sweep, name, killed)
      with pytest.raises(Killed):
        run(folder, ALL)
  assert (folder / "sweep.kept.json").exists()
  summaries = run(folder, ALL)
  assert summaries[2:] == timeless(
    [json.loads((whole / "members" / f"seed={seed}" / "summary.json").read_text()) for seed in (7, 8)]
  )
  now = files(folder / "members")
  assert {path: now[path] for path in kept} == kept
  more = {"seed": [*ALL["seed"], 9]}
  assert len(run(folder, more)) == 5
  assert (folder / "sweep.2_members.json").exists() and (folder / "sweep.4_members.json").exists()
  assert not (folder / "checkpoints" / "added").exists()


@pytest.mark.slow
def test_values_of_another_swept_field_are_added_and_may_all_diverge(tmp_path):
  grid = {"seed": [0, 5], "local.lr": [0.05]}
  run(tmp_path, grid)
  summaries = run(tmp_path, {"seed": [0, 5], "local.lr": [0.05, 1e30]})
  assert ["diverged" in own for own in summaries] == [False, True, False, True]
  assert len(json.loads((tmp_path / "sweep.json").read_text())) == 4
  assert (tmp_path / "figures" / "sweep.png").exists()


@pytest.mark.slow
def test_members_of_other_data_are_not_added(some, tmp_path, monkeypatch):
  folder = tmp_path / "a"
  shutil.copytree(some, folder)
  starts = folder / "members" / "seed=5" / "starts.jsonl"
  line = json.loads(starts.read_text())
  line["data"]["data_digest"] = "other"
  starts.write_text(json.dumps(line) + "\n")
  before = files(folder)
  with pytest.raises(DataError, match=r"seed=5 began with other data"):
    run(folder, ALL)
  assert files(folder) == before
