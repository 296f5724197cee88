"""The ledger of record-level privacy against dp-accounting, closed forms and published settings."""

import json
import math

import numpy as np
import pytest
from launching import small, start
from scipy import optimize, stats
from small_parts import linear

import fedjax_het as fh
from fedjax_het.config.plan import plan
from fedjax_het.errors import SettingError
from fedjax_het.experiment.build import build, notes_of
from fedjax_het.parts import Records
from fedjax_het.privacy import records as ledger

dp_accounting = pytest.importorskip("dp_accounting")
from dp_accounting.pld import PLDAccountant  # noqa: E402
from dp_accounting.rdp import RdpAccountant  # noqa: E402

SHUFFLED = Records(4.0, 10, None, lambda n: 2)


def drawn(multiplier, batch, capacity, epochs=1, gradients=1):
  return Records(multiplier, batch, capacity, lambda n: epochs * -(-n // batch), gradients)


def gaussian(deviation, delta):
  """ε of a Gaussian mechanism by its privacy profile (Balle and Wang, ICML 2018, theorem 8)."""
  mu = 1.0 / deviation

  def missed(e):
    return stats.norm.cdf(mu / 2 - e / mu) - math.exp(e) * stats.norm.cdf(-mu / 2 - e / mu) - delta

  return optimize.brentq(missed, 0.0, 300.0)


@pytest.mark.parametrize(
  ("capacity", "gradients"),
  [(34, 1), pytest.param(12, 1, marks=pytest.mark.slow), pytest.param(34, 2, marks=pytest.mark.slow)],
)
def test_drawn_batches_are_the_accountant_s_own_event(capacity, gradients):
  event = dp_accounting.dp_event.TruncatedSubsampledGaussianDpEvent(100, 0.1, capacity, 1.3 / gradients**0.5)
  apart = PLDAccountant(value_discretization_interval=1e-3).compose(event, 3 * 2 * 10).get_epsilon(1e-3)
  assert ledger.epsilon(drawn(1.3, 10, capacity, 2, gradients), 100, 3, 1e-3) == pytest.approx(
    apart, rel=1e-6
  )
  plain = dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(1.3 / gradients**0.5))
  without = PLDAccountant().compose(plain, 60).get_epsilon(1e-3)
  assert (apart / without == pytest.approx(1.0, rel=1e-3)) == (capacity == 34) and apart > without * 0.9999


def test_a_client_below_a_batch_and_none_that_came_and_no_noise():
  assert ledger.epsilon(drawn(2.0, 10, 34), 7, 5, 1e-3) == pytest.approx(
    gaussian(2.0 / 5**0.5, 1e-3), rel=1e-3
  )
  assert ledger.epsilon(drawn(2.0, 10, 34), 7, 0, 1e-3) == 0.0
  assert ledger.epsilon(drawn(0.0, 10, 34), 7, 1, 1e-3) == math.inf


@pytest.mark.parametrize(("rounds", "gradients"), [(1, 1), (25, 1), (25, 3)])
def test_shuffled_batches_are_one_sum_an_epoch_of_twice_the_clip(rounds, gradients):
  own = SHUFFLED._replace(gradients=gradients)
  expected = gaussian(4.0 / (2 * math.sqrt(2 * rounds * gradients)), 1e-4)
  assert ledger.epsilon(own, 55, rounds, 1e-4) == pytest.approx(expected, rel=1e-6)


# Published by the moments accountant: an upper bound, and what the same composition has by Rényi orders.
PUBLISHED = {
  "Abadi et al. 2016, section 4": (60_000, 600, 4.0, 10_000, 1e-5, 1.26),
  "TensorFlow Privacy's MNIST tutorial": (60_000, 256, 1.1, 60 * 60_000 // 256, 1e-5, 3.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_settings_are_bounds(name):
  n, batch, multiplier, steps, delta, published = PUBLISHED[name]
  own = Records(multiplier, batch, 4 * batch, lambda n: steps)
  found = ledger.epsilon(own, n, 1, delta)
  event = dp_accounting.PoissonSampledDpEvent(batch / n, dp_accounting.GaussianDpEvent(multiplier))
  by_orders = RdpAccountant().compose(event, steps).get_epsilon(delta)
  assert 0.7 * published < found < by_orders < 1.02 * published


def test_the_spread_over_clients():
  sizes, rounds = [50, 50, 9, 200, 30], [3, 1, 2, 0, 2]
  each = [ledger.epsilon(SHUFFLED, n, t, 1e-3) for n, t in zip(sizes, rounds) if t]
  assert ledger.spread(SHUFFLED, sizes, rounds, 1e-3) == (max(each), pytest.approx(np.median(each)))
  assert ledger.spread(SHUFFLED, sizes, [0] * 5, 1e-3) == (0.0, 0.0)
  many = np.arange(101) + 20
  found = ledger.spread(SHUFFLED, many, np.arange(101) + 1, 1e-3)  # more than are computed one by one
  assert found.largest == ledger.epsilon(SHUFFLED, 120, 101, 1e-3)
  assert found.median == ledger.epsilon(SHUFFLED, 70, 51, 1e-3)


@pytest.mark.parametrize("own", [SHUFFLED, pytest.param(drawn(9.0, 10, 34), marks=pytest.mark.slow)])
def test_the_noise_for_a_target(own):
  for target in (0.7, 5.0):
    z = fh.privacy.records.noise_multiplier(target, records=own, examples=55, rounds=3, delta=1e-3)
    found = ledger.epsilon(own._replace(noise_multiplier=z), 55, 3, 1e-3)
    assert 0.999 * target < found <= target
  with pytest.raises(SettingError, match=r"delta = 1\.0"):
    fh.privacy.records.noise_multiplier(2.0, records=own, examples=55, rounds=3, delta=1.0)


def test_a_run_says_before_it_trains_what_a_record_is_promised():
  """Of the client with the largest ε, in its mean number of rounds and in all; an empty client has none."""
  own, sizes = SHUFFLED._replace(releases=lambda n: n), [0, 30, 55, 9]
  (said,) = ledger.notes(own, sizes, 7, 0.25, 1e-3)
  usual, whole = (f"{ledger.epsilon(own, 55, count, 1e-3):.3g}" for count in (2, 7))
  assert f"ε = {usual} at δ = 0.001 if its client, of 55 examples, takes part in 2 of 7 rounds" in said
  assert f", and ε = {whole} in all (Gaussian, replace-one)." in said
  (said,) = ledger.notes(own._replace(noise_multiplier=0.0), sizes, 7, 1.0, 1e-3)
  assert "ε = ∞ at" in said and "in all" not in said
  assert not [*ledger.notes(own, [0, 0], 7, 0.25, 1e-3)]
  built = build(plan(configured(local__dp_sampling="shuffle", record_delta=1e-4)))
  (said,) = [text for text in notes_of(built) if text.startswith("privacy of a record")]
  each = ledger.epsilon(built.algorithm.client.studies.records, 99, 2, 1e-4)
  assert f"ε = {each:.3g} at δ = 0.0001 " in said and "2 of 7 rounds" in said


def test_delta_and_names():
  assert ledger.default_delta([3, 100, 7]) == pytest.approx(100**-1.1)
  assert (ledger.accountant(SHUFFLED), ledger.neighbours(SHUFFLED)) == ("Gaussian", "replace-one")
  one = drawn(1.0, 10, 34)
  assert (ledger.accountant(one), ledger.neighbours(one)) == ("PLD", "add-or-remove-one")
  part = fh.fedavg(linear(), dp_clip=1.0, dp_sampling="shuffle", epochs=3, batch_size=10)
  assert part.studies.records.releases(25) == 3 and part.studies.records.capacity is None


def configured(**changes):
  return small(algorithm={"name": "fedavg"}, local__dp_clip=0.5, local__dp_noise_multiplier=3.0, **changes)


@pytest.mark.slow
def test_rounds_of_each_client_are_counted_over_a_stop(tmp_path):
  """Seven rounds at once, and four that are continued; with uploads that are lost, which do not count."""
  lost = {"name": "uniform", "dropout": 0.3}
  settings = dict(participation=lost, local__dp_sampling="shuffle", cohort_size=4)
  whole = start(configured(**settings), str(tmp_path / "whole"))
  start(configured(**settings, rounds=3), str(tmp_path / "parts"))
  parts = start(configured(**settings), str(tmp_path / "parts"))
  assert whole["privacy"] == parts["privacy"]
  built = build(plan(configured(**settings)))
  engine = fh.Engine(built.algorithm, built.data, 4, devices=1)
  _, infos = engine.advance(engine.init(built.key), 7)
  cohort, there = np.asarray(infos.cohort)[:7], np.asarray(infos.present)[:7]
  counts = np.bincount(cohort[there], minlength=built.data.num_clients)
  assert (~there).sum() > 0
  delta = ledger.default_delta(np.asarray(built.data.train.size))
  own = Records(3.0, 10, None, lambda n: 1)
  assert whole["privacy"] == {
    "of": "records", "noise_multiplier": 3.0,
    "epsilon": pytest.approx(ledger.epsilon(own, 99, counts.max(), delta)),
    "epsilon_median": pytest.approx(
      np.median([ledger.epsilon(own, 99, t, delta) for t in counts if t])
    ),
    "delta": pytest.approx(delta), "accountant": "Gaussian", "neighbours": "replace-one",
  }  # fmt: skip
  lines = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
  so_far = [line["privacy"]["epsilon"] for line in lines]
  assert so_far == sorted(so_far) and so_far[-1] == whole["privacy"]["epsilon"]


@pytest.mark.slow
def test_members_of_a_sweep_have_their_own_ledger(tmp_path):
  from fedjax_het.experiment.sweep import run_sweep

  config = configured(rounds=2, record_delta=1e-4, eval_every=2)
  run_sweep(config, {"local.dp_noise_multiplier": [0.0, 1.0, 2.0]}, tmp_path)
  found = [
    json.loads(path.read_text())["privacy"] for path in sorted(tmp_path.glob("members/*/summary.json"))
  ]
  assert [own["delta"] for own in found] == [1e-4] * 3
  assert found[0]["epsilon"] is None and found[1]["epsilon"] > found[2]["epsilon"] > 0


def test_a_delta_without_effect_or_out_of_range_is_refused():
  with pytest.raises(SettingError, match=r"record_delta = 0\.1: no effect without record-level"):
    plan(small(record_delta=0.1))
  with pytest.raises(SettingError, match=r"record_delta = 1\.5"):
    plan(configured(record_delta=1.5))
