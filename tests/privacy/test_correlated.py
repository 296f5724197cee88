"""Correlated noise: the matrix's covariance, the sensitivity over all rounds that may be, and resume."""

import itertools

import chex
import dp_accounting
import jax
import jax.numpy as jnp
import liars
import numpy as np
import pytest
from small_parts import SIZES, federation, linear
from stops import ends

import fedjax_het as fh
from fedjax_het.aggregation import gaussian
from fedjax_het.parts import Message, Strategy
from fedjax_het.privacy.accounting import Rounds
from fedjax_het.privacy.correlated import factor, sensitivity

T, BLOCKS, Z, CLIP = 8, 4, 1.5, 0.5
KINDS = {"banded": 3, "blt": 2}
OF = fh.participation.cyclic(blocks=BLOCKS).sampled(len(SIZES), 3)


def part(kind, **settings):
  return gaussian(CLIP, Z, correlation=kind, bands=KINDS[kind], rounds=T, **settings)


def matrix(coefficients):
  """C, float64 [T, T], written out."""
  return sum(np.diag(np.full(T - i, own), -i) for i, own in enumerate(coefficients[:T]))


def test_the_worst_rounds_are_as_near_as_they_may_be():
  """‖C u‖ by trying all sets of rounds with the separation, for coefficients that fall."""
  rng = np.random.default_rng(0)
  for separation, rounds in itertools.product((1, 2, 3, 5), (1, 4, 8)):
    falling = np.sort(rng.random(rounds))[::-1]
    whole = sum(np.diag(np.full(rounds - i, own), -i) for i, own in enumerate(falling))
    sets = (np.array(u) for u in itertools.product((0.0, 1.0), repeat=rounds))
    allowed = [u for u in sets if (np.diff(np.flatnonzero(u)) >= separation).all()]
    most = max(np.linalg.norm(whole @ u) for u in allowed)
    assert sensitivity(falling, separation, rounds) == pytest.approx(most, rel=1e-12)


def test_one_band_is_fresh_noise_counted_with_the_separation():
  """C = I: ⌈T/s⌉ rounds at most, each of multiplier z/2."""
  ones = np.eye(1, T)[0]
  rounds = Rounds(OF, Z, strategy=Strategy("one", lambda t: sensitivity(ones, BLOCKS, t)))
  plain = Rounds(OF, Z)
  assert rounds.epsilon(T, 1e-2) == pytest.approx(plain.epsilon(2, 1e-2), rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_noise_has_the_covariance_of_the_inverse(kind):
  """Over rounds σ² C⁻¹ C⁻ᵀ, the same in every coordinate, and jax-privacy's own bound of the sensitivity."""
  from jax_privacy.matrix_factorization import toeplitz

  own = factor(kind, T, KINDS[kind], BLOCKS)
  assert own.coefficients[0] > 0 and (np.diff(own.coefficients) <= 1e-6).all()
  assert (own.coefficients[KINDS[kind] :] == 0).all() == (kind == "banded")
  bound = toeplitz.minsep_sensitivity_squared(jnp.asarray(own.coefficients, jnp.float32), BLOCKS, n=T)
  assert sensitivity(own.coefficients, BLOCKS, T) == pytest.approx(float(bound) ** 0.5, rel=1e-5)
  aggregation, draws, size = part(kind), 3000, 4
  broadcast = Message(jnp.zeros(size))
  nobody, uploads = jnp.zeros(2, bool), Message(jnp.zeros((2, size)))

  def run(key):
    def step(state, round):
      keys = jax.random.fold_in(key, round)
      found, state = aggregation.combine(keys, state, None, uploads, broadcast, nobody, OF)
      return state, found.params

    return jax.lax.scan(step, aggregation.init(broadcast), jnp.arange(T))[1]

  noise = np.asarray(jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), draws)), np.float64)
  noise *= OF.expected / (Z * CLIP)
  inverse = np.linalg.inv(matrix(own.coefficients))
  for coordinate in range(size):
    found = noise[:, :, coordinate].T @ noise[:, :, coordinate] / draws
    assert np.abs(found - inverse @ inverse.T).max() < 6 * (2 / draws) ** 0.5 * (inverse @ inverse.T).max()


@pytest.mark.parametrize("rounds", [1, 2])
def test_no_more_bands_than_rounds(rounds):
  """Four bands are as many as there are rounds."""
  wide, few = (gaussian(CLIP, Z, correlation="banded", bands=bands, rounds=rounds) for bands in (4, rounds))
  broadcast, uploads, nobody = Message(jnp.zeros(2)), Message(jnp.zeros((2, 2))), jnp.zeros(2, bool)
  left = []
  for own in (wide, few):
    state, found = own.init(broadcast), []
    for t in range(rounds):
      sent, state = own.combine(jax.random.key(t), state, None, uploads, broadcast, nobody, OF)
      found.append(sent.params)
    left.append((found, state))
  chex.assert_trees_all_equal(*left)
  assert wide.mechanism.strategy(OF).sensitivity(rounds) == few.mechanism.strategy(OF).sensitivity(rounds)
  with pytest.raises(fh.SettingError, match="after 3 of 4 rounds"):
    gaussian(correlation="banded", rounds=4).check_sampling(OF._replace(separation=3))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_may_stop_and_its_ledger_goes_by_the_matrix(kind):
  made = fh.federated(
    fh.fedavg(linear(), lr=0.1, batch_size=4), fh.mixing.uniform(), aggregation=part(kind, delta=1e-2),
    participation=fh.participation.cyclic(blocks=BLOCKS),
  )  # fmt: skip
  data = federation(SIZES)
  left = ends(made, data, 3, ((1, (T,)), (2, (3, T - 3))))
  chex.assert_trees_all_equal(*left)
  assert np.abs(liars.flat(left[0][1].past)).max() > 0
  ledger = fh.privacy.Ledger.of(made, data, 3)
  assert ledger is not None and ledger.told(T)["accountant"] == "Gaussian"
  by_hand = Z / (2 * sensitivity(factor(kind, T, KINDS[kind], BLOCKS).coefficients, BLOCKS, 5))
  assert ledger.epsilon(5) == pytest.approx(dp_accounting.get_epsilon_gaussian(by_hand, 1e-2), rel=1e-9)


def test_the_package_that_finds_the_matrix_is_named_if_it_is_missing(monkeypatch):
  monkeypatch.setitem(__import__("sys").modules, "jax_privacy.matrix_factorization.toeplitz", None)
  with pytest.raises(fh.SettingError, match=r"privacy = 'jax_privacy': .*fedjax_het\[privacy\]"):
    factor("banded", 5, 2, 4)
