"""Configurations that cannot be are refused before anything is trained; what a run found is told."""

import inspect
import json

import numpy as np
import pytest
from changed_configs import with_values
from launching import config_of
from run_folders import write_run

import fedjax_het as fh
from configs import table_4_2
from fedjax_het.compare.page import write_page
from fedjax_het.compare.runs import find
from fedjax_het.config.grid import check_sweep
from fedjax_het.config.plan import plan
from fedjax_het.data import load
from fedjax_het.errors import SettingError
from fedjax_het.experiment import build as building
from fedjax_het.experiment.build import build
from fedjax_het.experiment.dry_run import steps_of_clients
from fedjax_het.experiment.experiment import run_experiment
from fedjax_het.program.where import Where


@pytest.mark.parametrize(
  ("changes", "setting"),
  [
    ({"stratify": "no"}, "stratify"),
    ({"record_losses": "no"}, "record_losses"),
    ({"record_variance": 1}, "record_variance"),
    ({"seed": 2**32}, "seed"),
    ({"seed": -1}, "seed"),
    ({"unseen": True}, "unseen"),
    ({"unseen": {"fraction": 0.2, "steps": 5}}, r"unseen\.steps = 5: not a list"),
    ({"unseen": {"fraction": 0.2, "steps": [1.0, 3]}}, r"unseen\.steps = 1\.0"),
    ({"landscape": True}, "landscape"),
    ({"landscape": {"span": float("inf")}}, r"landscape\.span"),
    ({"landscape": {"points": 3, "part": "valid"}, "valid_fraction": 0.0}, r"landscape\.part"),
    ({"cohort_size": 2.5}, "cohort_size"),
    ({"downstream": {"features": "classifier"}}, "downstream"),
  ],
)
def test_what_cannot_be_is_refused_before_training(changes, setting):
  """Each was taken for something else, or trained all rounds and then could not finish."""
  with pytest.raises(SettingError, match=setting):
    plan(config_of(**changes))


@pytest.mark.parametrize(
  ("path", "value", "told"),
  [
    ("local.lr", 1e-60, r"local\.lr = 1e-60: vanishes in float32.* Use a magnitude of 1\.18e-38 or more"),
    ("local.lr", 1e39, r"local\.lr = 1e\+39: overflows float32"),
    ("algorithm.nu", 1e-60, r"algorithm\.nu = 1e-60: vanishes in float32.* Use 0\.0, or"),
    ("server.lr", 0.0, r"server\.lr = 0\.0: out of range"),
    ("partition.alpha", -1.0, r"partition\.alpha = -1\.0: "),
  ],
)
def test_a_number_that_cannot_be_is_named_as_it_is_written(path, value, told):
  config = with_values(config_of("algorithm=superfed_mm"), {path: value})
  with pytest.raises(SettingError, match=f"^{told}") as error:
    plan(config)
  assert error.value.setting == path
  if path != "partition.alpha":
    with pytest.raises(SettingError, match=rf"^sweep\.{told}") as error:
      check_sweep(config_of("algorithm=superfed_mm"), {path: [0.5, value]})
    assert error.value.setting == f"sweep.{path}"


@pytest.mark.parametrize(
  ("partition", "named"),
  [
    ({"name": "dirichlet", "alpha": -1.0}, r"alpha = -1\.0"),
    ({"name": "dirichlet", "alpha": "1"}, "alpha"),
    ({"name": "dirichlet", "alpha": 1.0, "balance": "no"}, "balance = 'no': of the wrong type"),
    ({"name": "dirichlet", "alpha": 1.0, "min_size": 0}, "min_size = 0"),
    (
      {"name": "dirichlet", "alpha": 1.0, "balance": True, "max_tries": 9},
      "max_tries = 9: with balance=True",
    ),
    ({"name": "client_dirichlet", "alpha": 0.0}, r"alpha = 0\.0"),
    ({"name": "client_dirichlet", "alpha": 1.0, "balance": True}, "balance"),
    ({"name": "pathological", "deal": "round robin"}, "Did you mean 'round_robin'"),
    ({"name": "pathological", "shards_per_client": 1.5}, r"shards_per_client = 1\.5"),
    ({"name": "primary_class", "num_folds": 1}, "num_folds = 1"),
    ({"name": "primary_class", "num_folds": 2, "fraction": 80}, "fraction = 80"),
    ({"name": "natural", "sample": 0}, "sample = 0"),
    ({"name": "quantity_skew", "alpha": 0.0}, r"alpha = 0\.0"),
    ({"name": "power_law", "exponent": -1.0}, r"exponent = -1\.0"),
    ({"name": "label_quantity", "classes": 2}, "Did you mean 'classes_per_client'"),
    ({"name": "extended_dirichlet", "alpha": 1.0, "classes_per_client": 0}, "classes_per_client = 0"),
  ],
)
def test_a_partition_that_cannot_be_is_refused_before_data_are_read(partition, named):
  """A table's last cell was refused after all others had run."""
  with pytest.raises(SettingError, match=named):
    plan(config_of(partition=partition))


@pytest.mark.parametrize(
  ("changes", "named"),
  [
    ({"steps": 0}, "steps"),
    ({"lr": -1.0}, "lr"),
    ({"seeds": 1.5}, "seeds"),
    ({"model": {"name": "two_nn", "hiden": 3}}, "hiden"),
    ({"model": {"name": "two_nn", "hidden": 0}}, "hidden"),
    ({"follow": {"model": {"name": "resnet10", "width": 0}}}, "width"),
  ],
)
def test_a_judge_that_cannot_be_is_refused_before_training(changes, named):
  """An untrained judge gave a headline; a model that cannot be was found after all rounds."""
  config = table_4_2.get_config("dataset=digits")
  with config.ignore_type():
    config.downstream.update(changes)
  with pytest.raises(SettingError, match=named):
    build(plan(config))


def test_the_number_of_synthetic_examples_changes_the_program():
  with pytest.raises(SettingError, match="changes the program itself"):
    check_sweep(table_4_2.get_config("dataset=digits"), {"algorithm.per_class": [2, 3]})


def test_a_body_that_is_not_shared_is_not_called_fedper():
  with pytest.raises(SettingError, match="shares_body"):
    plan(config_of("algorithm=fedper", algorithm__shares_body=False))


def test_every_member_of_a_sweep_is_looked_at():
  config = config_of("algorithm=pfedme")
  with pytest.raises(SettingError, match="outer_lr"):
    check_sweep(config, {"algorithm.lam": [1.0, 300.0]})
  members, configs = check_sweep(config, {"algorithm.lam": [1.0, 2.0]})
  assert members == [{"algorithm.lam": 1.0}, {"algorithm.lam": 2.0}]
  assert [own.client.settings["lam"] for own in configs] == [1.0, 2.0]


def test_expected_steps_are_those_that_a_method_takes():
  epochs = {"epochs": 2, "batch_size": 10}
  sizes = np.asarray(build(plan(config_of())).data.train.size)
  passes = np.ceil(sizes / 10)
  for method, settings, walks in (
    ("fedavg", {}, 2),
    ("apfl", {}, 4),  # both models in every batch
    ("ditto", {"local_epochs": 3}, 5),
    ("fedrep", {"body_epochs": 1}, 3),
    ("pfedme", {"inner_steps": 4}, 8),
  ):
    config = config_of(f"algorithm={method}")
    config.local.update(epochs)
    config.algorithm.update(settings)
    np.testing.assert_array_equal(steps_of_clients(build(plan(config))), walks * passes)


def test_a_training_setting_is_the_algorithm_s_the_local_one_or_the_method_s_own():
  config = config_of()
  assert plan(config).client.settings["batch_size"] == config.local.batch_size
  del config.local["batch_size"]
  default = inspect.signature(fh.fedavg).parameters["batch_size"].default
  assert plan(config).client.settings["batch_size"] == default
  config.algorithm.batch_size = 7
  assert plan(config).client.settings["batch_size"] == 7


@pytest.mark.parametrize("unseen", [{}, {"fraction": 0.5}])
def test_the_share_of_changed_labels_is_that_of_the_clients_that_train(monkeypatch, unseen):
  config = config_of(label_noise={"name": "symmetric", "ratio": 0.5}, unseen=unseen, seed=3)
  found = build(plan(config))
  config.label_noise = {}
  clean = build(plan(config))
  seen = np.concatenate([found.data.train.rows(), found.data.valid.rows()])
  assert np.array_equal(seen, np.concatenate([clean.data.train.rows(), clean.data.valid.rows()]))
  assert found.label_noise["changed"] == np.mean(found.data.y[seen] != clean.data.y[seen])


@pytest.mark.slow
def test_a_run_tells_what_its_loader_found(tmp_path, monkeypatch, capsys):
  source = load("digits")._replace(notes=("Only half of the digits.",))
  monkeypatch.setattr(building.datasets, "load", lambda *_, **__: source)
  landscape = {"points": 3, "examples": 10**6}
  config = config_of(rounds=1, eval_every=1, model__hidden=2, local__epochs=1, landscape=landscape)
  summary = run_experiment(config, str(tmp_path), Where(devices=1))
  assert "Only half of the digits." in capsys.readouterr().out
  (start,) = map(json.loads, (tmp_path / "starts.jsonl").read_text().splitlines())
  digests = build(plan(config)).digests
  assert start["data"] == {
    "examples": 1797, "test_examples": 0, "notes": ["Only half of the digits."], **digests,
  }  # fmt: skip
  assert summary["landscape"]["examples"] == int(build(plan(config)).data.test.size.sum())
  assert find([tmp_path])[0].found == {"examples": 1797, "data_digest": digests["data_digest"]}


def test_a_page_wants_a_file_s_name(tmp_path):
  pytest.importorskip("plotly")
  with pytest.raises(SettingError, match="out"):
    write_page({}, "/", title="x")


def test_a_summary_that_holds_no_fields_is_none(tmp_path):
  folder = write_run(tmp_path / "run")
  for name in ("summary.json", "failed.json"):
    (folder / name).write_text("[5]")
  (run,) = find([folder])
  assert run.summary == {} and run.failed == "" and not run.complete


@pytest.mark.parametrize("key", ["width", "judge_width"])
def test_digits_have_no_width_in_the_tables_of_synthetic_data(key):
  assert "max_tries" not in table_4_2.get_config(f"dataset=mnist,{key}=8").partition
  config = table_4_2.get_config(f"dataset=dermamnist,alpha=0.01,{key}=8")  # where draws are rare
  config.partition.balance, config.partition.max_tries = True, None
  plan(config)
  with pytest.raises(SettingError, match=f"{key} = 8: digits has perceptrons"):
    table_4_2.get_config(f"dataset=digits,{key}=8")
