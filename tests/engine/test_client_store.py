"""Clients' states that stay on the host give the numbers of states that lie on the devices."""

import chex
import jax
import numpy as np
import pytest
from cases import algorithm, cases, in_other_tests, with_every
from launching import records, small
from small_parts import federation, mlp

from fedjax_het.engine.client_store import OnHost
from fedjax_het.engine.cohort import cohort_of
from fedjax_het.engine.data_store import Streamed
from fedjax_het.engine.engine import Engine
from fedjax_het.errors import SettingError
from fedjax_het.experiment import experiment
from fedjax_het.experiment.dry_run import dry_run
from fedjax_het.experiment.sweep import run_sweep
from fedjax_het.methods import CLIENTS
from fedjax_het.program.where import Where
from fedjax_het.workdir import checkpoint
from fedjax_het.workdir.checkpoint import Checkpoints
from fedjax_het.workdir.digest import digest

RAGGED, EVEN = (9, 1, 7, 3, 12, 2, 9, 1, 10, 5, 4, 11), (6,) * 12
WITHOUT = {name for name, method in CLIENTS.items() if method.keeps.startswith("nothing")}


def scaled():
  """A model with a scale, which a client of FedBN keeps."""
  return mlp()._replace(init=lambda key: mlp().init(key) | {"norm": {"scale": jax.numpy.ones(4)}})


def engine(name="superfed_mm", sizes=RAGGED, cohort=3, devices=2, **where):
  own = algorithm(cases()[name], scaled() if name == "fedbn" else mlp(), batch_size=4)
  return Engine(own, federation(sizes), cohort, devices=devices, **where)


def followed(own: Engine, lengths, part="test"):
  """State, infos and the last evaluation of rounds in chunks of these lengths, evaluated after each."""
  state, infos = own.init(jax.random.key(3)), []
  for length in lengths:
    state, some = own.advance(state, length)
    infos.append(some)
    found = own.evaluate(state, part)
  state = jax.tree.map(np.array, state._replace(key=jax.random.key_data(state.key)))
  return state, jax.tree.map(lambda *parts: np.concatenate(parts), *infos), found


@pytest.fixture(scope="module")
def expected():
  return followed(engine(), (9,))


@pytest.mark.parametrize("held", [3, pytest.param(8, marks=pytest.mark.slow)])
def test_the_numbers_are_those_of_states_on_the_devices(expected, held):
  """However the rounds are cut into chunks, and after evaluations in between."""
  own = engine(device_states=held)
  assert isinstance(own.states, OnHost)
  chex.assert_trees_all_equal(followed(own, (1, 5, 3)), expected)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 3])
def test_also_with_streamed_examples_on_any_number_of_devices(expected, devices):
  own = engine(device_states=5, device_rows=70, devices=devices)
  assert isinstance(own.examples, Streamed)
  chex.assert_trees_all_equal(followed(own, (4, 5)), expected)


@pytest.mark.parametrize(
  "name", [pytest.param(name, marks=in_other_tests(name)) for name in sorted({*CLIENTS} - WITHOUT)]
)
def test_of_every_method_that_keeps_states(name):
  own = engine(name, EVEN, cohort=4, device_states=6)
  chex.assert_trees_all_equal(followed(own, (3, 2)), followed(engine(name, EVEN, cohort=4), (5,)))


@pytest.mark.parametrize("name", sorted(WITHOUT))
def test_a_method_without_states_has_none_to_hold(name):
  with pytest.raises(SettingError, match=r"device_states = 6: clients of this method keep none\. Leave"):
    engine(name, device_states=6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["superfed_mm", pytest.param("ditto", marks=pytest.mark.slow)])
def test_states_on_a_disk_are_those_in_memory_and_leave_nothing_behind(tmp_path, name):
  own = engine(name, device_states=5, states_folder=str(tmp_path))
  state = own.init(jax.random.key(3))
  assert all(isinstance(leaf.base, np.memmap) for leaf in jax.tree.leaves(state.clients))
  assert not [*tmp_path.iterdir()]
  saved = jax.tree.map(np.copy, own.to_save(state).clients)
  restored = own.from_saved(state._replace(clients=saved)).clients
  assert all(isinstance(leaf.base, np.memmap) for leaf in jax.tree.leaves(restored))
  chex.assert_trees_all_equal(restored, saved)
  chex.assert_trees_all_equal(followed(own, (1, 5, 3)), followed(engine(name), (9,)))


def test_a_folder_for_states_that_cannot_be_is_named(tmp_path, monkeypatch):
  with pytest.raises(SettingError, match=r"states_folder = .*nowhere.*: no such folder"):
    engine(device_states=5, states_folder=str(tmp_path / "nowhere"))
  without = r"states_folder.*without device_states all states are stored on the devices.*device_states=64"
  for wrong in (lambda: engine(states_folder=str(tmp_path)), Where(states_folder=str(tmp_path)).check):
    with pytest.raises(SettingError, match=without):
      wrong()
  with pytest.raises(SettingError, match="states_folder = '': is empty"):
    Where(device_states=5, states_folder="").check()
  assert engine(device_states=12, states_folder=str(tmp_path)).states.held is None  # all are there
  with pytest.raises(SettingError, match="states_folder = '/proc/self': nothing can be written there"):
    engine(device_states=5, states_folder="/proc/self")

  def full(file, start, length):
    raise OSError(28, "No space left on device")

  monkeypatch.setattr("os.posix_fallocate", full)
  with pytest.raises(SettingError, match=r"no room for [\d,]+ bytes of states: No space left.*larger disk"):
    engine(device_states=5, states_folder=str(tmp_path)).init(jax.random.key(0))


def test_states_that_no_checkpoint_could_hold_are_refused_before_training(tmp_path, monkeypatch):
  monkeypatch.setattr(checkpoint, "memory_there", lambda: 1000)
  where = Where(devices=1, device_states=5, states_folder=str(tmp_path))
  with pytest.raises(
    SettingError, match=r"states_folder = .* GB of states': a checkpoint copies them.*fh\.run"
  ):
    experiment.run_experiment(small(), str(tmp_path / "run"), where)
  assert Checkpoints(tmp_path / "run" / "checkpoints").latest() is None


@pytest.mark.slow
def test_a_visit_brings_no_more_than_its_cohorts():
  own = engine(device_states=5)
  state, last, seen = own.init(jax.random.key(3)), 0, []
  drawn = np.asarray(jax.vmap(lambda round: cohort_of(state.key, round, len(RAGGED), 3))(np.arange(41)))
  everybody = jax.tree.map(np.copy, state.clients)
  while last < 40:
    visit = own.states.bring(state, last, 40)
    cohorts = drawn[last:]
    mine = np.unique(cohorts[: visit.last - last])
    np.testing.assert_array_equal(np.sort(visit.ids), mine)
    assert len(np.union1d(mine, cohorts[visit.last - last])) > 5 or visit.last == 40
    for here, there in zip(jax.tree.leaves(visit.state.clients), jax.tree.leaves(everybody), strict=True):
      assert here.shape[0] == 5
      np.testing.assert_array_equal(np.asarray(here)[visit.slots[mine]], there[mine])
    seen.append(visit.last - last)
    last = visit.last
  assert len(set(seen)) > 1  # or all windows were as long


def test_what_cannot_be_held_is_named():
  with pytest.raises(
    SettingError, match=r"device_states = 2: .* has 3 clients.* Use 3 or more.* all clients' on"
  ):
    engine(device_states=2)
  with pytest.raises(SettingError, match="device_states"):
    engine(device_states=2.5)
  assert engine(device_states=12).states.held is None
  with pytest.raises(SettingError, match="device_states = 5: a sweep keeps"):
    run_sweep(small(), {"seed": [0, 1]}, "nowhere", Where(device_states=5))


def test_a_checksum_is_one_on_host_and_devices():
  draw = np.random.default_rng(0)
  tree = {
    "floats": draw.normal(size=(3, 1500, 1000)).astype(np.float32), "small": np.float16([-1.5, 2.0]),
    "whole": np.int32([[-7, 2], [3, 4]]), "bytes": np.int8([-1, 5]), "said": np.array([True, False]),
  }  # fmt: skip
  tree["brain"] = np.asarray(jax.numpy.asarray([1.5, -2.0, 3.0], "bfloat16"))
  before = digest(tree)
  assert before == digest(jax.tree.map(jax.numpy.asarray, tree))
  tree["floats"][2, 1499, 999] += 1.0
  changed = [one != other for one, other in zip(digest(tree), before, strict=True)]
  assert changed == [name == "floats" for name in sorted(tree)]
  assert digest(tree) != digest(jax.tree.map(np.zeros_like, tree))


@pytest.mark.slow
@pytest.mark.parametrize("first, then", with_every([(7, None), (None, 7), (5, 9)], (None, 7)))
def test_a_run_may_go_on_with_its_states_elsewhere(tmp_path, monkeypatch, first, then):
  whole = experiment.run_experiment(small(), str(tmp_path / "whole"), Where(devices=1))
  real, folder = experiment.chunks, tmp_path / "moved"

  def stopping(*args):
    for chunk in real(*args):
      yield chunk
      if int(chunk.state.round) >= 3:
        raise InterruptedError

  monkeypatch.setattr(experiment, "chunks", stopping)
  with pytest.raises(InterruptedError):
    experiment.run_experiment(small(), str(folder), Where(devices=1, device_states=first))
  monkeypatch.setattr(experiment, "chunks", real)
  assert Checkpoints(folder / "checkpoints").latest() == 3
  moved = experiment.run_experiment(small(), str(folder), Where(devices=1, device_states=then))
  assert moved["metrics"] == whole["metrics"] and moved["lambda"] == whole["lambda"]
  assert records(folder) == records(tmp_path / "whole")


@pytest.mark.slow
def test_a_dry_run_counts_what_the_devices_hold():
  all_, some = dry_run(small(), Where(devices=1)), dry_run(small(), Where(devices=1, device_states=5))
  assert some["client_state_bytes"] == all_["client_state_bytes"]
  assert (all_["states"], some["states"]) == ("over the devices", "on the host")
  saved = all_["memory_bytes"] - some["memory_bytes"]
  assert saved == pytest.approx(0.75 * all_["client_state_bytes"], rel=0.05)  # 15 of 20 clients'
