"""Attacks beside NumPy in float64, who attacks, what is refused, and runs under attack."""

import dataclasses
from types import SimpleNamespace

import chex
import jax
import jax.numpy as jnp
import liars
import numpy as np
import pytest
import scipy.stats
from cases import with_every
from small_parts import SIZES, federation, linear, mlp, scaffold
from wide_parts import addressed, prototypes

import fedjax_het as fh
from fedjax_het import attacks
from fedjax_het.engine.checks import remarks_of, too_many_attackers, warn
from fedjax_het.engine.dishonest import dishonest, forged
from fedjax_het.engine.divergence import check_finite, divergence
from fedjax_het.engine.engine import Engine
from fedjax_het.engine.round import RoundInfo, of_rounds, over_arrived
from fedjax_het.engine.run import evaluate
from fedjax_het.vectors import same_form

S, BAD = 11, np.arange(11) % 4 == 2
LOCAL = dict(lr=0.1, epochs=1, batch_size=4)


def alie(u, z):
  honest = u[~BAD]
  return honest.mean(0) - z * honest.std(0) + 0 * u


FORMULAS = {  # the attack, and what it makes of all updates [S, D]
  "sign_flip": (attacks.sign_flip(scale=3.0), lambda u: -3.0 * u),
  "alie": (attacks.alie(z=1.2), lambda u: alie(u, 1.2)),
  "ipm": (attacks.ipm(scale=0.7), lambda u: -0.7 * u[~BAD].mean(0) + 0 * u),
  "mimic": (attacks.mimic(), lambda u: u[0] + 0 * u),
}


def sent(attack, bad=BAD, of_model=True, present=None):
  """(honest uploads [S, D], what the cohort sends [S, D], broadcast [D])."""
  uploads, broadcast = liars.cohort(S, 0)
  there, key = jnp.ones(S, bool) if present is None else jnp.asarray(present), jax.random.key(0)
  found = jax.jit(lambda: forged(attack, key, uploads, jnp.asarray(bad), broadcast, there, of_model))()
  return liars.flat(uploads), liars.flat(found), liars.one(broadcast)


@pytest.mark.parametrize("name", FORMULAS)
def test_it_is_the_formula_and_honest_uploads_keep_their_bits(name):
  attack, formula = FORMULAS[name]
  honest, found, base = sent(attack)
  np.testing.assert_array_equal(found[~BAD], honest[~BAD])
  np.testing.assert_allclose(found[BAD], (base + formula(honest - base))[BAD], rtol=1e-5, atol=1e-5)
  signals, found, _ = sent(attack, of_model=False)  # which are no updates of what was received
  np.testing.assert_allclose(found[BAD], formula(signals)[BAD], rtol=1e-5, atol=1e-5)


def test_an_attack_sees_those_that_arrive():
  present = np.arange(S) % 3 != 0
  honest = present & ~BAD
  for name, formula in (
    ("alie", lambda u: u[honest].mean(0) - 1.2 * u[honest].std(0)),
    ("ipm", lambda u: -0.7 * u[honest].mean(0)),
    ("mimic", lambda u: u[np.flatnonzero(honest)[0]]),
  ):
    own, found, base = sent(FORMULAS[name][0], present=present)
    expected = np.broadcast_to(base + formula(own - base), own.shape)
    np.testing.assert_allclose(found[BAD], expected[BAD], rtol=1e-5, atol=1e-5)


def test_a_number_has_not_the_form_of_nothing():
  assert not same_form(jnp.float32(1.0), ()) and not same_form((), jnp.float32(1.0))
  assert not same_form({"w": jnp.zeros(2)}, {"w": jnp.zeros(3)}) and not same_form([1.0], (1.0,))
  assert same_form({"w": (jnp.zeros(2), 1.0)}, {"w": (np.ones(2), jnp.int32(3))})


def test_a_number_that_the_broadcast_has_not_is_its_own_update():
  """As FedAS sends one; its shape, (), is also the broadcast's empty field."""
  uploads, broadcast = liars.cohort(S, 0)
  numbers = jnp.arange(1.0, S + 1.0)
  sends = uploads._replace(extra=numbers), jnp.asarray(BAD), broadcast._replace(extra=())
  found = forged(attacks.sign_flip(scale=3.0), jax.random.key(0), *sends, jnp.ones(S, bool), True)
  np.testing.assert_array_equal(found.extra, np.where(BAD, -3.0 * numbers, numbers))


def test_noise_is_gaussian_and_of_each_its_own():
  _, found, base = sent(attacks.gaussian(std=5.0))
  noise = (found - base)[BAD]
  assert noise.std() == pytest.approx(5.0, rel=0.3) and len(np.unique(noise)) == noise.size


@pytest.mark.parametrize("size, bad", [(50, 12), (50, 24), (11, 3), (10, 2), (5, 4), (3, 3)])
def test_the_largest_z_that_hides(size, bad):
  """Baruch et al., algorithm 3: s = ⌊n/2 + 1⌋ - m supporters, z = max φ(z) < (n - m - s)/(n - m)."""
  supporters = size // 2 + 1 - bad
  share = np.clip((size - bad - supporters) / max(size - bad, 1), 0.5, 0.9999)
  everybody = np.arange(size + 3) < size  # three more are absent
  found = float(attacks.forged.hidden(jnp.asarray(np.arange(size + 3) < bad), jnp.asarray(everybody)))
  np.testing.assert_allclose(found, scipy.stats.norm.ppf(share), rtol=5e-5, atol=1e-6)
  assert 0 <= found <= 4


def test_a_cohort_without_honest_clients_is_finite():
  for attack in (attacks.alie(z=None), attacks.ipm(), attacks.mimic()):
    assert np.isfinite(sent(attack, np.ones(S, bool))[1]).all()


# Who attacks, and on which rows.


@pytest.mark.slow
@pytest.mark.parametrize("share, num", [(0.2, 10), (0.25, 10), (0.3, 12), (0.0, 7), (1.0, 7), (0.1, 1003)])
def test_a_share_of_all_clients_attacks(share, num):
  who = jax.jit(dishonest, static_argnums=2)
  found = np.asarray(who(jax.random.key(1), jnp.float32(share), num))
  assert found.sum() == round(share * num)
  np.testing.assert_array_equal(found, dishonest(jax.random.key(1), share, num))
  if 2 <= found.sum() <= num - 2:
    assert any((np.asarray(who(jax.random.key(s), share, num)) != found).any() for s in range(5))


def test_labels_are_flipped():
  _, y = attacks.label_flip().data(jnp.arange(4), None, jnp.array([0, 1, 2, 2]), 3)
  np.testing.assert_array_equal(y, [2, 1, 0, 0])


@pytest.mark.parametrize("rows", [0.0, 0.25, 0.5, 1.0])
def test_a_backdoor_is_in_a_share_of_the_rows(rows):
  x = jnp.zeros((20, 5, 4, 1))
  found, y = attacks.backdoor(target=2, rows=rows, size=2, value=0.9).data(
    jnp.arange(20), x, jnp.zeros(20, int), 3
  )
  there = np.asarray(y) == 2
  assert there.sum() == 20 * rows
  expected = np.zeros(x.shape)
  expected[there, 3:, 2:] = 0.9
  np.testing.assert_allclose(found, expected, rtol=1e-6)


def fedavg():
  return fh.fedavg(linear(), **LOCAL)


REFUSED = {
  "own sums": (lambda: fh.federated(prototypes(linear()), attack=attacks.ipm()), "forges params.*honestly"),
  "addressed": (
    lambda: fh.federated(fedavg(), server=addressed(6), attack=attacks.ipm()), "sends each client its own",
  ),
  "labels": (
    lambda: fh.federated(
      fedavg()._replace(task=fh.tasks.regression()), attack=attacks.label_flip()
    ), "changes classes",
  ),
  "not called": (lambda: fh.federated(fedavg(), attack=attacks.ipm), "is not an Attack.*Call the factory"),
  "share": (lambda: attacks.ipm(1.5), r"share = 1.5: out of range"),
  "trees": (
    lambda: attacks.backdoor().data(jnp.arange(3), {"ids": jnp.ones((3, 4, 4)), "mask": 1}, jnp.arange(3), 3),
    "attack = 'backdoor': examples of 2 arrays",
  ),
  "no image": (
    lambda: Engine(fh.federated(fedavg(), attack=attacks.backdoor()), federation(SIZES), 5).compile(),
    "does not fit examples",
  ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused(name):
  make, problem = REFUSED[name]
  with pytest.raises(fh.SettingError, match=problem):
    make()


def test_nobody_is_left_out():
  plain = fh.federated(fedavg())
  for attack in (attacks.ipm(0.0), attacks.label_flip(0.0)):
    assert fh.federated(plain.client, attack=attack).attack == plain.attack


def test_training_losses_are_of_the_honest_clients_that_arrive():
  rng = np.random.default_rng(0)
  loss, present, bad = rng.normal(size=(2, 5, 4)), rng.random((2, 5, 4)) < 0.6, rng.random((2, 5, 4)) < 0.4
  empty = dict(cohort=None, coefficients=None, losses=None, clients=None)
  for info, here in (
    (RoundInfo(**empty), np.ones_like(bad)), (RoundInfo(**empty, present=present), present),
    (RoundInfo(**empty, dishonest=bad), ~bad),
    (RoundInfo(**empty, present=present, dishonest=bad), present & ~bad),
  ):  # fmt: skip
    wanted = [
      [row[some].mean() if some.any() else np.nan for row, some in zip(*own)] for own in zip(loss, here)
    ]
    np.testing.assert_allclose(over_arrived(info, loss), wanted)
    both = {"present": info.present, "dishonest": info.dishonest}
    one = info._replace(**{name: own[0] for name, own in both.items() if isinstance(own, np.ndarray)})
    np.testing.assert_allclose(of_rounds(one, loss[0]), [mean for mean in wanted[0] if not np.isnan(mean)])
  found = over_arrived(RoundInfo(**empty, present=present, dishonest=bad), loss, dishonest=True)
  some = present[0, 0] & bad[0, 0]
  np.testing.assert_allclose(found[0, 0], loss[0, 0][some].mean() if some.any() else np.nan)


def test_more_attackers_than_a_rule_withstands_are_remarked():
  def said(share, aggregation=None, mixing=None, cohort_size=5):
    attack = attacks.label_flip(share)
    more = {} if aggregation is None else {"aggregation": aggregation}
    algorithm = fh.federated(fedavg(), mixing or fh.mixing.uniform(), attack=attack, **more)
    return [*too_many_attackers(algorithm, 20, cohort_size)]

  (text,) = said(0.6, fh.aggregation.median())
  assert text == (
    "attack.share = 0.6: of 5 uploads, 3 are dishonest on average, and the aggregation withstands 2 at most."
  )
  for rule, most in (
    (fh.aggregation.median(), 2), (fh.aggregation.geometric_median(), 2), (fh.aggregation.bulyan(), 0),
    (fh.aggregation.trimmed_mean(0.2), 1), (fh.aggregation.trimmed_mean(), 0),
  ):  # fmt: skip
    assert rule.needs.withstands(5) == most
    assert not said(most / 5, rule) and len(said(most / 5 + 0.05, rule)) == 1
  assert len(said(0.4, mixing=fh.mixing.krum(1), cohort_size=7)) == 1
  assert not said(0.6) and not said(0.6, fh.aggregation.centered_clipping())
  (all_of_them,) = said(1.0)
  assert "no client is honest" in all_of_them
  algorithm = fh.federated(fedavg(), attack=attacks.alie(share=0.6), aggregation=fh.aggregation.median())
  data = federation(SIZES)
  remarks = [*remarks_of(algorithm, data, 5)]
  assert any("the aggregation withstands 2 at most" in text for text in remarks)
  assert not any("withstands" in text for text in remarks_of(algorithm, data))
  even = algorithm._replace(mixing=fh.mixing.uniform())
  with pytest.warns(UserWarning, match="the aggregation withstands"):
    warn([even], [data], cohort_size=5)


def test_a_divergence_at_an_attacker_says_so():
  loss = np.array([[1.0, np.nan], [1.0, 1.0]])
  clients = SimpleNamespace(loss=loss)
  info = RoundInfo(np.array([[4, 6], [4, 6]]), None, None, clients, dishonest=np.array([[False, True]] * 2))
  found = divergence(4, info, True)
  assert str(found) == "The training loss became nan in round 5 at client 6, which is dishonest"
  assert found.fields == {"round": 5, "client": 6, "loss": "nan", "dishonest": True}
  with pytest.raises(fh.NonFiniteLoss, match=r"dishonest\. Use an aggregation that withstands the attack"):
    check_finite(found)
  honest = divergence(4, info._replace(dishonest=~info.dishonest), True)
  assert str(honest).endswith("client 6") and "dishonest" not in honest.fields
  with pytest.raises(fh.NonFiniteLoss, match="look at that client's data"):
    check_finite(divergence(4, info._replace(dishonest=()), True))


# Runs.


def ran(algorithm, lengths=(3,), devices=1, **where):
  engine = Engine(algorithm, federation(SIZES), 7, devices=devices, **where)
  state = engine.init(jax.random.key(5))
  for length in lengths:
    state, _ = engine.advance(state, length)
  return engine, state


def host(state):
  return jax.tree.map(np.asarray, state._replace(key=()))


ATTACKS = {
  "sign_flip": lambda: attacks.sign_flip(0.3, 0.5),
  "gaussian": lambda: attacks.gaussian(0.3),
  "alie": lambda: attacks.alie(0.3, None),
  "mimic": lambda: attacks.mimic(0.3),
  "label_flip": lambda: attacks.label_flip(0.3),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", with_every(ATTACKS, "alie", "mimic"))
def test_the_bits_are_the_same_on_any_number_of_devices_and_in_any_chunks(name):
  algorithm = fh.federated(
    scaffold(linear()), attack=ATTACKS[name](), uploads=[fh.uploads.quantize()],
    aggregation=fh.aggregation.median(),
  )  # fmt: skip
  one = host(ran(algorithm)[1])
  assert np.isfinite(liars.one(one.broadcast)).all()
  for devices, lengths in ((2, (1, 2)), (4, (3,))):
    chex.assert_trees_all_equal(one, host(ran(algorithm, lengths, devices)[1]))


@pytest.mark.slow
def test_flipped_labels_are_those_of_the_dishonest_clients_alone():
  """A run on data whose labels are flipped for them, beside the attack; with losses, and cut clients."""
  mixing = fh.mixing.qffl(1.0)
  engine, state = ran(
    fh.federated(fh.ditto(mlp(), **LOCAL), mixing, attack=attacks.label_flip(0.3)), devices=2
  )
  who, data = engine.dishonest(state), federation(SIZES)
  assert who.sum() == 4
  y = np.array(data.y)
  for i in np.flatnonzero(who):
    own = slice(int(data.train.start[i]), int(data.train.start[i] + data.train.size[i]))
    y[own] = 2 - y[own]
  flipped = dataclasses.replace(data, y=jnp.asarray(y))
  other = Engine(fh.federated(fh.ditto(mlp(), **LOCAL), mixing), flipped, 7, devices=1)
  found, _ = other.advance(other.init(jax.random.key(5)), 3)
  chex.assert_trees_all_close(host(state), host(found), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_metrics_are_means_over_honest_clients_and_the_others_are_apart():
  engine, state = ran(fh.federated(fedavg(), attack=attacks.ipm(0.3)))
  everybody, found, who = engine.evaluate(state), evaluate(engine, state), engine.dishonest(state)
  for name, values in everybody.global_.items():
    np.testing.assert_array_equal(found.test.global_[name], np.where(who, np.nan, values))
    np.testing.assert_array_equal(found.attackers.global_[name], np.where(who, values, np.nan))
  result = fh.run(
    fh.federated(fedavg(), attack=attacks.ipm(0.3)), federation(SIZES), rounds=3, cohort_size=7,
    key=jax.random.key(5), devices=1,
  )  # fmt: skip
  np.testing.assert_allclose(result.metrics["global"]["loss"]["mean"], everybody.global_["loss"][~who].mean())
  (last,) = result.history
  np.testing.assert_allclose(
    last["attackers"]["global"]["loss"]["mean"], everybody.global_["loss"][who].mean()
  )
  np.testing.assert_array_equal(result.dishonest, who)
  assert not result.left_out  # all honest clients have test examples
  infos, total = result.infos, 0.0
  for cohort, loss in zip(infos.cohort, infos.clients.loss):
    total += np.mean([own for i, own in zip(cohort, loss) if not who[i]]) / 3
  assert last["train_loss"] == pytest.approx(total, rel=1e-5)


@pytest.mark.slow
def test_share_and_scale_are_values_of_a_sweep_and_seeds_draw_their_attackers():
  data, shares = federation([8] * 6), [0.0, 0.4]
  make = lambda share: fh.federated(fedavg(), attack=attacks.sign_flip(share))  # noqa: E731
  swept = fh.sweep(make, {"share": shares}, [0, 1], data=data, rounds=2, cohort_size=5)
  for member, own in enumerate(swept.members):
    key = jax.random.key(own["seed"])
    alone = fh.run(make(own["share"]), data, rounds=2, cohort_size=5, key=key)
    mine = jax.tree.map(lambda leaf: leaf[member], swept.state.broadcast)
    chex.assert_trees_all_close(mine, alone.state.broadcast, rtol=1e-6, atol=1e-6)
    assert swept.metrics[member]["global"]["loss"]["mean"] == pytest.approx(
      alone.metrics["global"]["loss"]["mean"], rel=1e-5
    )
    if own["share"]:
      apart = alone.history[-1]["attackers"]["global"]["loss"]["mean"]
      assert swept.attackers[member]["global"]["loss"]["mean"] == pytest.approx(apart, rel=1e-5)
      assert swept.dishonest[member].sum() == 2 and swept.left_out[member] == alone.left_out
