"""Evaluations of a round's participants, or of a sample of the clients."""

import jax
import numpy as np
import pytest
from launching import records, small, start, stopped_at
from small_parts import SIZES, federation, mlp

import fedjax_het as fh
from fedjax_het.clients.sgd import fedavg
from fedjax_het.clients.superfed import superfed
from fedjax_het.engine.engine import Engine
from fedjax_het.engine.evaluate import chosen
from fedjax_het.errors import SettingError
from fedjax_het.experiment.recorded import timeless
from fedjax_het.experiment.sweep import run_sweep
from fedjax_het.federated import federated
from fedjax_het.output.progress import Progress
from fedjax_het.program.where import Where

COUNT = len(SIZES)


@pytest.fixture(scope="module")
def data():
  return federation(SIZES, tests=[2 + i for i in range(COUNT)])


def parts(lr=0.1):
  return federated(fedavg(mlp(), lr=lr, epochs=1, batch_size=4))


def lines(lr=0.1):
  return federated(superfed(mlp(), lr=lr, epochs=1, batch_size=4))


def same(found, whole, who):
  """Asserts that an evaluation has the bits of that of all clients for some, and NaN for the others."""
  for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(whole), strict=True):
    np.testing.assert_array_equal(one[who], other[who])
    assert np.isnan(one[~who]).all()


def test_some_clients_have_the_bits_that_they_have_among_all(data):
  engine, who = Engine(parts(), data, 5, devices=1), np.isin(np.arange(COUNT), [1, 4, 5])
  state, _ = engine.advance(engine.init(jax.random.key(0)), 1)
  same(engine.evaluate(state, clients=who), engine.evaluate(state), who)
  assert np.isnan(engine.evaluate(state, clients=np.zeros(COUNT, bool)).global_["loss"]).all()


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"devices": 4}, {"device_rows": 210}, {"device_states": 5},
                                     {"client_batch": 2}], ids=lambda own: next(iter(own)))  # fmt: skip
def test_devices_and_stores_change_no_bit(data, options):
  engine, who = Engine(lines(), data, 5, **options), np.arange(COUNT) % 3 == 0
  plain = Engine(lines(), data, 5, devices=1)
  state, _ = engine.advance(engine.init(jax.random.key(0)), 1)
  whole = plain.evaluate(plain.advance(plain.init(jax.random.key(0)), 1)[0])
  found = engine.evaluate(state, clients=who)
  if "client_batch" not in options:
    same(found, whole, who)
  np.testing.assert_allclose(found.global_["loss"][who], whole.global_["loss"][who], rtol=1e-5)


def test_a_program_evaluates_the_clients_of_all_runs_in_few_shapes():
  np.testing.assert_array_equal(chosen(np.array([False, True, True])), [1, 2])
  rows = np.array([[1, 1, 0, 0, 0, 0], [0, 1, 1, 0, 0, 0]], bool)
  np.testing.assert_array_equal(chosen(rows), [0, 1, 2, 2])
  np.testing.assert_array_equal(chosen(np.eye(6, dtype=bool)), np.arange(6))
  np.testing.assert_array_equal(chosen(np.zeros((2, 3), bool)), [0])
  for few in ([0, 1, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]):  # of a cohort of three: one program
    assert chosen(np.array(few, bool), 3).shape == (3,)
  assert chosen(np.array([1, 0], bool), 3).shape == (2,)


def settings(data, **more):
  return {"data": data, "rounds": 4, "cohort_size": 3, "eval_every": 1, "devices": 1, **more}


@pytest.fixture(scope="module")
def whole(data):
  return fh.run(parts(), key=jax.random.key(2), **settings(data))


@pytest.mark.parametrize("who", [4, pytest.param("participants", marks=pytest.mark.slow)])
def test_the_end_is_of_all_clients_and_the_run_is_the_same(data, whole, who):
  found = fh.run(parts(), key=jax.random.key(2), eval_clients=who, **settings(data))
  number = 3 if who == "participants" else 4
  assert [own.get("evaluated") for own in found.history] == [number] * 3 + [None]
  assert found.history[-1] == whole.history[-1] and found.metrics == whole.metrics
  assert found.history[0]["metrics"] != whole.history[0]["metrics"]
  np.testing.assert_array_equal(found.infos.cohort, whole.infos.cohort)


@pytest.mark.slow
@pytest.mark.parametrize("who", [4, "participants"])
def test_members_judge_the_clients_that_they_judge_alone(data, who):
  own = settings(data, eval_clients=who)
  together = fh.sweep(parts, {"lr": [0.05, 0.2]}, [1, 7], **own)
  for m, member in enumerate(together.members):
    engine = Engine(parts, data, 3, devices=1, settings={"lr": member["lr"]})
    state = engine.init(jax.random.key(member["seed"]))
    for t in range(1, 4):
      state, infos = engine.advance(state, 1)
      ids = infos.cohort[0] if who == "participants" else None
      values = {name: own[m] for name, own in together.history[t].global_.items()}
      there = ~np.isnan(values["loss"])
      assert there.sum() == (3 if who == "participants" else 4)
      if ids is not None:
        np.testing.assert_array_equal(np.flatnonzero(there), np.sort(ids))
      np.testing.assert_array_equal(values["loss"][there], engine.evaluate(state).global_["loss"][there])
    alone = fh.run(
      parts, key=jax.random.key(member["seed"]), settings={"lr": member["lr"]}, **own
    )  # fmt: skip
    assert alone.metrics == together.metrics[m]


@pytest.mark.slow
def test_a_sample_is_drawn_once_and_by_the_runs_key(data):
  histories = fh.sweep(parts, seeds=[1, 2], **settings(data, eval_clients=4)).history
  there = np.stack([~np.isnan(histories[t].global_["loss"]) for t in (1, 2, 3)])
  assert (there == there[0]).all() and (there[0, 0] != there[0, 1]).any()


@pytest.mark.slow
def test_participants_are_those_whose_uploads_arrived(data):
  made = federated(
    superfed(mlp(), lr=0.1, epochs=1, batch_size=4),
    participation=fh.participation.available(probability=1.0, dropout=0.5),
  )
  found = fh.run(made, key=jax.random.key(5), eval_clients="participants", **settings(data, rounds=6))
  arrived = found.infos.present.sum(1)[:-1]
  assert [own["evaluated"] for own in found.history[:-1]] == [*arrived] and len({*arrived}) > 1


def test_wrong_values_are_refused_and_those_without_effect_named(data):
  for value, text in (
    ("cohort", "names no group of clients"), (0, "at least 1"), (2.5, "whole number"),
    (COUNT + 1, f"there are {COUNT} clients"),
  ):  # fmt: skip
    with pytest.raises(SettingError, match=f"eval_clients.*{text}"):
      fh.run(parts(), key=jax.random.key(0), **settings(data, eval_clients=value))
  with pytest.warns(UserWarning, match="eval_clients = 2: has no effect, as only the end is evaluated"):
    fh.run(parts(), key=jax.random.key(0), **settings(data, rounds=1, eval_every=None, eval_clients=2))


def launched(**more):
  return small(algorithm={"name": "fedavg"}, model={"name": "logistic_regression"}, **more)


@pytest.mark.slow
def test_a_stopped_launched_run_has_the_same_lines_and_its_summary_says_how_many(tmp_path, monkeypatch):
  shown = []
  update = Progress.update
  monkeypatch.setattr(
    Progress, "update", lambda self, t, /, **own: shown.append(own) or update(self, t, **own)
  )
  summary = start(launched(eval_clients=6), str(tmp_path / "whole"))
  lines = records(tmp_path / "whole")
  assert [line.get("evaluated") for line in lines] == [6, 6, None]
  assert summary["evaluated"] == {"end": 20, "before": 6}
  assert [own["evaluated"] for own in shown if "evaluated" in own] == [6, 6]
  with stopped_at(monkeypatch, 3):
    start(launched(eval_clients=6), str(tmp_path / "stopped"), checkpoint_seconds=0.0)
  again = start(launched(eval_clients=6), str(tmp_path / "stopped"))
  assert timeless(again) == timeless(summary) and records(tmp_path / "stopped") == lines
  run_sweep(launched(eval_clients=6), {"local.lr": [0.05, 0.1]}, str(tmp_path / "sweep"), Where(devices=1))
  assert records(tmp_path / "sweep" / "members" / "local.lr=0.05") == lines


@pytest.mark.slow
def test_more_rounds_evaluate_as_a_longer_run_does(tmp_path):
  for rounds, name in ((6, "run"), (9, "run"), (9, "other")):
    summary = start(launched(eval_clients=6, rounds=rounds), str(tmp_path / name))
  assert records(tmp_path / "run") == records(tmp_path / "other")
  assert timeless(summary)["evaluated"] == {"end": 20, "before": 6}


@pytest.mark.slow
def test_early_stopping_goes_by_the_sample_and_ends_with_all_clients(tmp_path):
  config = launched(eval_clients=6, rounds=30, eval_every=1, valid_fraction=0.2, local__lr=1e-12,
                    stopping={"patience": 2})  # fmt: skip
  summary = start(config, str(tmp_path))
  assert summary["rounds"] == 3 and records(tmp_path)[-1]["evaluated"] == 6
  end = summary["metrics"]["global"]["top1"]["mean"]
  assert end != records(tmp_path)[-1]["metrics"]["global"]["top1"]["mean"]
  with np.load(tmp_path / "clients.npz") as file:
    assert not np.isnan(file["global/top1"]).any() and file["global/top1"].mean() == pytest.approx(end)
  with config.ignore_type(), pytest.raises(SettingError, match="each would be of other clients"):
    config.eval_clients = "participants"
    start(config, str(tmp_path / "other"))
