"""What papers give as a share of the rounds stays that share in a shorter run; a mismatch is an error."""

import json

import jax
import numpy as np
import pytest
from launching import small
from small_parts import federation, mlp

import fedjax_het as fh
from configs import table_2_3, table_4_2
from fedjax_het.config import quickstart
from fedjax_het.config.plan import plan
from fedjax_het.config.shares import in_rounds, rounded_to_nothing
from fedjax_het.engine.engine import Engine
from fedjax_het.experiment.build import build
from fedjax_het.experiment.sweep import run_sweep
from fedjax_het.program.where import Where


def on_digits(algorithm: str, rounds: int):
  """A cell of table 2.3 on digits, with `rounds` changed as the command line changes it."""
  config = table_2_3.get_config(f"dataset=mnist,clients=50,algorithm={algorithm}")
  config.rounds = rounds
  config.dataset, config.model = "digits", {"name": "two_nn", "hidden": 8}
  config.local.epochs = 1
  return config


def each_round(config):
  """(clients' states before the first round and after each, losses of each, the final evaluation)."""
  built = build(plan(config))
  engine = Engine(built.algorithm, built.data, config.cohort_size, devices=1)
  state = engine.init(built.key)
  clients, losses = [jax.tree.map(np.array, state.clients)], []
  for _ in range(config.rounds):
    state, infos = engine.advance(state, 1)
    clients.append(jax.tree.map(np.array, state.clients))
    losses.append(infos.clients.loss)
  return clients, losses, engine.evaluate(state)


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "rounds", "first"), [("superfed_mm", 5, 3), ("superfed_lm", 10, 8)])
def test_local_models_move_in_their_share_of_a_shorter_run(algorithm, rounds, first):
  """L = 0.6 T and 0.8 T at K = 50. Before round L the numbers are FedProx's; from L on they are not."""
  clients, losses, ours = each_round(on_digits(algorithm, rounds))
  _, proximal, theirs = each_round(on_digits("fedprox", rounds))
  for t in range(rounds):
    moved = jax.tree.map(lambda a, b: bool((a != b).any()), clients[t], clients[t + 1])
    assert set(jax.tree.leaves(moved)) == {t >= first}, t
    assert np.allclose(losses[t], proximal[t], rtol=1e-5) == (t < first), t
  apart = np.abs(ours.personalized["loss"] - theirs.personalized["loss"])
  assert apart.mean(axis=0).min() > 1e-3  # at every λ


@pytest.mark.parametrize(
  ("start", "rounds", "first"),
  [
    (0.4, 500, 200),
    (0.4, 7, 2),
    (0.29, 100, 29),
    (0.57, 100, 57),
    (0.999, 10, 9),
    (0, 3, 0),
    (1 / 3, 60, 20),
  ],
)
def test_rounding(start, rounds, first):
  found = in_rounds({"name": "superfed_mm", "nu": 1.0, "start": start}, rounds)
  assert found == {"name": "superfed_mm", "nu": 1.0, "start_round": first}


def test_none_is_not_given():
  given = {"name": "superfed_mm", "start": None, "start_round": 3}
  assert in_rounds(given, 5) == {"name": "superfed_mm", "start_round": 3}


@pytest.mark.slow
def test_a_sweep_of_shares_is_one_program_of_single_runs(tmp_path):
  values = [0.0, 0.5]
  run_sweep(small(), {"algorithm.start": values}, str(tmp_path), Where(devices=1))
  losses = []
  for value in values:
    folder = tmp_path / "members" / f"algorithm.start={value}"
    assert json.loads((folder / "config.json").read_text())["algorithm"]["start"] == value
    losses.append(json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])["train_loss"])
    built = build(plan(small(algorithm__start=value)))
    single = fh.run(
      built.algorithm, built.data, rounds=7, cohort_size=5, key=built.key, eval_every=3, devices=1
    )
    assert single.history[-1]["train_loss"] == pytest.approx(losses[-1], rel=1e-3)
  assert abs(losses[0] - losses[1]) > 0.01
  assert (tmp_path / "figures" / "sweep.png").stat().st_size > 10_000
  for row in json.loads((tmp_path / "sweep.json").read_text()):
    own = row["metrics"]["personalized"]
    assert own["top1"]["std"] > 0 and own["loss"]["std"] > 0


@pytest.mark.parametrize(("rounds", "cell", "tenth"), [(500, 25, 50), (60, 3, 6), (7, 1, 1)])
def test_evaluations_follow_the_rounds(rounds, cell, tenth):
  configs = table_4_2.get_config(), table_2_3.get_config(), quickstart.get_config()
  for config, every in zip(configs, (cell, tenth, tenth)):
    config.rounds = rounds
    assert config.eval_every == every and config.to_dict()["eval_every"] == every
    config.eval_every = 4
    assert config.eval_every == 4 and config.rounds == rounds


def test_the_library_refuses_a_start_after_the_end():
  run = dict(data=federation([4, 4]), rounds=3, cohort_size=2)

  def make(start_round):
    return fh.federated(fh.superfed(mlp(), start_round=start_round))

  with pytest.raises(fh.SettingError, match=r"^start_round = 3: .*rounds = 3.*Use 0 to 2"):
    fh.run(make(3), key=jax.random.key(0), **run)
  with pytest.raises(fh.SettingError, match=r"^start_round = 4: .*rounds = 3"):
    fh.sweep(make, {"start_round": [1, 4]}, **run)


@pytest.mark.parametrize("rounds", [4, 6])
def test_the_library_refuses_a_step_size_over_other_rounds(rounds):
  algorithm = fh.federated(fh.fedevg(mlp()), server=fh.server.sgld(rounds=5))
  with pytest.raises(
    fh.SettingError, match=rf"^server's rounds = 5: .*rounds = {rounds}\. Use sgld\(rounds="
  ):
    fh.run(algorithm, federation([4, 4]), rounds=rounds, cohort_size=2, key=jax.random.key(0))


def test_a_share_that_is_none_of_the_rounds_is_said_but_not_one_of_nothing():
  said = lambda start, rounds: rounded_to_nothing({"name": "sosicfl", "start": start}, rounds)  # noqa: E731
  assert said(0.3, 3) == ["algorithm.start = 0.3 is none of 3 rounds: the run is as with 0."]
  assert said(0.3, 4) == said(0.0, 3) == said(None, 3) == said(1.0, 3) == []
  assert rounded_to_nothing({"name": "fedavg"}, 3) == []
