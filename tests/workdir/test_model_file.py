"""model.npz: the final model of a run in a plain file, the same bits as in its checkpoint."""

import jax
import numpy as np
import pytest
from cases import with_every
from launching import small

from fedjax_het.config.plan import plan
from fedjax_het.engine.engine import Engine
from fedjax_het.engine.state import State
from fedjax_het.experiment import experiment
from fedjax_het.experiment.sweep import run_sweep
from fedjax_het.federated import federated
from fedjax_het.models.weights import by_name, with_weights
from fedjax_het.parts import ClientUpdate, Message
from fedjax_het.program.where import Where
from fedjax_het.workdir import model as model_file
from fedjax_het.workdir.checkpoint import Checkpoints


def run(folder, where=None, **changes):
  config = small(rounds=2, **changes)
  experiment.run_experiment(config, str(folder), where or Where(devices=2))
  return config


def arrays(folder) -> dict[str, np.ndarray]:
  with np.load(folder / model_file.MODEL) as file:
    return dict(file)


def test_it_is_the_checkpoints_state_and_a_model_starts_from_it(tmp_path):
  config = run(tmp_path / "run", algorithm={"name": "ditto"})
  built, found = experiment.build(plan(config)), arrays(tmp_path / "run")
  with_checkpoint = Checkpoints(tmp_path / "run" / "checkpoints")
  like = Engine(built.algorithm, built.data, config.cohort_size).init(jax.random.key(0))
  state, _ = with_checkpoint.restore(like)
  with_checkpoint.close()
  expected = by_name(state.broadcast.params) | model_file.named("clients", state.clients)
  assert found.keys() == expected.keys() and "clients/fc1/kernel" in found
  for name, own in expected.items():
    np.testing.assert_array_equal(found[name], own, err_msg=name)
  loaded = with_weights(built.model, tmp_path / "run" / model_file.MODEL).init(jax.random.key(5))
  jax.tree.map(np.testing.assert_array_equal, loaded, state.broadcast.params)


@pytest.mark.slow
def test_what_a_server_sends_without_a_model_of_its_own(tmp_path):
  """FedPer's body, beside the clients' heads; SCAFFOLD's control variates, beside its model."""
  run(tmp_path / "fedper", algorithm={"name": "fedper"})
  found = arrays(tmp_path / "fedper")
  assert {name.split("/")[0] for name in found} == {"broadcast", "clients"}
  assert "broadcast/params/fc1/kernel" in found
  run(tmp_path / "scaffold", algorithm={"name": "scaffold"})
  names = {name.rpartition("/fc1")[0] for name in arrays(tmp_path / "scaffold") if "fc1/kernel" in name}
  assert names == {"params", "broadcast/even", "clients"}


@pytest.mark.slow
def test_a_missing_one_is_written_from_the_checkpoint(tmp_path, capsys):
  run(tmp_path, algorithm={"name": "ditto"})
  before, lines = (tmp_path / model_file.MODEL).read_bytes(), (tmp_path / "starts.jsonl").read_bytes()
  (tmp_path / model_file.MODEL).unlink()
  run(tmp_path, Where(devices=1), algorithm={"name": "ditto"})
  assert (tmp_path / model_file.MODEL).read_bytes() == before
  assert (tmp_path / "starts.jsonl").read_bytes() == lines
  (tmp_path / model_file.MODEL).unlink()
  (tmp_path / "checkpoints" / "2").rename(tmp_path / "elsewhere")
  capsys.readouterr()
  run(tmp_path, algorithm={"name": "ditto"})
  assert "cannot be written: its checkpoint of round 2 is not there" in " ".join(
    capsys.readouterr().out.split()
  )
  assert not (tmp_path / model_file.MODEL).exists()


@pytest.mark.slow
def test_clients_figures_and_the_partition_come_back_too(tmp_path, capsys):
  """Of a complete run, bit for bit, from its last checkpoint; where that is gone, it is said."""
  files = ["clients.npz", "partition.npz"]
  run(tmp_path, algorithm={"name": "ditto"})
  before = {name: dict(np.load(tmp_path / name)) for name in files}
  summary = (tmp_path / "summary.json").read_bytes()
  for name in files:
    (tmp_path / name).unlink()
  run(tmp_path, algorithm={"name": "ditto"})
  for name, expected in before.items():
    found = dict(np.load(tmp_path / name))
    assert found.keys() == expected.keys()
    for array, own in expected.items():
      np.testing.assert_array_equal(found[array], own, err_msg=array)
  assert (tmp_path / "summary.json").read_bytes() == summary
  (tmp_path / "clients.npz").unlink()
  (tmp_path / "checkpoints" / "2").rename(tmp_path / "elsewhere")
  capsys.readouterr()
  run(tmp_path, algorithm={"name": "ditto"})
  said = " ".join(capsys.readouterr().out.split())
  assert "clients.npz is missing" in said and "its checkpoint of round 2 is not there" in said


def test_states_that_are_too_large_are_left_out_with_a_warning(tmp_path, monkeypatch, caplog):
  monkeypatch.setattr(model_file, "LARGEST", 10)
  client = ClientUpdate(*[None] * 6, global_model=lambda broadcast: broadcast.params)
  state = State(None, None, Message({"w": np.arange(3.0)}), (), (), {"w": np.ones((5, 3))})
  model_file.write_model(tmp_path, federated(client), state)
  assert arrays(tmp_path).keys() == {"params/w"}
  assert "without the clients' states, which take 120 bytes; they are in the newest checkpoint" in caplog.text


@pytest.mark.slow
def test_each_member_of_a_sweep_has_its_own_and_a_missing_one_is_written(tmp_path):
  config, grid = small(rounds=2, algorithm={"name": "ditto"}), {"seed": [0, 1]}
  run_sweep(config, grid, str(tmp_path / "sweep"), Where(devices=2))
  members = [tmp_path / "sweep" / "members" / f"seed={seed}" for seed in (0, 1)]
  before = [(folder / model_file.MODEL).read_bytes() for folder in members]
  for seed, folder in enumerate(members):
    run(tmp_path / str(seed), algorithm={"name": "ditto"}, seed=seed)
    alone, own = arrays(tmp_path / str(seed)), arrays(folder)
    assert alone.keys() == own.keys()
    for name in alone:
      np.testing.assert_array_equal(alone[name], own[name], err_msg=name)
  (members[1] / model_file.MODEL).unlink()
  run_sweep(config, grid, str(tmp_path / "sweep"), Where(devices=1))
  assert [(folder / model_file.MODEL).read_bytes() for folder in members] == before


@pytest.mark.slow
@pytest.mark.parametrize(
  "name",
  with_every(["superfed_mm", "fedrep", "sosicfl_plus", "scaffold", "apfl"], "superfed_mm", "sosicfl_plus"),
)
def test_the_same_bytes_on_any_number_of_devices(tmp_path, name):
  for i, where in enumerate([Where(devices=1), Where(devices=2)]):
    run(tmp_path / str(i), where, algorithm={"name": name})
  one, two = arrays(tmp_path / "0"), arrays(tmp_path / "1")
  assert one.keys() == two.keys()
  for key in one:
    np.testing.assert_array_equal(one[key], two[key], err_msg=key)
