"""AAggFF-S against CVXPY, AAggFF-D against its formulas; its estimates over every cohort."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mixing_feedback import LOSSES, SIZES, feedback, first, normalised, on_simplex
from scipy import stats

from benchmarks.papers import regret
from fedjax_het import mixing
from fedjax_het.errors import SettingError
from fedjax_het.mixing.aaggff import doubly_robust, estimate_bound, linearised_gradient
from fedjax_het.mixing.learners import decision_gradient
from fedjax_het.mixing.responses import CDFS
from fedjax_het.parts import Feedback, Message

# AAggFF-S.


def test_aaggff_s_is_algorithm_3_1():
  """Against CVXPY over some rounds: losses -> r -> p_{t+1}, which mixes the same round."""
  cp = pytest.importorskip("cvxpy")
  clients, rng = 4, np.random.default_rng(3)
  part = mixing.aaggff_s("weibull")
  update = jax.jit(lambda state, losses: part.update(state, feedback(losses, np.ones(clients))))
  state = part.init(jnp.ones(clients, jnp.int32))
  current, past = np.full(clients, 0.25), []
  for _ in range(6):
    losses = rng.gamma(0.5, size=clients)
    p, state = update(state, losses)
    r = stats.weibull_min(2.0).cdf(losses / losses.mean()) / clients
    past.append((-r / (1 + current @ r), current))
    v = cp.Variable(clients)
    G, along = np.array([g for g, _ in past]), np.array([g @ q for g, q in past])
    surrogate = cp.sum(G @ v) + clients / 8 * cp.sum_squares(G @ v - along) + 2.0 * cp.sum_squares(v)
    cp.Problem(cp.Minimize(surrogate), [cp.sum(v) == 1, v >= 0]).solve(solver="CLARABEL")
    current = v.value
    np.testing.assert_allclose(p, current, atol=1e-4)


def test_aaggff_s_wants_all_clients():
  with pytest.raises(SettingError, match=r"cohort_size = 5: .* all 9 clients .* Use aaggff_d"):
    first(mixing.aaggff_s(), feedback(), 9)


# AAggFF-D.


def test_aaggff_d_is_algorithm_3_2():
  clients, size, rng = 9, 4, np.random.default_rng(0)
  rate = size / clients
  part = mixing.aaggff_d("logistic")
  update = jax.jit(lambda state, losses, cohort: part.update(state, feedback(losses, np.ones(size), cohort)))
  state = part.init(jnp.ones(clients, jnp.int32))
  p, total, bound = np.full(clients, 1 / clients), np.zeros(clients), 2 + rate
  for t in range(1, 30):
    cohort = rng.choice(clients, size, replace=False)
    losses = rng.gamma(1.0, size=size)
    r = rate * stats.logistic(1.0).cdf(losses / losses.mean())
    mean = r.mean()
    dr = np.full(clients, mean)
    dr[cohort] = (1 - 1 / rate) * mean + r / rate
    total += -dr / (1 + mean) + mean * (p @ (dr - mean)) / (1 + mean) ** 2
    p = normalised(np.exp(-np.sqrt(np.log(clients)) * total / (bound * np.sqrt(t + 1))))
    coefficients, state = update(state, losses, cohort)
    np.testing.assert_allclose(state.p, p, rtol=2e-5)
    np.testing.assert_allclose(coefficients, normalised(p[cohort]), rtol=2e-5)


def test_sampling_probability_is_the_cohorts_share_unless_given():
  given = feedback(LOSSES[:2], SIZES[:2], np.array([3, 1]))
  np.testing.assert_array_equal(
    first(mixing.aaggff_d(), given, 5), first(mixing.aaggff_d(sampling_probability=0.4), given, 5)
  )
  assert np.ptp(first(mixing.aaggff_d(sampling_probability=0.9), given, 5)) > 0


@pytest.mark.parametrize("rare", [0.4, 0.02])
def test_of_different_probabilities_the_least_so_far_bounds_all_gradients(rare):
  """L is one number: a rare client flattens no single round. Client 0 is rare, and drawn in round 3 alone."""
  clients, rate, rng = 6, 0.5, np.random.default_rng(0)
  part, chances = mixing.aaggff_d(), np.array([rare, *[0.4] * (clients - 1)])
  state, largest = part.init(jnp.ones(clients, jnp.int32)), 0.0
  for t in range(6):
    cohort = np.array([0, 2, 5]) if t == 3 else rng.choice(np.arange(1, clients), 3, replace=False)
    given = feedback(rng.gamma(1.0, size=3), np.ones(3), cohort)._replace(
      present=jnp.ones(3, bool), probability=jnp.asarray(chances[cohort], jnp.float32)
    )
    _, state = part.update(state, given)
    largest = max(largest, rate + 2 * rate / chances[cohort].min())
    exponents = -np.sqrt(np.log(clients)) * np.asarray(state.total, np.float64) / (largest * np.sqrt(t + 2))
    np.testing.assert_allclose(state.p, normalised(np.exp(exponents)), rtol=2e-5)
    assert float(state.bound) == pytest.approx(largest)


def every_cohort(clients, size):
  return [np.array(c) for c in itertools.combinations(range(clients), size)]


@pytest.mark.slow
@pytest.mark.parametrize("clients", [2, 3, 6])
def test_doubly_robust_response_over_every_cohort(clients):
  """Lemma 3.2 holds for an r̄ fixed before sampling; with the mean of the observed there is shrinkage."""
  responses = np.random.default_rng(clients).uniform(size=clients)
  mu = responses.mean()
  for size in range(1, clients + 1):
    rate, cohorts = size / clients, every_cohort(clients, size)

    def mean_of(imputed):
      estimates = [
        doubly_robust(jnp.asarray(responses[c], jnp.float32), jnp.asarray(c), clients, rate, imputed)
        for c in cohorts
      ]
      return np.mean(np.asarray(estimates, np.float64), axis=0)

    for imputed in (0.0, 0.3, mu, 1.0):
      np.testing.assert_allclose(mean_of(imputed), responses, atol=1e-6)
    shrink = clients * (size - 1) / (size * (clients - 1))
    np.testing.assert_allclose(mean_of(None), mu + shrink * (responses - mu), atol=1e-6)


@pytest.mark.parametrize("clients", [3, 6])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_linearised_gradient_over_every_cohort(clients, size):
  """Lemma 3.3, at a reference fixed before sampling."""
  rng = np.random.default_rng(size)
  responses, p, reference = rng.uniform(size=clients), rng.dirichlet(np.ones(clients)), 0.4
  p32 = jnp.asarray(p, jnp.float32)
  estimates = []
  for c in every_cohort(clients, size):
    observed = jnp.asarray(responses[c], jnp.float32)
    dr = doubly_robust(observed, jnp.asarray(c), clients, size / clients, reference)
    estimates.append(np.asarray(linearised_gradient(p32, dr, reference), np.float64))
  full = linearised_gradient(p32, jnp.asarray(responses, jnp.float32), reference)
  np.testing.assert_allclose(np.mean(estimates, axis=0), full, atol=2e-6)


@pytest.mark.parametrize(("clients", "size"), [(3, 2), (6, 3), (6, 6)])
def test_linearised_gradient_at_the_observed_mean_is_biased_beyond_the_shrinkage(clients, size):
  """1/(1 + r̄) and r̆ are correlated: over every cohort, against (1 + r_i) h_i - h."""
  rng = np.random.default_rng(clients)
  responses, p = rng.uniform(size=clients), rng.dirichlet(np.ones(clients))
  cohorts = every_cohort(clients, size)
  inverse = np.array([1.0 / (1.0 + responses[c].mean()) for c in cohorts])
  gradients, estimates = [], []
  for c in cohorts:
    observed = jnp.asarray(responses[c], jnp.float32)
    estimates.append(doubly_robust(observed, jnp.asarray(c), clients, size / clients))
    gradients.append(linearised_gradient(jnp.asarray(p, jnp.float32), estimates[-1], observed.mean()))
  between = lambda g: np.float64(g) - np.float64(g).mean()  # noqa: E731  # all that moves a mixture
  found = between(-np.mean(gradients, axis=0))
  of_client = np.array([inverse[[i in c for c in cohorts]].mean() for i in range(clients)])
  np.testing.assert_allclose(found, between((1.0 + responses) * of_client - inverse.mean()), atol=2e-6)
  shrunk = between(np.mean(estimates, axis=0) * inverse.mean())
  assert (np.abs(found - shrunk).max() > 1e-3) == (size < clients)
  if size < clients:  # and no other factor would do
    np.testing.assert_array_equal(np.argsort(of_client)[::-1], np.argsort(responses))
    factor = (found @ shrunk) / (shrunk @ shrunk)
    assert np.abs(found - factor * shrunk).max() > 2e-4


def test_linearised_gradient_is_a_first_order_expansion():
  p = jnp.asarray([0.2, 0.5, 0.3])
  around, direction = jnp.full(3, 0.4), jnp.asarray([0.3, -0.1, 0.2])
  value, slope = jax.jvp(lambda r: decision_gradient(p, r), (around,), (direction,))
  np.testing.assert_allclose(linearised_gradient(p, around + direction, 0.4), value + slope, rtol=1e-5)


@pytest.mark.parametrize(("low", "high"), [(0.0, 0.3), (0.1, 1.0)])
def test_estimates_stay_below_lemma_3_5(low, high):
  clients, rng = 6, np.random.default_rng(0)
  for size in (1, 2, 5, 6):
    bound = estimate_bound(low, high, size / clients)
    for _ in range(20):
      observed = jnp.asarray(low + (high - low) * rng.integers(0, 2, size), jnp.float32)
      p = jnp.asarray(rng.dirichlet(0.1 * np.ones(clients)), jnp.float32)
      dr = doubly_robust(observed, jnp.arange(size), clients, size / clients)
      assert jnp.abs(linearised_gradient(p, dr, observed.mean())).max() <= bound + 1e-6
  assert estimate_bound(0.0, 0.25, 0.25) == pytest.approx(2.25)
  assert estimate_bound(1.0, 3.0, 0.5) == pytest.approx(3 / 2 + 2 * 2 / (0.5 * 2))


@pytest.mark.slow
@pytest.mark.parametrize("size", [4, 20])
@pytest.mark.parametrize("adversarial", [False, True])
def test_regret_of_aaggff_d_on_what_it_estimates(size, adversarial):
  """Σ_t <p_t - p*, ğ_t> <= 2 L̆ √(T log K) for every p*; for S = K the regret of ℓ itself, too."""
  clients, rounds, rate = 20, 300, size / 20
  part = mixing.aaggff_d("gumbel")
  fixed = jnp.linspace(0.1, 3.0, clients)

  def body(state, key):
    cohort_key, loss_key = jax.random.split(key)
    cohort = jax.random.permutation(cohort_key, clients)[:size]
    hard = jnp.where(state.p[cohort] <= jnp.median(state.p[cohort]), 5.0, 0.01)
    losses = hard if adversarial else fixed[cohort] * jax.random.gamma(loss_key, 1.0, (size,))
    given = Feedback(cohort, jnp.ones(size), jnp.int32(0), lambda: losses, lambda: Message(()), Message(()))
    _, new = part.update(state, given)
    responses = jnp.zeros(clients).at[cohort].set(rate * CDFS["gumbel"](losses / losses.mean()))
    return new, (state.p, new.total - state.total, responses)

  keys = jax.random.split(jax.random.key(0), rounds)
  _, (played, gradients, responses) = jax.jit(
    lambda keys: jax.lax.scan(body, part.init(jnp.ones(clients, jnp.int32)), keys)
  )(keys)
  played, gradients = np.asarray(played, np.float64), np.asarray(gradients, np.float64)
  bound = regret.bound_cross_device(clients, rounds, 2.0 + rate)
  assert np.sum(played * gradients) - gradients.sum(axis=0).min() <= bound
  if size == clients:
    assert regret.regret(played, responses) <= bound


@pytest.mark.slow
def test_a_million_and_a_half_clients():
  """As many as the thesis names; memory is a few vectors of K numbers."""
  clients, size = 1_500_000, 1500
  part = mixing.aaggff_d("weibull")
  rng = np.random.default_rng(0)
  cohort = rng.choice(clients, size, replace=False)

  def step(state, losses):
    return part.update(
      state,
      Feedback(
        jnp.asarray(cohort), jnp.ones(size), jnp.int32(0), lambda: losses, lambda: Message(()), Message(())
      ),
    )

  state = part.init(jnp.ones(clients, jnp.int32))
  losses = jnp.asarray(rng.gamma(1.0, size=size), jnp.float32)
  compiled = jax.jit(step, donate_argnums=0).lower(state, losses).compile()
  memory = compiled.memory_analysis()
  assert memory.temp_size_in_bytes + memory.output_size_in_bytes <= 10 * 4 * clients
  for _ in range(3):
    coefficients, state = compiled(state, losses)
  on_simplex(coefficients)
  on_simplex(state.p)
  assert state.p.shape == (clients,) and stats.spearmanr(coefficients, losses).statistic > 0.999
