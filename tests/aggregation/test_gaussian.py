"""The Gaussian mechanism beside NumPy: clips, divisors, noise, the adaptive bound; runs in the engine."""

import math

import chex
import jax
import jax.numpy as jnp
import liars
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_parts import SIZES, federation, linear
from stops import ends

import fedjax_het as fh
from fedjax_het.aggregation import gaussian
from fedjax_het.engine.engine import Engine
from fedjax_het.parts import Message, Sampling

S, K = 5, len(SIZES)
WHOLE = Sampling("uniform", "fixed", K, S, float(S), all_arrive=True)
RUN = dict(rounds=3, cohort_size=S, key=jax.random.key(3), devices=1)


def cohort(count=S, seed=0):
  """(uploads of very different lengths, broadcast), without running statistics."""
  uploads, broadcast = liars.cohort(count, 2, seed)
  return uploads._replace(stats=()), broadcast._replace(stats=())


def combined(part, uploads, broadcast, present=None, key=0, state=None, sampling=WHOLE):
  present = jnp.ones(len(liars.flat(uploads)), bool) if present is None else jnp.asarray(present)
  state = part.init(broadcast) if state is None else state
  return part.combine(jax.random.key(key), state, None, uploads, broadcast, present, sampling)


def clipped(u, base, clip):
  away = u - base
  return away * np.minimum(1.0, clip / np.maximum(np.linalg.norm(away, axis=1), 1e-30))[:, None]


def fedavg(**local):
  return fh.fedavg(linear(), lr=0.1, batch_size=4, **local)


def trained(part=None, mixing=None, **more):
  return fh.federated(fedavg(), mixing or fh.mixing.uniform(), aggregation=part, **more)


def moved_to(state):
  return liars.one(state.broadcast)


@pytest.mark.parametrize("clip", [0.3, 5.0, math.inf])
def test_the_sum_of_clipped_updates_over_the_expected_number(clip):
  """Absent clients count nothing, and the divisor is the expected number, here of a third of 12 clients."""
  uploads, broadcast = cohort()
  base, present = liars.one(broadcast), np.array([1, 0, 1, 1, 0], bool)
  own = Sampling("poisson", "poisson", K, S, K / 3, probability=1 / 3, capacity=S)
  found, _ = combined(gaussian(clip, 0.0), uploads, broadcast, present, sampling=own)
  expected = base + clipped(liars.flat(uploads), base, clip)[present].sum(0) / (K / 3)
  np.testing.assert_allclose(liars.one(found), expected, rtol=1e-5, atol=1e-5)


def test_the_noise_has_the_deviation_of_the_multiplier_and_the_clip():
  """In every coordinate by itself, independent of the others and of who came: also where nobody does."""
  uploads, broadcast = cohort()
  part, draws = gaussian(0.5, 1.7), 4000
  without = liars.one(combined(gaussian(0.5, 0.0), uploads, broadcast)[0])

  def one(key, present):
    return combined(part, uploads, broadcast, present, key)[0]

  for present in (np.ones(S, bool), np.zeros(S, bool)):
    keys = jnp.arange(draws)
    found = jax.jit(jax.vmap(one, (0, None)))(keys, jnp.asarray(present))
    noise = liars.flat(found) - (without if present.any() else liars.one(broadcast))
    covariance = (noise.T @ noise / draws) / (1.7 * 0.5 / S) ** 2
    assert np.abs(noise.mean(0)).max() < 5 * 1.7 * 0.5 / S / draws**0.5
    assert np.abs(covariance - np.eye(len(covariance))).max() < 6 * (2 / draws) ** 0.5


@settings(max_examples=15, deadline=None)
@given(
  st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=1, max_size=6),
  st.floats(2**-7, 2**7, width=32),
)
def test_no_upload_moves_the_sum_by_more_than_the_clip(values, clip):
  row = np.array(values, np.float32)
  uploads = Message(jnp.asarray(row)[None], extra=jnp.asarray(row[:1])[None])
  broadcast = Message(jnp.full(len(row), 0.25), extra=jnp.full(1, -0.5))
  alone = WHOLE._replace(cohort_size=1, expected=1.0)
  found, _ = combined(gaussian(float(clip), 0.0), uploads, broadcast, sampling=alone)
  length = np.linalg.norm(liars.one(found) - liars.one(broadcast))
  assert length <= clip * (1 + 1e-4) + 1e-6


def test_the_bound_follows_the_quantile():
  """Ten rounds beside NumPy, without noise; and the noise of the count by its own deviation."""
  part, bound, u = gaussian(0.5, 0.0, quantile=0.7, rate=0.3), 0.5, None
  state = part.init(cohort()[1])
  for seed in range(10):
    uploads, broadcast = cohort(seed=seed)
    present = np.random.default_rng(seed).random(S) < 0.7
    base, u = liars.one(broadcast), liars.flat(uploads)
    inside = np.linalg.norm(u - base, axis=1) <= bound
    found, state = combined(part, uploads, broadcast, present, state=state)
    expected = base + clipped(u, base, bound)[present].sum(0) / S
    np.testing.assert_allclose(liars.one(found), expected, rtol=1e-4, atol=1e-4)
    bound *= math.exp(-0.3 * ((inside[present] - 0.5).sum() / S + 0.5 - 0.7))
    np.testing.assert_allclose(float(state.bound), bound, rtol=1e-4)
  assert u is not None


@pytest.mark.parametrize("count_noise, used", [(2.0, 2.0), (None, 1.5)])
def test_the_noise_of_an_adaptive_bound_is_shared(count_noise, used):
  """z_Δ = (z⁻² - (2σ_b)⁻²)^(-1/2) in the sum, σ_b in the count; by default the larger of E/20 and z."""
  uploads, broadcast = cohort()
  part, draws = gaussian(0.5, 1.5, quantile=0.5, count_noise=count_noise), 4000

  def one(key):
    found, after = combined(part, uploads, broadcast, np.zeros(S, bool), key)
    return found, after.bound

  found, bounds = jax.jit(jax.vmap(one))(jnp.arange(draws))
  noise = liars.flat(found) - liars.one(broadcast)
  z = (1.5**-2 - (2 * used) ** -2) ** -0.5
  np.testing.assert_allclose(noise.std(), z * 0.5 / S, rtol=0.02)
  shares = -np.log(np.asarray(bounds) / 0.5) / 0.2  # of nobody: b̄ - γ is noise alone
  np.testing.assert_allclose(shares.std(), used / S, rtol=0.05)
  assert abs(np.corrcoef(shares, noise[:, 0])[0, 1]) < 0.1


@pytest.mark.parametrize(
  "parts, share",
  [({}, 3 / K), (dict(participation=fh.participation.poisson(probability=0.4)), 0.4)],
)
def test_a_server_s_share_is_that_of_the_divisor(parts, share):
  """Neither clipped nor noised, and independent of who comes."""

  def update(key, state, broadcast, aggregate, share):
    return aggregate, state.at[jnp.isnan(state).argmax()].set(share)

  server = fh.ServerUpdate(lambda broadcast: jnp.full(3, jnp.nan), update, takes_share=True)
  algorithm = fh.federated(fedavg(), fh.mixing.uniform(), server, aggregation=gaussian(1.0, 1.0), **parts)
  engine = Engine(algorithm, federation(SIZES), 3)
  state, _ = engine.advance(engine.init(jax.random.key(0)), 3)
  np.testing.assert_allclose(state.server, share, rtol=1e-6)


def test_no_upload_depends_on_who_else_comes():
  """Clients are told the expected number, by which SCAFFOLD's S/K and others go, and not that of a round."""
  client = fedavg()

  def update(*given):
    upload, state, info = client.update(*given)
    return upload, state, info._replace(figures={"size": jnp.float32(given[-1].cohort_size)})

  algorithm = fh.federated(
    client._replace(update=update), fh.mixing.uniform(), aggregation=gaussian(1.0, 1.0),
    participation=fh.participation.poisson(probability=0.4),
  )  # fmt: skip
  engine = Engine(algorithm, federation(SIZES), 3)
  infos = engine.advance(engine.init(jax.random.key(0)), 3)[1]
  assert len({*infos.present.sum(1)}) > 1
  np.testing.assert_allclose(infos.clients.figures["size"][infos.present], 0.4 * K, rtol=1e-6)


def test_without_clip_and_noise_it_is_the_plain_run():
  """Left out, and so bit for bit, where a whole cohort comes."""
  off = gaussian(math.inf, 0.0)
  assert trained(off).aggregation.combine is None
  assert trained(off, participation=fh.participation.poisson()).aggregation.combine is not None
  assert trained(off).aggregation == fh.Aggregation()


@pytest.mark.slow
def test_in_a_sweep_it_is_the_plain_run_but_for_rounding():
  data = federation(SIZES)
  plain, found = (fh.run(trained(part), data, **RUN).state for part in (None, gaussian(math.inf, 0.0)))
  chex.assert_trees_all_equal(plain.broadcast, found.broadcast)
  given, run = {"clip": [math.inf, 0.1]}, dict(data=data, rounds=3, cohort_size=S, devices=1)
  keys = RUN["key"][None]
  swept = fh.sweep(lambda clip: trained(gaussian(clip, 0.0)), given, keys, **run).state.broadcast
  first, second = (jax.tree.map(lambda leaf, i=i: np.asarray(leaf)[i], swept) for i in (0, 1))
  np.testing.assert_allclose(liars.one(first), moved_to(plain), rtol=1e-6, atol=1e-6)
  one = fh.run(trained(gaussian(0.1, 0.0)), data, **RUN).state
  np.testing.assert_allclose(liars.one(second), moved_to(one), rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_an_empty_round_is_noise_alone():
  """The server moves, and so does the bound, where today's mean would leave the model where it is."""
  data = federation(SIZES)
  part = gaussian(1.0, 0.5, quantile=0.5)
  nobody = fh.participation.poisson(probability=1e-6)
  engine = Engine(trained(part, participation=nobody), data, S, devices=1)
  state = engine.init(jax.random.key(0))
  before, bound = moved_to(state), float(state.aggregation.bound)
  state, infos = engine.advance(state, 1)
  assert not infos.present.any() and float(infos.figures["clip"][0]) == float(state.aggregation.bound)
  away = moved_to(state) - before
  assert np.abs(away).min() > 0 and float(state.aggregation.bound) != bound


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fresh", "adaptive"])
def test_bits_depend_neither_on_devices_nor_on_a_stop(name):
  part = {"fresh": gaussian(1.0, 0.5), "adaptive": gaussian(1.0, 0.5, quantile=0.5)}[name]
  algorithm = trained(part, participation=fh.participation.poisson())
  left = ends(algorithm, federation(SIZES), S, ((1, (4,)), (2, (4,)), (2, (1, 3))))
  chex.assert_trees_all_equal(*left)


REFUSED = {
  "noise_multiplier = 1.0: given beside epsilon": dict(epsilon=3.0, noise_multiplier=1.0, rounds=3),
  "rounds = None: are not known, for which the noise is found. Write gaussian(rounds=T)": dict(epsilon=3.0),
  "clip = inf: no noise hides": dict(clip=math.inf),
  "clip = inf: never comes down": dict(clip=math.inf, noise_multiplier=0.0, quantile=0.5),
  "rate = 0.1: has no effect": dict(rate=0.1),
  "count_noise = 1.0: has no effect": dict(count_noise=1.0),
  "count_noise = 0.5: is not above half": dict(count_noise=0.5, quantile=0.5),
  "bands = 3: has no effect": dict(bands=3),
  "quantile = 0.5: a clip that moves": dict(quantile=0.5, correlation="banded", rounds=4),
  "correlation = 'ring'": dict(correlation="ring"),
  "clip = 0.0": dict(clip=0.0),
  "delta = 1.0": dict(delta=1.0),
}


@pytest.mark.parametrize("problem", REFUSED)
def test_settings_that_contradict_one_another_are_named(problem):
  with pytest.raises(fh.SettingError) as told:
    gaussian(**REFUSED[problem])
  assert f"aggregation's {problem}" in str(told.value)


def test_noise_on_the_count_takes_no_more_than_the_target_leaves():
  """σ_b <= z/2 of the z that is found for ε is refused; above it, the parts of z make up the whole."""
  sampling = WHOLE._replace(kind="any")
  with pytest.raises(fh.SettingError, match=r"aggregation's count_noise = 0.1: is not above half the noise"):
    gaussian(epsilon=1.0, quantile=0.5, count_noise=0.1, rounds=3).mechanism.multiplier(sampling)
  part = gaussian(epsilon=1.0, quantile=0.5, count_noise=50.0, rounds=3)
  assert part.mechanism.multiplier(sampling) == gaussian(epsilon=1.0, rounds=3).mechanism.multiplier(sampling)


def test_a_target_is_found_for_the_run_s_own_rounds():
  algorithm = trained(gaussian(epsilon=50.0, rounds=4))
  with pytest.raises(fh.SettingError, match=r"aggregation's rounds = 4: .* rounds = 3"):
    fh.run(algorithm, federation(SIZES), **RUN)
  with pytest.raises(fh.SettingError, match="aggregation's epsilon"):
    fh.sweep(
      lambda epsilon: trained(gaussian(epsilon=epsilon, rounds=3)), {"epsilon": [3.0, 9.0]},
      data=federation(SIZES), rounds=3, cohort_size=S,
    )  # fmt: skip
