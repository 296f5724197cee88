"""A launched sweep: one program, each member's folder as its own run would leave it."""

import json
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from test_launcher import records, small

from fedjax_het.engine.engine import Engine
from fedjax_het.errors import SettingError
from fedjax_het.experiment import experiment, sweep
from fedjax_het.experiment.build import build
from fedjax_het.experiment.checkpoint import Checkpoints
from fedjax_het.experiment.launcher import take_sweep
from fedjax_het.experiment.stopping import Stopped
from fedjax_het.experiment.where import Where

GRID = {"seed": [0, 5], "algorithm.nu": [0.0, 2.0]}


def run(workdir, grid=GRID, devices=3, **settings):
  return sweep.run_sweep(small(), grid, str(workdir), Where(devices=devices), **settings)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  """Four members on three devices."""
  workdir = tmp_path_factory.mktemp("sweep")
  return workdir, run(workdir)


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
  assert sorted(p.name for p in own.iterdir()) == sorted(p.name for p in tmp_path.iterdir())
  assert sorted(p.name for p in (own / "figures").iterdir()) == sorted(
    p.name for p in (tmp_path / "figures").iterdir()
  )
  for key in set(single) - {"seconds", "metrics", "lambda"}:
    assert together[key] == single[key], key
  for key in ("metric", "picked_on", "picked_by"):
    assert together["lambda"][key] == single["lambda"][key], key
  assert together["lambda"]["picked_on"] == "validation"
  for ours, theirs in zip(records(own), records(tmp_path), strict=True):
    assert ours["round"] == theirs["round"]
    assert ours["train_loss"] == pytest.approx(theirs["train_loss"], rel=1e-4)
    loss = [record["metrics"]["personalized"]["loss"]["mean"] for record in (ours, theirs)]
    assert loss[0] == pytest.approx(loss[1], rel=1e-3)
  built = build(config)
  engine = Engine(built.algorithm, built.data, 5, devices=1)
  states = []
  for folder in (own, tmp_path):
    checkpoints = Checkpoints(folder / "checkpoints")
    states.append(checkpoints.restore(engine.init(jax.random.key(0)))[0].broadcast)
    checkpoints.close()
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), *states)
  assert experiment.run_experiment(config, str(own), Where(devices=1)) == together  # complete


def test_a_stopped_sweep_goes_on_on_other_devices(whole, tmp_path, monkeypatch):
  class Stop(experiment.StopRequest):
    made = property(lambda self: True, lambda self, value: None)

  with monkeypatch.context() as patch:
    patch.setattr(experiment, "StopRequest", Stop)
    with pytest.raises(Stopped):
      run(tmp_path)
  assert not list(tmp_path.glob("members/*/summary.json"))
  summaries = run(tmp_path, devices=1)
  assert [s["metrics"] for s in summaries] == [s["metrics"] for s in whole[1]]
  name = "seed=5,algorithm.nu=0.0"
  assert records(tmp_path / "members" / name) == records(whole[0] / "members" / name)
  with pytest.raises(SettingError, match="sweep"):
    run(tmp_path, {"seed": [0, 6], "algorithm.nu": [0.0, 2.0]})
  with pytest.raises(SettingError, match="holds a sweep, not a single run"):
    experiment.run_experiment(small(), str(tmp_path), Where(devices=1))


BAD = {
  "a field that is none": ({"algorithm.nuu": [1.0]}, "nu"),
  "a section that stays": ({"rounds": [1, 2]}, "rounds"),
  "a name": ({"algorithm.name": ["fedavg", "fedprox"]}, "numbers"),
  "another program": ({"local.batch_size": [5, 10]}, "run of its own"),
  "a value out of range": ({"local.lr": [0.1, -1.0]}, "lr = -1.0"),
  "a seed twice": ({"seed": [1, 1]}, "twice"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_grids_are_named_before_anything_is_built(name, tmp_path, monkeypatch):
  grid, message = BAD[name]
  monkeypatch.setattr(sweep, "build", None)
  with pytest.raises(SettingError, match=message):
    run(tmp_path, grid)


def test_from_the_command_line(tmp_path):
  command = [
    sys.executable, "-m", "fedjax_het.run", "--sweep.seed=0,1", "--sweep.local.lr=0.05", "--mesh=clients:2",
    f"--workdir={tmp_path}", "--config.rounds=2", "--config.local.epochs=1",
  ]  # fmt: skip
  done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=120)
  assert done.returncode == 0, done.stderr
  assert "seed" in done.stdout and len(json.loads((tmp_path / "sweep.json").read_text())) == 2


def test_sweep_flags_are_a_grid():
  rest, grid = take_sweep(["run", "--sweep.seed=0,1", "--config.rounds=2", "-sweep.algorithm.nu=0.5"])
  assert rest == ["run", "--config.rounds=2"] and grid == {"seed": [0, 1], "algorithm.nu": [0.5]}
  with pytest.raises(SettingError, match="Write --sweep"):
    take_sweep(["run", "--sweep.seed=x"])
