"""The plan of a run: typed, frozen, made once, with sections that the command line reaches everywhere."""

import dataclasses
import json
from types import SimpleNamespace

import pytest
from changed_configs import with_values
from launching import small
from ml_collections import ConfigDict

from fedjax_het.compare.groups import grouped
from fedjax_het.compare.runs import find
from fedjax_het.config import sections as registry
from fedjax_het.config.file import read_config
from fedjax_het.config.grid import check_sweep
from fedjax_het.config.override import change, is_beyond_flags, leave_out_empty, with_empty_sections
from fedjax_het.config.plan import plan, written
from fedjax_het.config.quickstart import get_config
from fedjax_het.config.same import with_defaults
from fedjax_het.config.sections import CORE, Section, sections
from fedjax_het.config.values import numbers, plain, replaced
from fedjax_het.errors import SettingError
from fedjax_het.experiment import build as building
from fedjax_het.experiment import experiment
from fedjax_het.experiment.extend import earlier_rounds
from fedjax_het.program.where import Where
from fedjax_het.studies import STUDIES, Options, Study
from fedjax_het.tables.runs import identity
from fedjax_het.workdir.folder import as_json, check, prepare


def test_a_plan_is_typed_frozen_and_has_the_defaults():
  config = get_config()
  made = plan(config)
  assert plan(made) is made and made.written == config.to_dict() and plan(config.to_dict()) == made
  with pytest.raises(dataclasses.FrozenInstanceError):
    made.rounds = 3
  assert made.partition.settings == {"alpha": 0.1, "min_size": 10, "max_tries": None, "balance": False}
  assert made.partition_seed is None and made.stratify is False and made.unseen_steps == ()
  assert made.client.name == "superfed_mm" and made.client.settings["start_round"] == 40
  assert plan(get_config("algorithm=fedavg")).client.settings["lr"] == 0.05
  assert made.studies == {}
  judged = plan(with_values(config, {"landscape": {"points": 5}, "to_accuracy": 0.0})).studies
  assert judged["landscape"] == {
    "points": 5, "span": 1.0, "part": "test", "examples": None, "others": (), "l2": 0.0,
  }  # fmt: skip
  assert judged["to_accuracy"] == 0.0


@pytest.mark.slow
@pytest.mark.parametrize(
  "method, settings",
  [("fml", ("alpha", "beta")), ("fedkd", ("energy_start", "energy_end")), ("fedrs", ("alpha",))],
)
def test_a_weight_of_one_stays_a_constant_of_the_program(method, settings):
  """So that a run leaves out what the method's factory leaves out at 1."""
  for value, constant in ((1.0, True), (0.5, False)):
    own = {"name": method, **dict.fromkeys(settings, value)}
    found = numbers({"local": {}, "algorithm": own})
    assert all((f"algorithm.{name}" not in found) == constant for name in settings)


def test_a_run_checks_its_configuration_once(tmp_path, monkeypatch):
  made, real = [], building.build_algorithm
  from fedjax_het.config import check as checks
  from fedjax_het.config import plan as planning

  fields = planning.check_fields
  monkeypatch.setattr(planning, "check_fields", lambda *args: made.append(args) or fields(*args))
  monkeypatch.setattr(checks, "build_algorithm", lambda *args: made.append(args) or real(*args))
  experiment.run_experiment(small(rounds=1, eval_every=1), str(tmp_path), Where(devices=1))
  assert len(made) == 2  # the fields, and the parts that they choose


def test_sections_that_a_file_lacks_are_put_in_for_the_command_line():
  config = ConfigDict({name: value for name, value in get_config().items() if name not in ("task", "unseen")})
  put_in = with_empty_sections(config)
  names = {name for name, one in sections().items() if one.kind != "field"}
  assert {*put_in} == names - {*get_config()} | {"task", "unseen"}
  config.landscape.points, config.label_noise.name = 5, "pair"
  leave_out_empty(config, put_in)
  assert {*config} == ({*get_config()} | {"landscape"}) - {"task", "unseen"} and config.label_noise
  change(config, {"landscape.span": 0.5, "downstream.steps": 3, "downstream.model.name": "two_nn"})
  assert config.landscape.span == 0.5 and config.downstream.model.name == "two_nn" and "task" not in config
  with pytest.raises(
    SettingError, match=r"landscap is unknown to the configuration\. Did you mean 'landscape'"
  ):
    change(config, {"landscap.points": 3})


def test_elements_of_a_tuple_are_reached_by_number():
  assert replaced({"a": ({"x": 1}, {"y": 2})}, ["a", "1", "y"], 3) == {"a": ({"x": 1}, {"y": 3})}
  config = with_values(get_config(), {"unseen": {"fraction": 0.2, "steps": (1, 4)}})
  assert is_beyond_flags(config, "unseen.steps.0") and is_beyond_flags(config, "unseen.new.field")
  assert not is_beyond_flags(config, "unseen.steps") and not is_beyond_flags(config, "model.hidden")
  change(config, {"unseen.steps.1": 9})
  assert plan(config).unseen_steps == (1, 9)
  for path in ("unseen.steps.2", "unseen.steps.x"):
    with pytest.raises(
      SettingError, match=rf"config\.{path} = 3: . is no number of an element, of which.* 2"
    ):
      change(config, {path: 3})


def test_several_sections_are_told_as_a_tuple():
  form = r"""--config\.uploads="\(\{'name': '%s'\},\)"."""
  for given, name in (
    (("quantize",), "quantize"),
    (("name",), "clip"),
    ({"name": "sign"}, "clip"),
    ("sign", "sign"),
  ):
    with pytest.raises(SettingError, match=r"uploads = .*: is no tuple of sections\. .*" + form % name):
      plan(written(get_config()) | {"uploads": given})
  config = get_config()
  with pytest.raises(SettingError, match=r"""config\.uploads="\(\{'name': 'sign'\},\)"\.$"""):
    change(config, {"uploads.0.name": "sign"})
  assert not plan(written(get_config()) | {"uploads": []}).parts["uploads"]


def test_a_section_of_the_registry_is_one_line(monkeypatch):
  """As the sections of later versions are: a tuple of choices, whose numbers a sweep may vary."""
  line = Section("uploads", "choices", lambda: {"top_k": lambda share, keep=2: None}, varies=True)
  monkeypatch.setattr(registry, "CORE", (*CORE, line))
  assert sections()["uploads"].filled({}, "top_k") == {"keep": 2}
  config = get_config()
  change(config, {"uploads": ({"name": "top_k", "share": 0.1}, {"name": "top_k", "share": 0.2})})
  change(config, {"uploads.1.share": 0.5})
  assert [one["share"] for one in plain(config)["uploads"]] == [0.1, 0.5]
  _, plans = check_sweep(config, {"uploads.0.share": [0.3, 0.4]})
  assert [own.written["uploads"][0]["share"] for own in plans] == [0.3, 0.4]
  assert with_defaults(plan(config).written)["uploads"][0] == {"name": "top_k", "share": 0.1, "keep": 2}
  change(config, {"uploads.1.name": "topk"})
  with pytest.raises(SettingError, match=r"uploads\.1\.name = 'topk': unknown\. Did you mean 'top_k'"):
    plan(config)


def test_a_configuration_that_lacks_what_is_at_its_default_is_the_same(tmp_path):
  old = get_config("algorithm=fedavg").to_dict()
  prepare(
    tmp_path, {name: value for name, value in old.items() if name not in ("unseen", "task", "label_noise")}
  )
  same = with_values(
    ConfigDict(old),
    {"record_losses": False, "stratify": False, "dataset_options": {"resize": None}, "to_accuracy": None,
     "partition.min_size": 10, "model.layers": 2, "server.lr": 1, "unseen": {}},
  )  # fmt: skip
  check(tmp_path, same.to_dict())
  assert identity(old) == identity(plan(same)) == identity(json.loads(as_json(old)))
  longer = with_values(same, {"rounds": 120})
  assert earlier_rounds(check(tmp_path, old), plan(with_values(longer, {"eval_every": 10}))) == 100
  for changes, text in (
    ({"record_losses": True}, r"record_losses = True: .* record_losses = false"),
    ({"partition.min_size": 9}, r"partition\.min_size = 9: .* partition\.min_size = 10"),
    ({"local.lr": 0.1}, r"local\.lr = 0\.1: .* local\.lr = 0\.05"),
    ({"landscape": {"points": 21}}, r"landscape\.\w+ = .* absent"),
    ({"unheard_of": 1}, r"unheard_of = 1: .* unheard_of = absent"),
  ):
    with pytest.raises(SettingError, match=text):
      check(tmp_path, with_values(same, changes).to_dict())
    assert identity(with_values(same, changes).to_dict()) != identity(old)


def test_a_setting_of_the_client_part_is_one_in_either_section():
  one, other = get_config("algorithm=fedavg").to_dict(), get_config("algorithm=fedavg").to_dict()
  other["algorithm"]["momentum"] = other["local"].pop("momentum")
  assert with_defaults(one) == with_defaults(other)


def test_what_is_no_configuration_of_ours_stays_as_it_is():
  for stored in (
    {},
    {"algorithm": 3, "local": {}},
    {"algorithm": {"name": "nobody"}, "local": {"lr": 1}, "a": [1]},
  ):
    found = with_defaults(stored)
    assert found.get("a") == stored.get("a")


def test_every_study_describes_its_options():
  from fedjax_het.settings import documented

  for study in STUDIES:
    if study.options:
      assert {*study.options.settings} <= {*documented(study.options.takes)}, study.name
      assert {*study.options.defaults} == {*study.options.settings}


def test_a_former_config_json_is_read_as_a_plan(tmp_path):
  (tmp_path / "config.json").write_text(as_json(plan(get_config()).written))
  again = plan(read_config(str(tmp_path / "config.json")))
  assert again.client == plan(get_config()).client and again.rounds == 100


def test_runs_with_and_without_a_field_at_its_default_are_one_group(tmp_path):
  config = get_config("algorithm=fedavg").to_dict()
  for seed, more in enumerate(({}, {"record_losses": False, "downstream": {}})):
    prepare(tmp_path / str(seed), {**config, **more, "seed": seed})
  (group,) = grouped(find([tmp_path]))
  assert [run.seed for run in group.runs] == [0, 1]


def norm(params, *, order: int = 2):
  """A norm.

  Args:
    order: which.
  """


class Own(Study):
  name, options = "own", Options("own", norm)


def test_a_study_of_ones_own_brings_its_section():
  config = with_values(get_config(), {"own": {"order": 1}})
  made = plan(config, [Own])
  assert made.studies == {"own": {"order": 1}} and Own(SimpleNamespace(config=made)).settings == {"order": 1}
  assert Own(SimpleNamespace(config=plan(get_config(), [Own]))).settings == {"order": 2}
  known = plan(get_config())
  assert plan(known, [Own]).watching[-1] is Own and Own not in known.watching
  with pytest.raises(SettingError, match=r"own = .*: unknown field"):
    plan(config)
  slips = ({"ordr": 1}, r"own\.ordr = 1: unknown to own\. Did"), ({"order": "a"}, r"own\.order = 'a': of")
  for wrong, text in slips:
    with pytest.raises(SettingError, match=text):
      plan(with_values(config, {"own": wrong}), [Own])
  with pytest.raises(SettingError, match=r"studies = 'own': the options of two"):
    plan(config, [Own, Own])
