"""Passes of a method's own follow `local.epochs`; a config.json without them is an earlier run's."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest

import fedjax_het as fh
from fedjax_het.compare.runs import find
from fedjax_het.config.fields import fields
from fedjax_het.config.file import read_config
from fedjax_het.config.grid import check_sweep
from fedjax_het.config.listing import entries
from fedjax_het.config.own_epochs import of_earlier, passes
from fedjax_het.config.own_epochs import resolved as resolved_fields
from fedjax_het.config.plan import plan, written
from fedjax_het.config.quickstart import get_config
from fedjax_het.experiment.build import build
from fedjax_het.experiment.dry_run import steps_of_clients
from fedjax_het.experiment.experiment import run_experiment
from fedjax_het.experiment.extend import earlier_rounds
from fedjax_het.experiment.sweep import run_sweep
from fedjax_het.methods import CLIENTS
from fedjax_het.tables.paper import read_table
from fedjax_het.tables.reproduce import wanted
from fedjax_het.tables.runs import ended, programs
from fedjax_het.workdir.folder import as_json, check, prepare

TABLES = sorted(Path(__file__).parents[2].glob("configs/*.csv"))
OWN = {"ditto": ("local_epochs", 5), "fedrep": ("body_epochs", 5), "sosicfl_plus": ("local_epochs", 10)}


def resolved(config, swept=()):
  return resolved_fields(written(config), swept)


def config_of(method, epochs=1, **own):
  config = get_config(f"algorithm={method}")
  config.local.epochs = epochs
  config.algorithm.update(own)
  plan(config)
  return config


def stored(config):
  return json.loads(as_json(config.to_dict()))


def test_all_settings_that_count_passes_of_a_method_s_own_are_known():
  found = {
    name: tuple(
      own
      for own in method.settings
      if own.endswith("epochs") and own not in ("epochs", "min_epochs", "finetune_epochs")  # of evaluations
    )
    for name, method in CLIENTS.items()
  }
  assert {name: names for name, names in found.items() if names} == {n: (own,) for n, (own, _) in OWN.items()}
  assert {name: {**method.own_epochs} for name, method in CLIENTS.items() if method.own_epochs} == {
    name: {own: (before, "lam" if name == "sosicfl_plus" else "")} for name, (own, before) in OWN.items()
  }


@pytest.mark.parametrize(
  ("method", "walks"), [("ditto", 2), ("fedrep", 2), ("sosicfl_plus", 2), ("fedavg", 1)]
)
def test_own_passes_are_as_many_as_epochs(method, walks):
  config = config_of(method)
  experiment = build(plan(config))
  sizes = np.asarray(experiment.data.train.size)
  np.testing.assert_array_equal(steps_of_clients(experiment), walks * np.ceil(sizes / 10))


@pytest.mark.parametrize(("make", "own"), [(fh.ditto, "local_epochs"), (fh.fedrep, "body_epochs")])
def test_from_python_they_follow_epochs_unless_set(make, own):
  model = fh.models.two_nn((3,), 2, hidden=2)
  data = fh.data.from_arrays(
    jax.random.key(0), np.zeros((40, 3), np.float32), np.arange(40) % 2, num_clients=2
  )
  view = data.clients(np.arange(1))
  steps = lambda **settings: int(make(model, epochs=2, **settings).training.steps(view))  # noqa: E731
  each = -(-16 // 10)
  assert steps() == 4 * each
  assert steps(**{own: None}) == 4 * each
  assert steps(**{own: 3}) == 5 * each


def test_a_resolved_configuration_writes_them_out():
  for method, (own, _) in OWN.items():
    assert resolved(config_of(method))["algorithm"][own] == 1
    assert resolved(config_of(method, **{own: 3}))["algorithm"][own] == 3
  assert resolved(config_of("ditto", local_epochs=None))["algorithm"]["local_epochs"] == 1
  assert "local_epochs" not in resolved(config_of("sosicfl_plus", lam=None))["algorithm"]
  assert resolved(config_of("fedavg")) == config_of("fedavg").to_dict()
  config = config_of("ditto")
  config.local.local_epochs = None
  assert (
    resolved(config)["local"]["local_epochs"] == 1 and "local_epochs" not in resolved(config)["algorithm"]
  )
  del config.local["epochs"]
  assert resolved(config)["local"]["local_epochs"] == 10  # the factory's own E


def test_a_config_json_without_them_is_of_a_run_that_trained_so_many():
  for method, (own, before) in OWN.items():
    assert of_earlier(stored(config_of(method)))["algorithm"][own] == before
    assert of_earlier(stored(config_of(method, **{own: 3})))["algorithm"][own] == 3
  plain = stored(config_of("ditto"))
  assert of_earlier({"config": plain, "sweep": {"seed": [0, 1]}})["config"]["algorithm"]["local_epochs"] == 5
  swept = {"config": plain, "sweep": {"algorithm.local_epochs": [1, 2]}}
  assert of_earlier(swept) == swept
  unknown = {"algorithm": {"name": ["ditto"]}, "local": {}}
  for strange in ([], {}, {"algorithm": "ditto"}, unknown, {"sweep": {}}):
    assert of_earlier(strange) == strange


def test_an_earlier_workdir_continues_with_five_and_is_refused_with_another_number(tmp_path):
  config = config_of("ditto")
  prepare(tmp_path, stored(config))  # as an earlier version wrote it
  check(tmp_path, resolved(config_of("ditto", local_epochs=5)))
  with pytest.raises(
    fh.SettingError, match=r"algorithm.local_epochs = 1: .* = 5\. An earlier version began it"
  ):
    check(tmp_path, resolved(config))


def test_the_config_json_of_an_earlier_run_is_a_configuration_with_five(tmp_path):
  run = prepare(tmp_path, stored(config_of("ditto")))
  config = read_config(str(run.config_path))
  assert config.algorithm.local_epochs == 5 and config.local.epochs == 1
  check(tmp_path, resolved(config))


def test_an_earlier_workdir_takes_more_rounds_with_five(tmp_path):
  config, longer = config_of("ditto"), config_of("ditto", local_epochs=5)
  run = prepare(tmp_path, stored(config))
  longer.rounds, longer.eval_every = config.rounds + 10, config.eval_every
  assert earlier_rounds(run, plan(longer)) == config.rounds
  longer.algorithm.local_epochs = 1
  assert earlier_rounds(run, plan(longer)) is None  # `check` refuses it


def test_a_comparison_shows_them_where_they_are_not_as_epochs(tmp_path):
  prepare(tmp_path / "five", stored(config_of("ditto", epochs=5)))  # of an earlier version
  prepare(tmp_path / "new", resolved(config_of("ditto", epochs=5)))
  prepare(tmp_path / "one", stored(config_of("ditto", epochs=1)))
  five, new, one = (run.config for run in find([tmp_path]))
  assert five == new and "local_epochs" not in new["algorithm"] and one["algorithm"]["local_epochs"] == 5


def test_a_run_keeps_them_in_its_config_json(tmp_path):
  config = config_of("fedrep")
  config.rounds = 1
  prepare(tmp_path / "run", stored(config_of("fedrep", body_epochs=5)) | {"rounds": 1})
  (tmp_path / "run" / "summary.json").write_text('{"metrics": {}}')
  with pytest.raises(fh.SettingError, match="body_epochs = 1"):
    run_experiment(config, str(tmp_path / "run"))
  with pytest.raises(fh.SettingError, match="body_epochs = 1"):
    prepare(tmp_path / "sweep", {"config": stored(config_of("fedrep", body_epochs=5)) | {"rounds": 1},
                                 "sweep": {"seed": [0, 1]}})  # fmt: skip
    run_sweep(config, {"seed": [0, 1]}, str(tmp_path / "sweep"))


def test_no_cell_of_a_shipped_table_changes():
  seen = set()
  for path in TABLES:
    table = read_table(path.with_suffix(".py"))
    for cell in table.cells:
      config = table.get_config(cell.text)
      name = config.algorithm.name
      if name not in OWN:
        continue
      own, before = OWN[name]
      # tables of SosicFL's and of other libraries wrote their own, τ = E, from the beginning
      expected = config.local.epochs if path.stem.startswith(("sosicfl", "peers")) else before
      assert config.algorithm[own] == expected
      seen.add((path.stem, name))
  assert {("table_2_3", "ditto"), ("table_2_4", "fedrep"), ("sosicfl_2", "sosicfl_plus")} <= seen


def test_an_earlier_run_counts_for_its_table(tmp_path):
  table = read_table(TABLES[0].parent / "table_2_3.py")
  cells = [cell for cell in table.cells if cell.keys["algorithm"] == "ditto"][:1]
  runs = wanted(table, cells, [0], lambda config: None)
  earlier = json.loads(as_json(runs[0].plan.written))
  del earlier["algorithm"]["local_epochs"]
  prepare(tmp_path / "old", earlier)
  (program,) = programs(runs, tmp_path)
  assert program.folder == tmp_path / "old"  # what an earlier start left goes on
  (tmp_path / "old" / "summary.json").write_text("{}")
  assert len(ended(tmp_path)) == 1 and programs(runs, tmp_path) == []
  runs = wanted(table, cells, [0], lambda config: config.algorithm.update(local_epochs=1))
  assert len(programs(runs, tmp_path)) == 1


def test_the_terminal_tells_that_they_follow():
  config = config_of("ditto", epochs=3)
  assert passes(plan(config)) == "epochs 3, local_epochs 3 (as epochs)"
  assert passes(plan(config_of("ditto", epochs=3, local_epochs=5))) == "epochs 3, local_epochs 5"
  assert passes(plan(config_of("fedavg", epochs=3))) == "epochs 3"
  assert passes(plan(config_of("fedavg", epochs=5, min_epochs=2))) == "epochs 2 to 5"
  assert passes(plan(config_of("fedavg", steps=7))) == "steps 7"
  without = config_of("fedavg", epochs=3)
  del without.local["epochs"]
  assert passes(plan(without)) == "epochs 10"
  told = {field.path: field.default for field in fields(config.to_dict())}
  assert told["algorithm.local_epochs"] == "as epochs"
  (entry,) = (entry for entry in entries()["algorithm.name"] if entry.name == "fedrep")
  assert entry.settings["body_epochs"].default == "as epochs"


def test_a_sweep_may_vary_them():
  _, configs = check_sweep(config_of("ditto"), {"algorithm.local_epochs": [1, 2]})
  assert [own.parts["algorithm"]["local_epochs"] for own in configs] == [1, 2]
  whole = resolved(config_of("ditto"), {"algorithm.local_epochs": [1, 2]})
  assert "local_epochs" not in whole["algorithm"]
