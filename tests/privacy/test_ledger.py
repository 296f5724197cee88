"""ε of the ledger beside dp-accounting called apart and closed forms, for every kind of participation."""

import math

import dp_accounting as dp
import jax
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from scipy.stats import norm
from small_parts import SIZES, federation, linear

import fedjax_het as fh
from fedjax_het.aggregation import gaussian
from fedjax_het.parts import Release, Strategy
from fedjax_het.privacy.accounting import Rounds, calibrated, default_delta, least_noise
from fedjax_het.privacy.ledger import Ledger, in_words

K, S, DELTA = len(SIZES), 5, 1e-2
PARTS = {
  "uniform": None,
  "uniform with dropouts": fh.participation.uniform(dropout=0.3),
  "available": fh.participation.available(probability=0.7),
  "available, spread": fh.participation.available(probability=0.7, spread=0.2),
  "cyclic": fh.participation.cyclic(blocks=3),
  "poisson": fh.participation.poisson(probability=0.25, capacity=6, dropout=0.2),
}
EXPECTED = {
  "uniform": 5.0, "uniform with dropouts": 3.5, "cyclic": 4.0,
  # E[min(5, A)] for A of 12 clients with 0.7 each
  "available": sum(min(5, a) * math.comb(12, a) * 0.7**a * 0.3 ** (12 - a) for a in range(13)),
  "poisson": 0.8 * sum(min(6, a) * math.comb(12, a) * 0.25**a * 0.75 ** (12 - a) for a in range(13)),
}  # fmt: skip


def delta_of(multiplier: float, epsilon: float) -> float:
  """δ of one Gaussian mechanism, in closed form (Balle and Wang, ICML 2018, theorem 8)."""
  half, over = 0.5 / multiplier, epsilon * multiplier
  return norm.cdf(half - over) - math.exp(epsilon) * norm.cdf(-half - over)


def ledger(name="uniform", client=None, **settings):
  part = gaussian(**{"noise_multiplier": 4.0, "delta": DELTA, **settings})
  client = client or fh.fedavg(linear())
  made = fh.federated(client, fh.mixing.uniform(), aggregation=part, participation=PARTS[name])
  found = Ledger.of(made, federation(SIZES), S)
  assert found is not None
  return found


@pytest.mark.parametrize("name", EXPECTED)
def test_the_expected_number_of_clients(name):
  found = (PARTS[name] or fh.Participation()).sampled(K, S).expected
  assert float(found) == pytest.approx(EXPECTED[name], rel=1e-5)


def test_poisson_cohorts_by_privacy_losses_with_the_capacity():
  """Equal to the event's own accountant; a smaller capacity makes a difference; dropouts make none."""
  found = ledger("poisson")
  assert found.told(3)["accountant"] == "PLD" and found.told(3)["neighbours"] == "add-or-remove-one"
  for rounds in (1, 7):
    accountant = PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(dp.TruncatedSubsampledGaussianDpEvent(K, 0.25, 6, 4.0), rounds)
    assert found.epsilon(rounds) == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-6)
  assert found.rounds is not None
  wider = found.rounds._replace(sampling=found.rounds.sampling._replace(capacity=K))
  assert wider.epsilon(7, DELTA) < found.epsilon(7)


@pytest.mark.parametrize("name", ["uniform", "uniform with dropouts"])
def test_fixed_cohorts_by_renyi_orders_at_twice_the_clip(name):
  found = ledger(name)
  accountant = RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
  accountant.compose(dp.SampledWithoutReplacementDpEvent(K, S, dp.GaussianDpEvent(2.0)), 9)
  assert found.epsilon(9) == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-9)
  assert found.told(9)["accountant"] == "RDP" and found.told(9)["neighbours"] == "replace-one"


def test_chance_never_protects_less_than_none():
  """Rényi orders of much noise have a least ε, below which the exact ε of all rounds counts."""
  of = dict(rounds=10, num_clients=100, cohort_size=10, delta=1e-9)
  found = fh.privacy.epsilon(1e4, **of)
  assert delta_of(1e4 / (2 * 10**0.5), found) == pytest.approx(1e-9, rel=1e-3) and found < 0.01


@pytest.mark.slow
def test_noise_for_a_small_target_of_fixed_cohorts():
  of = dict(rounds=10, num_clients=100, cohort_size=10, delta=1e-9)
  z = fh.privacy.noise_multiplier(0.01, **of)
  assert 0.00998 < fh.privacy.epsilon(z, **of) <= 0.01


def test_a_target_below_the_least_bound_is_refused():
  with pytest.raises(fh.SettingError, match=r"epsilon = 0.01: no noise is found for so small a target"):
    least_noise(lambda z: 0.02 + 1.0 / z, 0.01)


@pytest.mark.parametrize("name", ["available", "available, spread", "cyclic"])
def test_others_compose_all_rounds_at_twice_the_clip(name):
  """The closed form of one Gaussian of multiplier z / (2√T)."""
  found = ledger(name)
  assert delta_of(4.0 / (2 * 9**0.5), found.epsilon(9)) == pytest.approx(DELTA, rel=1e-4)
  assert found.told(9)["accountant"] == "Gaussian"


def test_clients_that_keep_a_state_are_not_hidden_by_chance():
  """They show by it when they took part, so that nothing is claimed of who is left out."""
  client = fh.ditto(linear())
  assert ledger("uniform", client).told(2)["accountant"] == "Gaussian"
  assert ledger("poisson", client).epsilon(9) == ledger("available").epsilon(9)
  assert ledger("poisson", client).exposed == "clients of ditto keep a state, which shows when they took part"
  assert ledger("available", client).exposed == ledger("poisson").exposed == ""
  everybody = Ledger.of(
    fh.federated(fh.fedavg(linear()), fh.mixing.uniform(), aggregation=gaussian()), federation(SIZES), K
  )
  assert everybody is not None and everybody.told(2)["accountant"] == "Gaussian"


def test_where_time_decides_who_arrives_no_chance_hides_a_client():
  """Asynchronous rounds of B uploads, and an over-selection; a deadline goes by each client's own time."""
  settings = dict(mixing=fh.mixing.uniform(), aggregation=gaussian(noise_multiplier=4.0, delta=DELTA))
  slow = fh.system.lognormal
  ways = {
    "buffer": dict(asynchronous=fh.asynchronous.fedbuff(buffer_size=2, concurrency=4), system=slow()),
    "over": dict(system=slow(over_selection=1.5)), "deadline": dict(system=slow(deadline=9.0)),
  }  # fmt: skip
  for way, more in ways.items():
    made = fh.federated(fh.fedavg(linear()), **settings, **more)
    found = Ledger.of(made, federation(SIZES), S)
    assert found is not None and found.rounds is not None
    assert found.told(2)["accountant"] == ("RDP" if way == "deadline" else "Gaussian")
    assert found.rounds.sampling.expected == (2.0 if way == "buffer" else 5.0)
    why = {"buffer": "asynchronous = fedbuff", "over": "over-selection of system = lognormal"}.get(way, "")
    assert why in found.exposed and (why == "") == (found.exposed == "")
    said = [text for text in found.notes(2) if "no amplification is counted" in text]
    assert len(said) == (way != "deadline") and (not said or found.exposed in said[0])


def test_a_large_delta_is_remarked():
  for delta, count in ((0.01, 0), (0.011, 1), (None, 1)):
    said = [text for text in ledger(delta=delta).notes(1) if "the bound may not hold at all" in text]
    assert len(said) == count and all(f"δ = {ledger(delta=delta).delta:.3g}" in text for text in said)


def test_more_clients_of_a_round_than_there_are_are_refused():
  for part in (None, fh.participation.poisson()):
    with pytest.raises(fh.SettingError, match=r"cohort_size = 20: there are 10 clients\. Use 1 to 10"):
      fh.privacy.noise_multiplier(8.0, rounds=1, num_clients=10, cohort_size=20, participation=part)


def test_no_noise_has_no_bound_and_no_round_has_none_to_pay():
  found = ledger(noise_multiplier=0.0)
  assert found.epsilon(1) == math.inf and found.epsilon(0) == 0.0
  assert "no bound of ε at δ = 0.01 after 1 rounds (RDP, replace-one)" in next(found.notes(1))
  assert "no bound of ε" in in_words({**found.told(1), "epsilon": None})
  assert Ledger.of(fh.federated(fh.fedavg(linear())), federation(SIZES), S) is None
  assert ledger(delta=None).delta == default_delta(K) == pytest.approx(K**-1.1)
  assert default_delta(1) == default_delta(2) == pytest.approx(2**-1.1)


slow = [pytest.param(name, marks=pytest.mark.slow) for name in ("uniform", "poisson")]


@pytest.mark.parametrize("name", ["cyclic", *slow])
def test_a_target_is_met_and_not_by_more_noise_than_it_needs(name):
  part = PARTS[name]
  given = dict(rounds=6, num_clients=K, cohort_size=S, participation=part, delta=DELTA)
  for target in (0.7, 5.0):
    z = fh.privacy.noise_multiplier(target, **given)
    assert target * 0.99 < fh.privacy.epsilon(z, **given) <= target * (1 + 1e-9)
    own = ledger(name, noise_multiplier=None, epsilon=target, rounds=6)
    assert own.epsilon(6) == pytest.approx(fh.privacy.epsilon(z, **given), rel=1e-6)


def test_correlated_noise_counts_by_the_worst_rounds():
  rounds = Rounds(PARTS["cyclic"].sampled(K, S), 4.0, strategy=Strategy("mine", lambda t: 1.0 + t))
  assert delta_of(4.0 / (2 * 4.0), rounds.epsilon(3, DELTA)) == pytest.approx(DELTA, rel=1e-4)
  z = calibrated(rounds, 2.0, 3, DELTA)
  assert rounds._replace(multiplier=z).epsilon(3, DELTA) == pytest.approx(2.0, rel=1e-6)


def test_fedevg_s_private_uploads_are_in_the_ledger():
  """z = signal_noise S / C at full participation, and a weight of up to 1 where clients may be absent."""
  client = fh.fedevg(
    linear(), per_class=2, energy="even", upload_norm=0.5, bounded=False, lam=0.0, chain_steps=0
  )
  server = fh.server.particles(3, signal_noise=0.8, pixels="free")
  told = []
  for part in (None, fh.participation.available(probability=0.5)):
    made = fh.federated(client, fh.mixing.uniform(), server, participation=part)
    found = Ledger.of(made, federation(SIZES), S)
    assert found is not None
    told.append(found.told(3))
  assert [own["noise_multiplier"] for own in told] == pytest.approx([0.8 * S / 0.5, 0.8 / 0.5])
  assert delta_of(0.8 * S / 0.5 / (2 * 3**0.5), told[0]["epsilon"]) == pytest.approx(K**-1.1, rel=1e-4)


def test_noised_label_counts_are_in_the_ledger():
  """SosicFL's ε of one example stands in the same section, and says that it is of label counts alone."""
  from fedjax_het.clients.regions import regions
  from fedjax_het.methods import CLIENTS

  counts = np.ones((K, 3), int)
  for epsilon in (None, 0.7):
    given = regions(counts, endpoints=2, clusters=2, epsilon=epsilon)
    part = CLIENTS["sosicfl"].make({"model": linear(), "regions": given}, endpoints=2, epsilon=epsilon)
    assert part.needs.releases[0][:2] == ("label counts", epsilon)
    found = Ledger.of(fh.federated(part), federation(SIZES), S)
    if epsilon is None:
      assert found is None
    else:
      told = found.told(4)
      assert (told["of"], told["epsilon"], told["delta"]) == ("label counts", 0.7, 0.0)
      assert "uploads have no noise" in list(found.notes(4))[1]
  assert Release("label counts").epsilon is None


def test_the_package_that_counts_is_named_if_it_is_missing(monkeypatch):
  monkeypatch.setitem(__import__("sys").modules, "dp_accounting", None)
  with pytest.raises(fh.SettingError, match=r"privacy = 'dp_accounting': .*fedjax_het\[privacy\]"):
    ledger()
  assert jax.tree.leaves(fh.federated(fh.fedavg(linear())).aggregation.init(None)) == []
