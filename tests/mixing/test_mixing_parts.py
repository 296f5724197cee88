"""Mixing parts against direct formulas, NumPy and CVXPY."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mixing_feedback import LOSSES, SIZES, feedback, first, normalised, on_simplex
from small_parts import linear

from fedjax_het import mixing
from fedjax_het.clients.sgd import fedavg
from fedjax_het.engine.engine import Engine
from fedjax_het.errors import SettingError
from fedjax_het.federated import federated
from fedjax_het.parts import Message

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
  "aaggff_s, universal": functools.partial(mixing.aaggff_s, "weibull", "spacing", "universal"),
  "aaggff_s, gradient": functools.partial(mixing.aaggff_s, "gumbel", "one", "gradient"),
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
  num = 1 if name.startswith("aaggff_s") else 5
  on_simplex(first(FACTORIES[name](), feedback([0.4], [7], [0]), num))


@EVERY_PART
def test_fair_mixing_of_one_client_alone_would_be_fedavg(name):
  check = FACTORIES[name]().needs.check_cohort
  if name in ("static", "uniform"):
    assert check is None
  else:
    num = 1 if name.startswith("aaggff_s") else 5  # which takes all clients
    check(2, 2)
    with pytest.raises(SettingError, match=r"cohort_size = 1: .* FedAvg"):
      check(1, num)


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
    (lambda lipschitz: mixing.qffl(1.0, lipschitz), [0.1, 1.0, 9.0]),
    (mixing.term, [-1.0, 0.0, 3.0]),
    (mixing.propfair, [2.1, 3.0, 5.0]),
    (mixing.afl, [0.01, 0.1, 1.0]),
    pytest.param(mixing.fedmgda, [0.0, 0.1, 1.0], marks=pytest.mark.slow),
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
    (lambda: mixing.qffl(1.0, 0.0), "lipschitz = "),
    (lambda: mixing.aaggff_s(learner="newtn"), "Did you mean 'newton'"),
    (lambda: mixing.aaggff_d(scale="spacings"), "Did you mean 'spacing'"),
    (lambda: mixing.term(math.nan), "lam = "),
    (lambda: mixing.term(math.inf), "lam = "),
    (lambda: mixing.qffl(math.inf), "q = inf"),
    (lambda: mixing.propfair(math.inf), "baseline = inf"),
    (lambda: mixing.propfair(margin=math.inf), "margin = inf"),
    (lambda: mixing.afl(math.inf), "mixing's lr = inf"),
    (lambda: mixing.tilted(None, zeta=math.inf), "zeta = inf"),
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


@pytest.mark.parametrize(("q", "lipschitz"), [(1.0, 20.0), (0.1, 2.0), (0.0, 5.0)])
def test_the_normaliser_of_qffl_makes_the_step_of_equation_3_18(q, lipschitz):
  """θ - Σ n F^q Δ / Σ n (q F^(q-1) ‖Δ‖² + L F^q) with Δ = L (θ - θ_i), in float64."""
  updates = np.random.default_rng(2).normal(size=(5, 6))  # θ_i - θ
  part, given = mixing.qffl(q, lipschitz), feedback(updates=updates)
  p, scale = first(part, given), part.scale(given)
  delta = -lipschitz * updates
  h = q * LOSSES ** (q - 1) * (delta**2).sum(1) + lipschitz * LOSSES**q
  step = -(SIZES * LOSSES**q) @ delta / (SIZES @ h)
  np.testing.assert_allclose((p * scale) @ updates, step, rtol=1e-5, atol=1e-7)
  assert mixing.qffl(q).scale is None
  np.testing.assert_array_equal(p, first(mixing.qffl(q), given))
  still = part.scale(feedback(np.zeros(5), updates=np.zeros((5, 6))))
  np.testing.assert_array_equal(still, np.ones(5))
  assert np.isfinite(part.scale(feedback(np.zeros(5), updates=updates))).all()


def test_the_normaliser_of_qffl_counts_those_that_arrive():
  """The upload of an absent client is zeros, whose difference from the broadcast is no update."""
  given, here = feedback(), np.array([0, 2, 3])
  sent, base, present = given.uploads().params, given.broadcast.params, np.isin(np.arange(5), here)
  zeros = jax.tree.map(lambda leaf: leaf.at[~present].set(0.0), sent)
  some = given._replace(uploads=lambda: Message(zeros), present=jnp.asarray(present))
  updates = np.concatenate([np.asarray(sent[k] - base[k]).reshape(5, -1) for k in ("w", "b")], 1)
  alone = feedback(LOSSES[here], SIZES[here], here, updates[here])
  part = mixing.qffl(1.0, 9.0)
  np.testing.assert_allclose(part.scale(some)[here], part.scale(alone), rtol=1e-5)


@pytest.mark.parametrize(
  ("part", "present", "bad"), [(mixing.krum(), (1, 1, 0), [0]), (mixing.multi_krum(), (1, 1, 1), [0, 2])]
)
def test_krum_takes_a_finite_upload_where_there_is_one(part, present, bad):
  """Of two uploads neither has a neighbour, and of three with two NaN all have infinite scores."""
  given = feedback(LOSSES[:3], SIZES[:3])
  sent = jax.tree.map(lambda leaf: leaf.at[jnp.array(bad)].set(jnp.nan), given.uploads())
  given = given._replace(uploads=lambda: sent, present=jnp.array(present, bool))
  np.testing.assert_array_equal(part.update((), given)[0], [0, 1, 0])


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
  np.testing.assert_allclose(p, nearest_on_simplex(0.5 + 0.05 * np.array([1.0, 3.0])), atol=1e-5)
  np.testing.assert_array_equal(after, [0.5, 0.0, 0.5, 0.0, 0.0])
