"""Settings of local training in a configuration: a schedule's end, steps, optimisers by function."""

import json

import jax
import numpy as np
import optax
import pytest
from launching import config_of, small, start

from fedjax_het.config.file import read_config
from fedjax_het.config.grid import check_sweep
from fedjax_het.config.own_epochs import passes
from fedjax_het.config.plan import plan
from fedjax_het.errors import SettingError
from fedjax_het.experiment.build import build, engine_of
from fedjax_het.experiment.dry_run import steps_of_clients
from fedjax_het.experiment.extend import earlier_rounds
from fedjax_het.program.where import Where
from fedjax_het.workdir.folder import as_json, prepare


def test_a_schedule_spans_the_run_s_rounds_unless_it_says_otherwise():
  assert "schedule_rounds" not in plan(config_of(rounds=7)).parts["local"]
  assert plan(config_of(rounds=7, local__schedule="cosine")).parts["local"]["schedule_rounds"] == 7
  given = config_of(rounds=7, local__schedule="cosine", local__schedule_rounds=9)
  assert plan(given).written["local"]["schedule_rounds"] == 9


def test_more_rounds_under_a_schedule_are_refused_unless_it_keeps_its_end(tmp_path):
  begun = config_of(rounds=7, eval_every=1, local__schedule="linear")
  run = prepare(tmp_path, plan(begun).written)
  longer = config_of(rounds=9, eval_every=1, local__schedule="linear")
  with pytest.raises(SettingError, match=r"rounds = 9: .*schedule_rounds = 7, which would be 9.*"
                     r"Add --config\.local\.schedule_rounds=7"):  # fmt: skip
    earlier_rounds(run, plan(longer))
  longer.local.schedule_rounds = 7
  assert earlier_rounds(run, plan(longer)) == 7


@pytest.mark.parametrize(("method", "own"), [("ditto", "local_epochs"), ("fedrep", "body_epochs")])
def test_steps_take_the_place_of_a_method_s_own_epochs_unless_these_are_set(method, own):
  by_steps = config_of(f"algorithm={method}", local__steps=4)
  assert own not in plan(by_steps).written["algorithm"]
  np.testing.assert_array_equal(steps_of_clients(build(plan(by_steps))), 2 * 4)
  both = build(plan(config_of(f"algorithm={method}", local__steps=4, **{f"algorithm__{own}": 2})))
  sizes = np.asarray(both.data.train.size)
  np.testing.assert_array_equal(steps_of_clients(both), 4 + 2 * np.ceil(sizes / 10))
  assert passes(both.plan) == f"steps 4, {own} 2"


FILE = """
import optax
from fedjax_het.config.quickstart import get_config as quickstart

def mine(lr):
  return optax.chain(optax.clip(0.1), optax.lion(lr))

def get_config():
  config = quickstart("algorithm=fedavg")
  config.local.optimizer = mine
  return config
"""


def first_round(config):
  """The broadcast after one round."""
  engine = engine_of(build(plan(config)), Where(devices=1))
  state, _ = engine.advance(engine.init(jax.random.key(0)), 1)
  return jax.tree.map(np.asarray, state.broadcast)


def test_a_function_of_a_configuration_file_is_an_optimiser_and_has_a_name_in_config_json(tmp_path):
  (tmp_path / "own.py").write_text(FILE)
  planned = plan(read_config(str(tmp_path / "own.py")))
  assert callable(planned.parts["local"]["optimizer"])
  stored = json.loads(as_json(planned.written))
  assert stored["local"]["optimizer"] == "own_config.mine"
  run = prepare(tmp_path / "run", planned.written)
  assert prepare(tmp_path / "run", plan(read_config(str(tmp_path / "own.py"))).written) == run  # the same one
  with pytest.raises(SettingError, match=r"local\.optimizer = 'own_config\.mine'.*Start the run from that"):
    plan(read_config(str(run.config_path)))


@pytest.mark.slow
def test_optimisers_of_optax_by_name_and_by_function_are_one():
  by_name, by_function = (config_of(local__optimizer=own) for own in ("optax.lion", optax.lion))
  jax.tree.map(np.testing.assert_array_equal, first_round(by_name), first_round(by_function))
  assert json.loads(as_json(plan(by_function).written))["local"]["optimizer"] == "optax.lion"


def test_an_unknown_optimiser_of_optax_is_refused_with_the_nearest():
  with pytest.raises(SettingError, match=r"local\.optimizer = 'optax\.lyon'.*optax\.lion"):
    plan(config_of(local__optimizer="optax.lyon"))
  with pytest.raises(SettingError, match=r"optimizer = 'optax\.clip'"):
    plan(config_of(local__optimizer="optax.clip"))  # takes no learning rate
  with pytest.raises(SettingError, match="reads the mean gradient"):
    plan(config_of("algorithm=scaffold", local__optimizer="optax.lion"))


@pytest.mark.slow
def test_a_run_by_a_function_ends_and_shows_its_summary_again(tmp_path):
  config = small(algorithm={"name": "fedavg"}, local={"lr": 0.01, "epochs": 1, "optimizer": optax.lion})
  assert start(config, str(tmp_path))["metrics"] == start(config, str(tmp_path))["metrics"]


@pytest.mark.parametrize("field", ["min_epochs", "crop", "cutout", "epochs"])
def test_numbers_that_change_the_program_are_no_values_of_a_sweep(field):
  with pytest.raises(SettingError, match="changes the program itself"):
    check_sweep(config_of(), {f"local.{field}": [1, 2]})
