"""Sections that a configuration may leave out, and that choose further parts of the algorithm."""

import json

import numpy as np
import pytest
from launching import small
from ml_collections import ConfigDict

import fedjax_het as fh
from fedjax_het import methods
from fedjax_het.config import algorithm, sections
from fedjax_het.config.algorithm import build_algorithm
from fedjax_het.config.fields import fields
from fedjax_het.config.grid import check_sweep
from fedjax_het.config.listing import goes_with
from fedjax_het.config.override import change
from fedjax_het.config.plan import plan
from fedjax_het.config.quickstart import get_config
from fedjax_het.config.same import with_defaults
from fedjax_het.config.sections import Section
from fedjax_het.config.values import numbers, plain, with_values
from fedjax_het.errors import SettingError
from fedjax_het.experiment.experiment import run_experiment
from fedjax_het.experiment.sweep import run_sweep
from fedjax_het.methods import Method, small_model
from fedjax_het.program.where import Where

CONFIG = get_config("algorithm=fedavg")


def configured(**aggregation) -> ConfigDict:
  config = ConfigDict(CONFIG)
  change(config, {f"aggregation.{name}": value for name, value in aggregation.items()})
  return config


def test_a_section_that_is_absent_empty_or_at_its_default_is_one_configuration():
  plans = [plan(CONFIG), plan(with_values(plain(CONFIG), {"aggregation": {}})), plan(configured(name="mean"))]
  assert all(with_defaults(own.written) == with_defaults(plans[0].written) for own in plans)
  assert "aggregation" not in plans[0].written and plans[1].written == plans[0].written
  assert "aggregation" not in configured()
  model = small_model(methods.CLIENTS["fedavg"])
  assert all(build_algorithm(own, model).aggregation.combine is None for own in plans)


def test_a_chosen_part_is_made_of_its_settings():
  own = plan(configured(name="trimmed_mean", share=0.3))
  assert own.written["aggregation"] == {"name": "trimmed_mean", "share": 0.3}
  assert own.numbers["aggregation.share"] == 0.3
  assert plan(configured(name="trimmed_mean")).numbers["aggregation.share"] == 0.1
  made = build_algorithm(own, small_model(methods.CLIENTS["fedavg"])).aggregation
  assert isinstance(made, fh.Aggregation) and made.name == "trimmed_mean"
  filled = with_defaults(plan(configured(name="centered_clipping")).written)["aggregation"]
  assert filled == {"name": "centered_clipping", "radius": 10.0, "iterations": 1}
  _, plans = check_sweep(configured(name="trimmed_mean"), {"aggregation.share": np.array([0, 0.1])})
  assert [one.written["aggregation"]["share"] for one in plans] == [0, 0.1]
  partners, _, left = goes_with("aggregation", "centered_clipping").partition(" but ")
  assert partners == "algorithm: any" and {"ifca", "fedamp", "fedevg"} <= {*left.split(", ")}
  described = {field.path: field.default for field in fields(plain(configured(name="trimmed_mean")))}
  assert described["aggregation.share"] == 0.1
  assert {field.path: field.default for field in fields(CONFIG.to_dict())}["aggregation.name"] == "mean"


@pytest.mark.parametrize("given, said", [
  ({"name": "trimed_mean"}, r"aggregation\.name = 'trimed_mean': unknown\. Did you mean 'trimmed_mean'"),
  ({"name": "trimmed_mean", "share": 0.5}, r"aggregation\.share = 0\.5: out of range"),
  ({"name": "trimmed_mean", "shore": 0.1}, r"aggregation\.shore = 0\.1: unknown.* Did you mean 'share'"),
  ({"name": "median", "share": 0.1}, r"aggregation\.share = 0\.1: unknown to median"),
  ({"share": 0.1}, r"aggregation = .*: has no name, and so no effect"),
  ({"name": "bulyan", "byzantine": 2}, r"cohort_size = 5: bulyan needs 4f \+ 3 = 11 clients"),
])  # fmt: skip
def test_what_cannot_be_is_refused_before_any_data_is_read(given, said):
  with pytest.raises(SettingError, match=said):
    plan(configured(**given))


def test_a_further_section_is_a_table(monkeypatch):
  """A section with a tuple of parts, as upload transforms will be; `federated` gets them by its name."""

  def top_k(share: float = 0.1, keep: int = 2):
    return "top_k", share, keep

  made = Method("top_k", top_k, "what", "whose")
  monkeypatch.setitem(methods.CONDITIONS, "uploads", {"top_k": made})
  for room in (methods, algorithm):
    monkeypatch.setattr(room, "TABLES", methods.METHODS | methods.CONDITIONS)
    monkeypatch.setattr(room, "SEVERAL", ("uploads",))
  monkeypatch.setattr("fedjax_het.config.values.TABLES", methods.TABLES)
  monkeypatch.setattr("fedjax_het.config.plan.PARTS", ("local", *methods.TABLES))
  line = Section("uploads", "choices", lambda: methods.CONDITIONS["uploads"], varies=True)
  monkeypatch.setattr(sections, "CORE", (*sections.CORE, line))
  monkeypatch.setattr(algorithm, "federated", lambda *parts, **conditions: conditions)
  monkeypatch.setattr("fedjax_het.config.plan.check_parts", lambda plan: None)
  config = ConfigDict(CONFIG)
  assert build_algorithm(plan(config), small_model(methods.CLIENTS["fedavg"])) == {}
  change(config, {"uploads": ({"name": "top_k", "share": 0.2}, {"name": "top_k"})})
  change(config, {"uploads.1.keep": 3})
  own = plan(config)
  found = {path: value for path, value in numbers(own.parts).items() if path.startswith("uploads")}
  assert found == {"uploads.0.share": 0.2, "uploads.1.share": 0.1}
  parts = build_algorithm(own.with_numbers({"uploads.0.share": 0.4}), small_model(methods.CLIENTS["fedavg"]))
  assert parts == {"uploads": (("top_k", 0.4, 2), ("top_k", 0.1, 3))}
  described = {field.path: field.value for field in fields(plain(config))}
  assert described["uploads.0.share"] == 0.2 and described["uploads.1.keep"] == 3
  stored = json.loads(json.dumps(own.written))
  assert with_defaults(stored)["uploads"][1] == {"name": "top_k", "share": 0.1, "keep": 3}
  with pytest.raises(SettingError, match=r"uploads\.1\.shore = 1: unknown"):
    plan(with_values(plain(config), {"uploads.1.shore": 1}))


@pytest.mark.slow
def test_a_launched_run_is_combined_by_the_rule_and_a_sweep_has_its_numbers(tmp_path):
  base = {name: value for name, value in plain(small(rounds=2, eval_every=2)).items() if name != "algorithm"}
  base |= {"algorithm": {"name": "fedavg"}, "mixing": {"name": "uniform"}}
  one = run_experiment(base, str(tmp_path / "mean"), Where(devices=1))
  grid, rule = {"aggregation.share": [0, 0.4]}, {"aggregation": {"name": "trimmed_mean"}}
  members = run_sweep(base | rule, grid, str(tmp_path / "sweep"), Where(devices=1))
  losses = [member["metrics"]["global"]["loss"]["mean"] for member in (one, *members)]
  np.testing.assert_allclose(losses[1], losses[0], rtol=1e-6)
  assert losses[2] != losses[1]
  alone = base | {"aggregation": {"name": "trimmed_mean", "share": 0.4}}
  again = run_experiment(alone, str(tmp_path / "alone"), Where(devices=1))
  assert again["metrics"] == members[1]["metrics"]


def with_sections(**sections_) -> ConfigDict:
  return ConfigDict(plain(CONFIG) | sections_)


def test_uploads_are_chained_in_order_and_an_attack_is_chosen():
  chain = ({"name": "top_k", "share": 0.1}, {"name": "quantize", "bits": 4})
  own = plan(with_sections(uploads=chain, attack={"name": "alie", "share": 0.3}))
  assert own.numbers["uploads.0.share"] == 0.1 and own.numbers["attack.share"] == 0.3
  made = build_algorithm(own, small_model(methods.CLIENTS["fedavg"]))
  assert made.attack.name == "alie" and made.client.needs.upload_bits is not None
  reversed_ = build_algorithm(
    plan(with_sections(uploads=chain[::-1])), small_model(methods.CLIENTS["fedavg"])
  )
  plain_ = build_algorithm(plan(CONFIG), small_model(methods.CLIENTS["fedavg"]))
  assert plain_.client.needs.upload_bits is None and reversed_.attack.name == plain_.attack.name
  _, plans = check_sweep(with_sections(uploads=chain), {"uploads.0.share": [0.1, 0.2]})
  assert [one.written["uploads"][0]["share"] for one in plans] == [0.1, 0.2]


def test_what_does_nothing_stays_a_constant_and_is_left_out():
  idle = ({"name": "top_k", "share": 1.0}, {"name": "clip", "norm": float("inf")})
  own = plan(with_sections(uploads=idle, attack={"name": "sign_flip", "share": 0.0}))
  assert not [
    name for name in own.numbers if name.startswith(("uploads.0.share", "uploads.1.norm", "attack.share"))
  ]
  made = build_algorithm(own, small_model(methods.CLIENTS["fedavg"]))
  assert made.client.needs.upload_bits is None and not made.attack.there


@pytest.mark.parametrize(
  ("given", "words"),
  [
    ({"uploads": ({"name": "quantize", "bits": 99},)}, "uploads.0.bits = 99: out of range"),
    (
      {"uploads": ({"name": "clip"}, {"name": "top_kk"})},
      "uploads.1.name = 'top_kk': unknown. Did you mean 'top_k'",
    ),
    ({"attack": {"name": "sign_flip", "share": 1.5}}, "attack.share = 1.5: out of range"),
    ({"attack": {"share": 0.2}}, "attack = .*has no name"),
    (
      {"participation": {"name": "available", "probability": 2.0}},
      "participation.probability = 2.0: out of range",
    ),
  ],
)
def test_conditions_that_cannot_be_are_refused_by_name(given, words):
  with pytest.raises(SettingError, match=words):
    plan(with_sections(**given))


@pytest.mark.parametrize("place", ["local", "algorithm"])
def test_fine_tuning_has_the_client_part_s_own_settings_wherever_they_stand(place, monkeypatch):
  seen = []
  monkeypatch.setattr(algorithm, "finetuned", lambda client, **own: seen.append(own) or client)
  config = plain(CONFIG) | {"finetune": {"epochs": 2}}
  config["local"].pop("lr")
  build_algorithm(plan(with_values(config, {f"{place}.lr": 0.25})), small_model(methods.CLIENTS["fedavg"]))
  assert seen[-1]["lr"] == 0.25 and seen[-1]["epochs"] == 2 and "name" not in seen[-1]


def test_a_sweep_takes_any_list_of_numbers_and_varies_something():
  assert check_sweep(CONFIG, {"seed": range(2)})[0] == check_sweep(CONFIG, {"seed": np.arange(2)})[0]
  with pytest.raises(SettingError, match=r"grid = {}: varies nothing"):
    run_sweep(CONFIG, {}, "never")
  for folder in (None, 5):
    with pytest.raises(SettingError, match=rf"workdir = {folder}: is no path"):
      run_experiment(CONFIG, folder)
  with pytest.raises(SettingError, match="data_dir = True: is no path"):
    plan(with_values(plain(CONFIG), {"data_dir": True}))
