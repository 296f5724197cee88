"""What is prepared of all clients' label counts before a part is made, for a run and a sweep's members."""

import json

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict
from small_parts import federation

import fedjax_het as fh
from fedjax_het.config.algorithm import prepared_of
from fedjax_het.config.plan import plan
from fedjax_het.config.quickstart import get_config
from fedjax_het.experiment.build import build
from fedjax_het.experiment.experiment import run_experiment
from fedjax_het.experiment.sweep import run_sweep
from fedjax_het.methods import CLIENTS, Method, Preparation


def quick(**fields) -> ConfigDict:
  config = ConfigDict(get_config("algorithm=sosicfl").to_dict(), type_safe=False)
  config.rounds = config.eval_every = 2
  for name, value in fields.items():
    section, _, field = name.partition("__")
    config[section] = {**config[section], field: value} if field else value
  return config


def test_counts_are_of_the_training_labels_that_a_client_sees():
  data = federation((5, 1, 9, 4))
  found = fh.data.label_counts(data)
  for i, own in enumerate(found):
    first = int(data.train.start[i])
    labels = np.asarray(data.y)[first : first + int(data.train.size[i])].tolist()
    assert own.tolist() == [labels.count(c) for c in range(3)]


@pytest.mark.parametrize(
  "change, words",
  [
    (dict(algorithm__clusters=21), "clusters = 21: more than there are clients, 20"),
    (dict(algorithm__endpoints=0), "endpoints = 0"),
    (dict(algorithm__rho=0.0), "rho = 0.0"),
    (dict(algorithm__epsilon=-1.0), "epsilon = -1.0"),
    (dict(algorithm__rho="much"), "rho = 'much': not a number"),
    (dict(algorithm__endpoints=2.0), "endpoints = 2.0: must be a whole number"),
    (dict(algorithm__regions=3), "algorithm.regions = 3: unknown to sosicfl"),
    (dict(algorithm__seed=3), "algorithm.seed = 3: unknown to sosicfl"),
  ],
)
def test_settings_are_refused_before_any_data_are_read(change, words):
  with pytest.raises(fh.SettingError, match=words):
    plan(quick(**change))


def test_what_only_the_data_can_refuse():
  plan(quick(algorithm__endpoints=11))
  with pytest.raises(fh.SettingError, match="endpoints = 11: more topics than there are classes, 10"):
    build(plan(quick(algorithm__endpoints=11)))
  with pytest.raises(fh.SettingError, match=r"sosicfl.*counts of classes"):
    prepared_of(plan(quick()), federation((5, 1)), fh.tasks.regression())


@pytest.mark.slow
def test_a_run_s_regions_are_of_its_own_clients_counts():
  one, other = (build(plan(quick(seed=seed, algorithm__endpoints=3, algorithm__rho=0.5))) for seed in (0, 1))
  counts, found = fh.data.label_counts(one.data), one.prepared["regions"]
  assert counts.sum() == int(one.data.train.size.sum()) and found.centers.shape == (20, 3)
  seed = int(jax.random.key_data(jax.random.fold_in(jax.random.key(0), 5))[-1])
  wanted = fh.regions(counts, endpoints=3, clusters=2, rho=0.5, seed=seed)
  for a, b in zip(found, wanted, strict=True):
    np.testing.assert_array_equal(a, b)
  assert np.abs(found.points - other.prepared["regions"].points).max() > 1e-3
  client = one.algorithm.client
  broadcast = jax.eval_shape(client.init_broadcast, jax.random.key(0))
  owner = client.init(jax.random.key(0), broadcast, None, fh.Context(7))
  np.testing.assert_array_equal(owner.center, found.centers[7])
  assert float(owner.radius) == pytest.approx(found.radius)


def test_a_factory_of_one_s_own_is_given_what_it_asks_for(monkeypatch):
  seen = []

  def shares(counts, *, floor: float = 0.0, seed: int = 0):
    seen.append((np.asarray(counts), floor, seed))
    return np.maximum(counts / counts.sum(1, keepdims=True), floor)

  def biased(model: fh.Model, shares: np.ndarray, *, lr: float = 0.1) -> fh.ClientUpdate:
    seen.append(shares)
    return fh.fedavg(model, lr=lr)._replace(name="biased")

  preparation = Preparation("shares", shares, lambda num_clients, floor=0.0: f"{num_clients}, {floor}")
  entry = Method("biased", biased, "one's own", "nobody", prepares=preparation)
  monkeypatch.setitem(CLIENTS, "biased", entry)
  assert {*entry.settings} == {"lr", "floor"}
  config = quick(algorithm={"name": "biased", "floor": 0.25}, local={"lr": 0.3})
  plan(config)
  assert seen == ["20, 0.25"]
  experiment = build(plan(config))
  counts, floor, seed = seen[-2]
  np.testing.assert_array_equal(counts, fh.data.label_counts(experiment.data))
  assert floor == 0.25 and isinstance(seed, int) and seen[-1].min() == 0.25
  with pytest.raises(TypeError, match="shares"):
    entry.make({"model": experiment.model})


def test_a_sweep_of_what_changes_a_shape_is_refused(tmp_path):
  with pytest.raises(fh.SettingError, match=r"algorithm\.endpoints.*changes the program itself"):
    run_sweep(quick(), {"algorithm.endpoints": [2, 3]}, str(tmp_path))


@pytest.mark.slow
def test_each_member_of_a_sweep_has_its_own_regions(tmp_path):
  """Seeds, whose partitions differ, with a number of the preparation and one of the client part."""
  config = quick(model={"name": "two_nn", "hidden": 8}, algorithm__start=0.0)
  grid = {"seed": [0, 1], "algorithm.clusters": [2, 5], "local.lr": [0.02]}
  summaries = run_sweep(config, grid, str(tmp_path / "sweep"))
  own = quick(seed=1, algorithm__clusters=2, algorithm__start=0.0, local__lr=0.02, model=config.model)
  alone = run_experiment(own, str(tmp_path / "alone"))
  for kind in ("personalized", "global"):
    found, wanted = (each["metrics"][kind]["loss"]["mean"] for each in (summaries[2], alone))
    assert found == pytest.approx(wanted, rel=1e-4)
  lines = json.loads((tmp_path / "sweep" / "sweep.json").read_text())
  losses = [line["metrics"]["personalized"]["loss"]["mean"] for line in lines]
  assert len({round(loss, 6) for loss in losses}) == 4


@pytest.mark.slow
def test_what_has_no_effect_is_said_and_kept_of_the_members_that_it_is_of(tmp_path, capsys):
  config = quick(model={"name": "two_nn", "hidden": 8}, algorithm__points=10**6)
  run_sweep(config, {"algorithm.start": [0.25, 0.5]}, str(tmp_path))
  shown = " ".join(capsys.readouterr().out.split())
  nothing = "algorithm.start = 0.25 is none of 2 rounds: the run is as with 0."
  assert shown.count(" points = 1000000: no client takes more than") == 1
  assert f"algorithm.start=0.25: {nothing}" in shown and "start=0.5:" not in shown
  starts = {path.parent.name: json.loads(path.read_text())["data"]["notes"]
            for path in tmp_path.glob("members/*/starts.jsonl")}  # fmt: skip
  alike = starts["algorithm.start=0.5"]
  assert starts["algorithm.start=0.25"] == [nothing, *alike] and len(alike) == 1
