"""Mixing parts against direct formulas, NumPy and CVXPY; the estimates of AAggFF-D over every cohort."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from feedback import LOSSES, SIZES, feedback, first, normalised, on_simplex
from parts import linear
from scipy import stats

from fedjax_het import mixing
from fedjax_het.clients.sgd import fedavg
from fedjax_het.engine.engine import Engine
from fedjax_het.errors import SettingError
from fedjax_het.federated import federated
from fedjax_het.mixing.aaggff import doubly_robust, estimate_bound, linearised_gradient
from fedjax_het.mixing.learners import decision_gradient
from fedjax_het.mixing.responses import CDFS
from fedjax_het.parts import Feedback, Message
from fedjax_het.yardsticks import regret

FACTORIES = {
  "static": mixing.static,
  "uniform": mixing.uniform,
  "qffl": mixing.qffl,
  "term": mixing.term,
  "propfair": mixing.propfair,
  "afl": mixing.afl,
  "fedmgda": mixing.fedmgda,
  "aaggff_s": mixing.aaggff_s,
  "aaggff_d": mixing.aaggff_d,
}
WITHOUT_LOSSES = {"static", "uniform", "fedmgda"}
EVERY_PART = pytest.mark.parametrize("name", sorted(FACTORIES))


# What every part owes.


@EVERY_PART
def test_always_on_the_simplex(name):
  part = FACTORIES[name]()
  update = jax.jit(lambda state, losses: part.update(state, feedback(losses)))
  odd = [0.1, np.inf, 0.2, 0.3, 0.4], [1e30, 0, 0, 0, 0], [0, np.nan, 0, 0, np.inf]
  for losses in (LOSSES, np.zeros(5), np.ones(5), np.full(5, np.nan), *odd):
    state = part.init(jnp.asarray(SIZES))
    for _ in range(4):
      p, state = update(state, jnp.asarray(losses, jnp.float32))
      on_simplex(p)
      assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))


@EVERY_PART
def test_losses_are_asked_for_once_or_never(name):
  called, part = [], FACTORIES[name]()
  jax.eval_shape(lambda state: part.update(state, feedback(called=called)), part.init(jnp.asarray(SIZES)))
  assert len(called) == (name not in WITHOUT_LOSSES)


@EVERY_PART
def test_a_cohort_of_one(name):
  num = 1 if name == "aaggff_s" else 5
  on_simplex(first(FACTORIES[name](), feedback([0.4], [7], [0]), num))


@EVERY_PART
def test_order_of_the_cohort_is_irrelevant(name):
  order = np.array([3, 0, 4, 2, 1])
  part, updates = FACTORIES[name](), np.random.default_rng(1).normal(size=(5, 6))
  shuffled = feedback(LOSSES[order], SIZES[order], order, updates[order])
  np.testing.assert_allclose(
    first(part, shuffled), np.asarray(first(part, feedback(updates=updates)))[order], atol=1e-6
  )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedmgda", "aaggff_s", "aaggff_d"])
def test_runs_in_the_engine(name, ragged):
  part = FACTORIES[name]()
  client = fedavg(linear(), lr=0.1, epochs=1, batch_size=8)
  cohort_size = ragged.num_clients if name == "aaggff_s" else 5
  engine = Engine(federated(client, part), ragged, cohort_size)
  _, infos = engine.advance(engine.init(jax.random.key(0)), 3)
  for p in infos.coefficients:
    on_simplex(p)
  assert np.isfinite(infos.losses).all() == (name not in WITHOUT_LOSSES)


@pytest.mark.parametrize(
  ("factory", "values"),
  [
    (mixing.qffl, [0.0, 0.5, 2.0]),
    (mixing.term, [-1.0, 0.0, 3.0]),
    (mixing.propfair, [2.1, 3.0, 5.0]),
    (mixing.afl, [0.01, 0.1, 1.0]),
    (mixing.fedmgda, [0.0, 0.1, 1.0]),
    (lambda rate: mixing.aaggff_d("normal", rate), [0.1, 0.5, 1.0]),
  ],
)
def test_settings_may_be_mapped_over(factory, values):
  of = lambda value: first(factory(value))  # noqa: E731
  together = jax.jit(jax.vmap(of))(jnp.array(values))
  each = jnp.stack([*map(jax.jit(of), values[:-1]), of(values[-1])])
  np.testing.assert_allclose(together, each, atol=2e-6)


@pytest.mark.parametrize(
  ("make", "setting"),
  [
    (lambda: mixing.qffl(-1.0), "q = "),
    (lambda: mixing.term(math.nan), "lam = "),
    (lambda: mixing.term(math.inf), "lam = "),
    (lambda: mixing.propfair(0.1), "baseline = "),
    (lambda: mixing.propfair(margin=0.0), "margin = "),
    (lambda: mixing.afl(0.0), "mixing's lr = "),
    (lambda: mixing.fedmgda(1.5), "epsilon = "),
    (lambda: mixing.tilted(None, zeta=0.0), "zeta = "),
    (lambda: mixing.aaggff_s("gumble"), "Did you mean 'gumbel'"),
    (lambda: mixing.aaggff_d("gumble"), "Did you mean 'gumbel'"),
    (lambda: mixing.aaggff_d(sampling_probability=0.0), "sampling_probability = "),
    (lambda: mixing.aaggff_d(sampling_probability=1.1), "sampling_probability = "),
  ],
)
def test_settings_are_checked(make, setting):
  with pytest.raises(SettingError, match=setting):
    make()


# Remark 3.1: one frame.


@pytest.mark.parametrize(
  ("part", "weights"),
  [
    (mixing.tilted(None), SIZES),
    (mixing.tilted(lambda f: 0.0 * f), SIZES),
    (mixing.static(), SIZES),
    (mixing.qffl(0.0), SIZES),
    (mixing.qffl(2.5), SIZES * LOSSES**2.5),
    (mixing.term(0.0), SIZES),
    (mixing.term(1.7), SIZES * np.exp(1.7 * LOSSES)),
    (mixing.tilted(lambda f: f, zeta=1 / 1.7), SIZES * np.exp(1.7 * LOSSES)),
    (mixing.propfair(2.5), SIZES / (2.5 - LOSSES)),
    (mixing.propfair(2.0), SIZES / np.maximum(2.0 - LOSSES, 0.2)),
    (mixing.propfair(1.0, margin=0.05), SIZES / np.maximum(1.0 - LOSSES, 0.05)),
  ],
)
def test_fair_mixings_are_tilted_static_mixing(part, weights):
  np.testing.assert_allclose(first(part), normalised(weights), rtol=3e-6)


def test_tilting_solves_its_problem():
  """max <p, r> - ζ KL(p ‖ n/n), against CVXPY."""
  cp = pytest.importorskip("cvxpy")
  p, static, zeta = cp.Variable(5), normalised(SIZES), 0.7
  objective = cp.Maximize(LOSSES @ p - zeta * cp.sum(cp.kl_div(p, static)))
  cp.Problem(objective, [cp.sum(p) == 1]).solve(solver="CLARABEL")
  np.testing.assert_allclose(first(mixing.tilted(lambda f: f, zeta)), p.value, atol=1e-5)


def test_guards_of_the_tilted_parts():
  static = normalised(SIZES)
  np.testing.assert_allclose(first(mixing.qffl(3.0), feedback(np.zeros(5))), static, rtol=1e-5)
  np.testing.assert_allclose(first(mixing.propfair(2.0), feedback(np.full(5, 9.0))), static, rtol=1e-5)
  np.testing.assert_array_equal(first(mixing.term(1e4)), [0, 1, 0, 0, 0])
  np.testing.assert_allclose(
    first(mixing.qffl(1.0), feedback([0.5, np.inf, 0.1, 1.3, np.nan])),
    normalised(SIZES * [0.5, 1.3, 0.1, 1.3, 1.3]), rtol=1e-5,
  )  # fmt: skip


# AFL.


def nearest_on_simplex(v):
  cp = pytest.importorskip("cvxpy")
  p = cp.Variable(len(v))
  cp.Problem(cp.Minimize(cp.sum_squares(p - v)), [cp.sum(p) == 1, p >= 0]).solve(solver="CLARABEL")
  return p.value


def test_afl_ascends_and_projects():
  part, rng = mixing.afl(0.3), np.random.default_rng(0)
  update = jax.jit(lambda state, losses: part.update(state, feedback(losses)))
  state, expected = part.init(jnp.asarray(SIZES)), np.full(5, 0.2)
  for _ in range(5):
    losses = rng.gamma(1.0, size=5)
    expected = nearest_on_simplex(expected + 0.3 * losses)
    p, state = update(state, losses)
    np.testing.assert_allclose(p, expected, atol=1e-5)
    np.testing.assert_allclose(state, expected, atol=1e-5)


def test_afl_with_some_clients_leaves_the_others():
  part = mixing.afl(0.05)
  before = jnp.asarray([0.1, 0.2, 0.3, 0.15, 0.25])
  cohort = np.array([4, 1])
  given = feedback([1.0, 3.0], SIZES[cohort], cohort)
  p, after = part.update(before, given)
  expected = nearest_on_simplex(np.array([0.25, 0.2]) / 0.45 + 0.05 * np.array([1.0, 3.0]))
  np.testing.assert_allclose(p, expected, atol=1e-5)
  np.testing.assert_allclose(after[cohort], 0.45 * expected, atol=1e-5)
  np.testing.assert_array_equal(after[np.array([0, 2, 3])], before[np.array([0, 2, 3])])
  p, after = part.update(jnp.asarray([0.5, 0.0, 0.5, 0.0, 0.0]), given)
  on_simplex(p)
  np.testing.assert_array_equal(after, [0.5, 0.0, 0.5, 0.0, 0.0])


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


def every_cohort(clients, size):
  return [np.array(c) for c in itertools.combinations(range(clients), size)]


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
