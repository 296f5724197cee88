"""Private runs from the command line: ε on every line, on resume, and of each member of a sweep; an audit."""

import json
import math
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from changed_configs import with_values
from scipy.stats import beta
from small_parts import federation, linear

import fedjax_het as fh
from fedjax_het.aggregation import gaussian
from fedjax_het.conditions import AGGREGATIONS
from fedjax_het.config.grid import check_sweep
from fedjax_het.config.plan import plan
from fedjax_het.config.quickstart import get_config
from fedjax_het.experiment.build import build, notes_of
from fedjax_het.experiment.dry_run import dry_run
from fedjax_het.experiment.experiment import run_experiment
from fedjax_het.experiment.members import experiments_of, notes_of_members
from fedjax_het.experiment.sweep import run_sweep
from fedjax_het.methods import SERVERS
from fedjax_het.program.where import Where

ONE = Where(devices=1)
BASE = {
  "rounds": 4, "eval_every": 2, "cohort_size": 5, "model": {"name": "two_nn", "hidden": 8},
  "mixing": {"name": "uniform"},
}  # fmt: skip


def config(**aggregation):
  own = {"aggregation": {"name": "gaussian", **aggregation}}
  return with_values(get_config("algorithm=fedavg"), BASE | own)


def lines(folder):
  return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def of_uniform(z, rounds):
  return fh.privacy.epsilon(z, rounds=rounds, num_clients=20, cohort_size=5)


def test_a_run_says_before_it_trains_what_it_will_guarantee():
  """`--dry_run` shows the same notes; a run without privacy has none."""
  said = list(notes_of(build(plan(config(epsilon=20.0, delta=0.05)))))
  (told,) = [text for text in said if text.startswith("privacy of uploads")]
  epsilon = float(re.search(r"ε = ([\d.]+) at δ = 0.05 after 4 rounds \(RDP, replace-one\)", told)[1])
  assert 19.8 < epsilon <= 20.0
  assert any("not covered" in text and "is for simulation" in text for text in said)
  plain = with_values(get_config("algorithm=fedavg"), BASE)
  assert not [text for text in notes_of(build(plan(plain))) if "privacy" in text]


def test_a_sweep_says_before_it_trains_what_each_member_will_guarantee():
  """Each member its own ε, and not that of the configuration that they vary; common notes once."""
  members, plans = check_sweep(config(delta=0.05), grid := {"aggregation.epsilon": [5.0, 20.0]})
  said = notes_of_members(members, experiments_of(plans, grid))
  told = [text for text in said if "privacy of uploads" in text]
  assert [text.partition(":")[0] for text in told] == ["aggregation.epsilon=5.0", "aggregation.epsilon=20.0"]
  found = [float(re.search(r"ε = ([\d.]+) at", text)[1]) for text in told]
  assert 4.9 < found[0] <= 5.0 and 19.8 < found[1] <= 20.0
  assert sum("is for simulation" in text for text in said) == 1


@pytest.mark.slow
def test_a_dry_run_of_a_sweep_has_the_notes_of_its_members(capsys):
  dry_run(config(), ONE, {"seed": [0, 1], "aggregation.noise_multiplier": [2.0, 3.0]})
  shown = capsys.readouterr().out.replace("\n", "")
  for z in (2.0, 3.0):
    assert f"noise_multiplier={z}: privacy of uploads: ε = {of_uniform(z, 4):.4g} at" in shown
  assert shown.count("privacy of uploads") == 2


@pytest.mark.slow
def test_every_line_has_epsilon_and_a_continued_run_the_same(tmp_path, capsys):
  whole = tmp_path / "whole"
  summary = run_experiment(config(noise_multiplier=3.0), str(whole), ONE)
  assert re.search(r"ε [\d.]+", capsys.readouterr().out)
  found = [line["privacy"] for line in lines(whole)]
  assert [own["epsilon"] for own in found] == pytest.approx([of_uniform(3.0, t) for t in (2, 4)])
  assert {own["delta"] for own in found} == {20**-1.1}
  assert summary["privacy"] == {
    "of": "uploads", "epsilon": found[-1]["epsilon"], "delta": 20**-1.1, "accountant": "RDP",
    "neighbours": "replace-one", "noise_multiplier": 3.0,
  }  # fmt: skip
  longer = with_values(config(noise_multiplier=3.0), {"rounds": 6})
  more = run_experiment(longer, str(whole), ONE)
  assert more["privacy"]["epsilon"] == pytest.approx(of_uniform(3.0, 6))
  again = [line["privacy"] for line in lines(whole)]
  assert len(again) == 3 and again[:2] == found


def test_a_run_goes_by_its_number_of_rounds_only_where_noise_is_found_for_them():
  method = AGGREGATIONS["gaussian"]
  assert not method.goes_by_rounds({"noise_multiplier": 2.0, "correlation": "none"})
  assert method.goes_by_rounds({"epsilon": 2.0}) and method.goes_by_rounds({"correlation": "blt"})
  assert SERVERS["sgld"].goes_by_rounds({}) and not SERVERS["sgd"].goes_by_rounds({})


@pytest.mark.slow
def test_both_ledgers_stand_beside_one_another(tmp_path, capsys):
  both = with_values(config(noise_multiplier=3.0), {"local": {"dp_clip": 1.0, "dp_sampling": "shuffle"}})
  summary = run_experiment(both, str(tmp_path / "both"), ONE)
  assert (summary["privacy"]["of"], summary["privacy_of_records"]["of"]) == ("uploads", "records")
  shown = capsys.readouterr().out
  assert "privacy of uploads: ε" in shown and "privacy of a record: ε" in shown


@pytest.mark.slow
def test_no_run_needs_the_packages_unless_it_is_private():
  code = "import sys, fedjax_het as fh, fedjax_het.run; print([n for n in sys.modules if n in "
  code += "('dp_accounting', 'jax_privacy')])"
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
  assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_members_of_a_sweep_have_their_own(tmp_path, capsys):
  """A target may be swept, seeds beside it, as one program; a member is the run with its settings."""
  one_data = {"eval_every": 4, "partition": {"name": "iid", "seed": 3}}
  base, grid = with_values(config(), one_data), {"aggregation.epsilon": [5.0, 20.0], "seed": [0, 1]}
  rows = run_sweep(base, grid, str(tmp_path / "t"), ONE)
  found = [row["privacy"] for row in rows]
  for own, target in zip(found, (5.0, 20.0, 5.0, 20.0)):
    assert 0.99 * target < own["epsilon"] <= target
  assert found[0] == found[2] and found[0]["noise_multiplier"] > found[1]["noise_multiplier"]
  own = with_values(config(epsilon=20.0), {**one_data, "seed": 1})
  alone = run_experiment(own, str(tmp_path / "alone"), ONE)
  assert rows[3]["metrics"] == alone["metrics"] and rows[3]["privacy"] == alone["privacy"]
  table = json.loads((tmp_path / "t" / "sweep.json").read_text())
  assert [row["privacy"] for row in table] == found
  lines = re.findall(r"ε ([\d.]+)", capsys.readouterr().out)
  assert float(lines[0]) == pytest.approx(found[1]["epsilon"], rel=1e-3)  # progress: the largest


def canaries(length, seeds, **settings):
  """(the first parameter after three rounds of each seed, ε): client 0 sends `length`, the others nothing."""
  model, first = linear(), jax.random.key(0)
  task = fh.tasks.classification()

  def update(key, broadcast, state, data, context):
    step = jnp.where(context.client == 0, length, 0.0) * jnp.array([1.0, 0.0, 0.0])
    return fh.Message(broadcast.params + step), state, fh.Info(jnp.float32(0), jnp.int32(1))

  client = fh.ClientUpdate(
    lambda key: fh.Message(jnp.zeros(3)), lambda *_: (), update, lambda *_: jnp.float32(0),
    lambda broadcast, *_: model.init(first), model.logits, task=task, name="canary",
  )  # fmt: skip
  made = fh.federated(
    client, fh.mixing.uniform(), participation=fh.participation.poisson(),  # each with 2 of 4
    aggregation=gaussian(clip=1.0, **settings),
  )  # fmt: skip
  data = federation((1,) * 4)
  result = fh.sweep(lambda: made, seeds=range(seeds), data=data, rounds=3, cohort_size=2, devices=1)
  ledger = fh.privacy.Ledger.of(made, data, 2)
  assert ledger is not None
  return np.asarray(result.state.broadcast.params)[:, 0], ledger.epsilon(3)


@pytest.mark.slow
def test_an_auditor_measures_less_than_the_ledger():
  """Runs with a canary client and without it, told apart by the best threshold of one half of the seeds.

  The canary's update is longer than the clip, and the other clients send nothing, so that the auditor knows
  all but the noise and the canary's rounds. ε is at least log((TPR - δ) / FPR), here of the other half of the
  seeds and with bounds of the rates that hold with a probability of 0.998 (Clopper and Pearson, 1934).
  """
  delta, seeds = 1e-2, 1500
  there, epsilon = canaries(9.0, seeds, noise_multiplier=0.7, delta=delta)
  away, _ = canaries(0.0, seeds, noise_multiplier=0.7, delta=delta)
  half = seeds // 2

  def at_least(hits: int, alarms: int) -> float:
    low, high = beta.ppf(1e-3, hits, half - hits + 1), beta.ppf(1 - 1e-3, alarms + 1, half - alarms)
    return math.log(max(low - delta, 1e-9) / high)

  def told_apart(part: slice, limit: float) -> float:
    return at_least(*(int((own[part] > limit).sum()) for own in (there, away)))

  limit = max(np.quantile(there[:half], np.linspace(0.3, 0.98, 40)), key=lambda c: told_apart(slice(half), c))
  assert 0.5 < told_apart(slice(half, None), limit) < epsilon
