"""What a real run leaves, as the page reads it, and what its end says."""

import json

import numpy as np
import pytest

from fedjax_het.compare.content import content
from fedjax_het.compare.groups import grouped
from fedjax_het.compare.runs import find
from fedjax_het.config.quickstart import get_config
from fedjax_het.experiment import report
from fedjax_het.experiment.experiment import run_experiment
from fedjax_het.experiment.report import beside
from fedjax_het.program.where import Where

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
  """Of a short SuPerFed."""
  workdir = tmp_path_factory.mktemp("run")
  config = get_config()
  config.update(rounds=5, eval_every=2, model={"name": "two_nn", "hidden": 8})
  config.local.epochs = 1
  run_experiment(config, str(workdir), Where(devices=1))
  return workdir


def test_clients_and_partition_are_kept_as_numbers(workdir):
  metrics = json.loads((workdir / "summary.json").read_text())["metrics"]
  with np.load(workdir / "clients.npz") as clients, np.load(workdir / "partition.npz") as partition:
    assert {*clients} == {f"{model}/{metric}" for model, own in metrics.items() for metric in own}
    for name in clients:
      model, metric = name.split("/")
      assert clients[name].shape == (20,)
      assert clients[name].mean(dtype=np.float64) == pytest.approx(metrics[model][metric]["mean"], rel=1e-6)
    assert partition["counts"].shape == (20, 10) and partition["counts"].sum() == 1797


def test_the_page_reads_them(workdir):
  summary = json.loads((workdir / "summary.json").read_text())
  found = content(grouped(find([workdir])))
  (run,) = found["runs"]
  assert found["metric"] == "top1" and found["groups"][0]["label"] == "superfed_mm on digits"
  assert run["metrics"] == summary["metrics"] and run["lambda"] == summary["lambda"]
  assert run["curves"]["round"] == [2, 4, 5] and len(run["curves"]["mixing/entropy"]) == 3
  assert not run["mixture"]["each"] and len(run["mixture"]["lines"]["50 %"]) == 3
  assert np.sum(found["partitions"][run["partition"]]["counts"]) == 1797
  values = run["clients"]["personalized/top1"]["values"]
  assert len(values) == 20 and values == sorted(values)


def test_its_end_names_the_command(workdir, capsys, monkeypatch):
  config = get_config()
  config.update(json.loads((workdir / "config.json").read_text()))
  run_experiment(config, str(workdir))
  assert f"python -m fedjax_het.compare {workdir} OTHER_RUN ..." in capsys.readouterr().out
  assert beside("my runs") == "Side by side: python -m fedjax_het.compare 'my runs'"
  monkeypatch.setattr(report, "find_spec", lambda name: None)
  assert beside("runs", "B") == "Side by side: python -m fedjax_het.compare runs B --plain"
