"""Launched runs that simulate time: its seconds on every line, whole, resumed and in a sweep."""

import json
from math import comb

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from launching import config_of, records, start

from fedjax_het.config.plan import plan
from fedjax_het.engine.clock import work_seconds
from fedjax_het.engine.engine import Engine
from fedjax_het.errors import SettingError
from fedjax_het.experiment import sweep
from fedjax_het.experiment.build import build, notes_of
from fedjax_het.experiment.counted import Counted
from fedjax_het.experiment.dry_run import simulated
from fedjax_het.program.where import Where

SLOW = {"name": "lognormal", "sigma": 1.5, "server_seconds": 0.5}
FEW = dict(algorithm={"name": "fedavg"}, rounds=7, eval_every=2, model={"name": "logistic_regression"})


def expected(config):
  """The simulated seconds after each round, whose clients all arrive, from the run's cohorts."""
  own = build(plan(config))
  engine = Engine(own.algorithm, own.data, config["cohort_size"], devices=1)
  _, infos = engine.advance(engine.init(own.key), config["rounds"])
  key = jax.random.split(own.key, 3)[2]
  each = np.asarray(work_seconds(own.algorithm, key, own.data, config["cohort_size"]), np.float64)
  took = [max(each[i] for i in cohort) + 0.5 for cohort in infos.cohort.tolist()]
  return np.cumsum(took)


@pytest.mark.slow
def test_simulated_seconds_are_on_every_line_and_the_same_after_a_stop(tmp_path):
  config = config_of(**FEW, system=SLOW, to_accuracy=0.2)
  summary = start(config, str(tmp_path / "whole"))
  lines = records(tmp_path / "whole")
  found = [line["simulated_seconds"] for line in lines]
  np.testing.assert_allclose(found, expected(config)[[1, 3, 5, 6]], rtol=1e-6)
  assert summary["simulated_seconds"] == found[-1]
  course = summary["best"]["course"]
  assert course["simulated_seconds"] == found
  assert course["bytes"] == [sum(line["bytes"].values()) for line in lines]
  own = summary["to_accuracy"]["global"]
  place = course["rounds"].index(own["round"])
  assert own["simulated_seconds"] == found[place] and own["bytes"] == course["bytes"][place]
  start(config_of(**{**FEW, "rounds": 3}, system=SLOW, to_accuracy=0.2), str(tmp_path / "part"))
  start(config, str(tmp_path / "part"))
  assert json.loads((tmp_path / "part" / "summary.json").read_text())["simulated_seconds"] == found[-1]
  assert records(tmp_path / "part")[-1]["simulated_seconds"] == found[-1]


@pytest.mark.slow
def test_members_of_a_sweep_have_their_own_seconds(tmp_path):
  config = config_of(**{**FEW, "rounds": 4, "eval_every": 4}, system=SLOW | {"over_selection": 1.6})
  grid = {"system.deadline": [2.0, 8.0]}
  sweep.run_sweep(config, grid, str(tmp_path / "sweep"), Where(devices=1))
  seconds = {}
  for folder in (tmp_path / "sweep" / "members").iterdir():
    found = json.loads((folder / "summary.json").read_text())
    given = json.loads((folder / "config.json").read_text())
    seconds[given["system"]["deadline"]] = found["simulated_seconds"]
  assert 4 * 0.5 < seconds[2.0] <= 4 * 2.5 and seconds[2.0] < seconds[8.0] <= 4 * 8.5


def test_a_run_without_a_system_has_no_simulated_seconds():
  built = build(plan(config_of(**FEW)))
  assert "simulated_seconds" not in Counted(built).fields and Counted(built).simulated is None
  assert simulated(built) is None


def test_a_dry_run_says_what_a_round_takes():
  own = build(plan(config_of(**FEW, system=SLOW)))
  key = jax.random.split(own.key, 3)[2]
  each = np.sort(work_seconds(own.algorithm, key, own.data, 5))
  # The k-th of 20 sorted seconds is the largest of 5 drawn with the probability C(k - 1, 4) / C(20, 5).
  mean = sum(seconds * comb(k, 4) / comb(20, 5) for k, seconds in enumerate(each.tolist())) + 0.5
  assert abs(simulated(own) - mean) < 0.05 * mean


@pytest.mark.parametrize(
  "system, words",
  [
    ({"name": "lognormal", "deadline": 0.0}, r"system.deadline = 0\.0: out of range"),
    ({"name": "lognormal", "deadline": 1e-60}, "system.deadline = 1e-60: vanishes in float32"),
    ({"name": "lognormal", "over_selection": 0.9}, r"system.over_selection = 0\.9: out of range"),
    ({"name": "lognormal", "correlation": -1.1}, "system.correlation"),
    ({"name": "trace"}, "system.path = '': names no file"),
    ({"name": "log_normal"}, "system.name = 'log_normal': unknown. Did you mean 'lognormal'"),
    ({"deadline": 2.0}, "system = .*has no name"),
  ],
)
def test_a_system_that_cannot_be_is_refused_by_name(system, words):
  with pytest.raises(SettingError, match=words):
    build(plan(config_of(**FEW, system=system)))


def test_an_over_selection_of_all_clients_is_said_to_have_no_effect():
  over = {"name": "constant", "over_selection": 1.3}
  told = lambda size, **more: notes_of(  # noqa: E731
    build(plan(config_of(**FEW, system=over, cohort_size=size, **more)))
  )
  assert any(
    "system.over_selection = 1.3: has no effect, as all 20 clients are asked." in own for own in told(20)
  )
  assert not any("over_selection" in own for own in told(19))
  four = {"buffer_size": 4, "concurrency": 4}  # uploads that are waited for, whatever the cohort size
  assert not any("over_selection" in own for own in told(20, asynchronous=four))


def test_a_whole_number_is_a_deadline():
  made = build(plan(config_of(**FEW, system={"name": "constant", "deadline": 3}))).algorithm
  assert made.system.deadline == 3 and made.participation.ahead
  assert jnp.isinf(build(plan(config_of(**FEW, system={"name": "constant"}))).algorithm.system.deadline)
