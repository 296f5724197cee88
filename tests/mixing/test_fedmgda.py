"""FedMGDA+ against CVXPY: its point of least norm, common descent, the step that the engine makes of both."""

import functools
import runpy
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mixing_feedback import SIZES, feedback, first, normalised, on_simplex
from small_parts import federation, linear, mlp, synthesis

from fedjax_het import mixing, server
from fedjax_het.clients.fedevg import fedevg
from fedjax_het.clients.sgd import fedavg
from fedjax_het.config.plan import plan
from fedjax_het.engine.averages import scaled
from fedjax_het.engine.engine import Engine
from fedjax_het.errors import NonFiniteLoss, SettingError
from fedjax_het.federated import federated
from fedjax_het.mixing.fedmgda import cosines
from fedjax_het.parts import Message

STATIC = normalised(SIZES)
ANGLES = {  # name -> the updates' directions [5, 6]
  "random": np.random.default_rng(0).normal(size=(5, 6)) + 0.5,
  "orthogonal": np.eye(5, 6),
  "against all": np.concatenate([np.eye(4, 6), -np.ones((1, 6))]) + 0.1 * np.eye(5, 6, 1),
  "nearly opposite": np.eye(1, 6) * np.array([[1, 1, 1, 1, -1]]).T
  + 0.1 * np.eye(1, 6, 5)
  + 0.05 * np.eye(5, 6, 1),
}
LENGTHS = {"equal": np.ones(5), "spread": np.array([1.0, 1e3, 1e-3, 1.0, 30.0])}


def unit(updates):
  return updates / np.linalg.norm(updates, axis=1, keepdims=True)


def least_norm(directions, epsilon=1.0):
  """λ of the definition, by CVXPY."""
  cp = pytest.importorskip("cvxpy")
  lam = cp.Variable(5)
  objective = cp.Minimize(cp.sum_squares(directions.T @ lam))
  bounds = [cp.sum(lam) == 1, lam >= 0, cp.abs(lam - STATIC) <= epsilon]
  cp.Problem(objective, bounds).solve(solver="CLARABEL", tol_gap_abs=1e-12, tol_gap_rel=1e-12)
  return lam.value


@functools.cache
def step_of(step):
  """(ε, updates [S, 6], sizes [S]) -> what the server moves by, [6], out of the engine's own pieces."""

  def move(epsilon, updates, sizes):
    part, base = mixing.fedmgda(epsilon, step), Message(jnp.zeros(6))
    given = feedback(sizes=sizes)._replace(uploads=lambda: Message(updates), broadcast=base)
    p, _ = part.update((), given)
    return jnp.tensordot(p, scaled(given.uploads(), base, part.scale(given)).params, 1, precision="highest")

  return jax.jit(move)


def moved(updates, epsilon=1.0, step="mean", sizes=SIZES):
  return np.float64(step_of(step)(jnp.float32(epsilon), jnp.float32(updates), jnp.float32(sizes)))


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.0, 0.02, 0.2, 1.0])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))])
def test_the_point_of_least_norm(epsilon, seed):
  updates = np.random.default_rng(seed).normal(size=(5, 6)) * np.array([[1, 10, 0.1, 1, 3]]).T + 0.3
  directions = unit(updates)
  lam = least_norm(directions, epsilon)
  found = np.asarray(first(mixing.fedmgda(epsilon), feedback(updates=updates)), np.float64)
  np.testing.assert_allclose(found, lam, atol=1e-4)
  assert np.sum((directions.T @ found) ** 2) <= np.sum((directions.T @ lam) ** 2) + 1e-6
  assert (np.abs(found - STATIC) <= epsilon + 1e-6).all()


@pytest.mark.slow
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("angles", ANGLES)
def test_the_step_descends_for_every_client(angles, lengths):
  """<step, d_i> >= 0 for ε = 1, with at least the margin of CVXPY's point; the step is that point, scaled."""
  directions = unit(ANGLES[angles])
  updates = directions * LENGTHS[lengths][:, None]
  point = directions.T @ least_norm(directions)
  margin = point @ point
  assert margin > 1e-4
  for step, length in (("unit", 1.0), ("mean", STATIC @ LENGTHS[lengths])):
    found = moved(updates, step=step)
    np.testing.assert_allclose(found, length * point, atol=1e-4 * length)
    assert (directions @ found >= length * (margin - 1e-4)).all()


def test_a_long_update_does_not_outweigh_a_short_one():
  """Two updates at 120 degrees of lengths 10 and 0.1: mixed by λ = ½, the second would be undone."""
  u = np.array([[1.0, 0, 0, 0, 0, 0], [-0.5, np.sqrt(0.75), 0, 0, 0, 0]])
  updates = u * [[10.0], [0.1]]
  assert 0.5 * updates.sum(0) @ updates[1] == pytest.approx(-0.245)
  found = moved(updates, sizes=np.ones(2))
  np.testing.assert_allclose(found, 5.05 * 0.5 * u.sum(0), atol=1e-5)
  np.testing.assert_allclose(u @ found, 5.05 / 4, rtol=1e-5)


@pytest.mark.parametrize("scale", [1e-25, 1e-3, 1e25])
def test_a_clients_scale_turns_nothing(scale):
  updates = ANGLES["random"]
  other = updates * np.array([[1, 1, scale, 1, 1]]).T
  for epsilon in (0.1, 1.0):
    np.testing.assert_allclose(moved(other, epsilon, "unit"), moved(updates, epsilon, "unit"), atol=2e-6)


def test_static_mixing_of_equal_lengths_is_fedavg():
  updates = 3.0 * unit(ANGLES["random"])
  np.testing.assert_allclose(moved(updates, 0.0), STATIC @ updates, rtol=1e-5)
  np.testing.assert_allclose(moved(updates, 0.0, "unit"), STATIC @ unit(updates), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["mean", "unit"])
def test_updates_that_are_zero(step):
  updates = np.eye(5, 6)
  updates[2] = 0.0
  given = feedback(updates=updates)
  gram = cosines(given.uploads().params, given.broadcast.params)
  np.testing.assert_allclose(gram, np.diag([1, 1, 0, 1, 1]), atol=1e-6)
  np.testing.assert_allclose(
    first(mixing.fedmgda(1.0), feedback(updates=updates)), [0, 0, 1, 0, 0], atol=1e-5
  )
  np.testing.assert_allclose(
    moved(updates, 0.0, step),
    (STATIC @ updates) * (1.0 if step == "unit" else 1.0 - STATIC[2]), atol=1e-6,
  )  # fmt: skip
  nothing = np.zeros((5, 6))
  np.testing.assert_allclose(first(mixing.fedmgda(0.3), feedback(updates=nothing)), STATIC, atol=1e-6)
  np.testing.assert_array_equal(moved(nothing, 0.3, step), 0.0)


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_an_update_that_is_no_number_is_not_hidden(bad):
  """λ stays on the simplex, the model does not pass for a sound one."""
  updates = np.array(ANGLES["random"])
  updates[1, 3] = bad
  np.testing.assert_allclose(first(mixing.fedmgda(0.5), feedback(updates=updates)), STATIC, atol=1e-6)
  assert not np.isfinite(moved(updates, 0.5)).any()


@pytest.mark.slow
def test_the_engine_scales_params_records_lambda_and_averages_extras():
  """A round by hand: the server's own step out of the clients' uploads."""
  seen = {}
  client = fedavg(linear(), lr=0.1, epochs=2, batch_size=4)

  def update(*args):
    upload, state, info = client.update(*args)
    return upload._replace(extra=jnp.float32(args[3].size) * jnp.ones(2)), state, info

  def init_broadcast(key):
    return client.init_broadcast(key)._replace(extra=jnp.zeros(2))

  part = mixing.fedmgda(1.0)

  def remember(state, feedback):
    jax.debug.callback(lambda uploads: seen.update(uploads=uploads), feedback.uploads().params)
    return part.update(state, feedback)

  data = federation((6, 3, 9, 4, 5))
  own = client._replace(init_broadcast=init_broadcast, update=update)
  engine = Engine(federated(own, part._replace(update=remember)), data, 5, devices=1)
  state = engine.init(jax.random.key(0))
  before = jax.tree.map(np.float64, state.broadcast.params)
  state, infos = engine.advance(state, 1)
  jax.effects_barrier()
  p, sizes = np.float64(infos.coefficients[0]), np.array([6, 3, 9, 4, 5])[infos.cohort[0]]
  on_simplex(p)
  flat = lambda tree, lead: np.concatenate(  # noqa: E731
    [np.float64(leaf).reshape(*lead, -1) for leaf in jax.tree.leaves(tree)], -1
  )
  d = flat(seen["uploads"], (5,)) - flat(before, ())
  length = normalised(sizes) @ np.linalg.norm(d, axis=1)
  step = flat(state.broadcast.params, ()) - flat(before, ())
  np.testing.assert_allclose(step, length * (p @ unit(d)), atol=2e-6)
  assert (unit(d) @ step >= -1e-6).all() and np.linalg.norm(step) > 1e-3
  np.testing.assert_allclose(state.broadcast.extra, np.full(2, p @ sizes), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("coefficient", "growth"), [(np.nan, 1.0), (np.inf, 1.0), (1.0, np.inf)])
def test_nothing_infinite_passes_for_a_result(coefficient, growth):
  """Though the losses are finite, and after the last round, when no other loss would tell."""
  static, client = mixing.static(), fedavg(linear(), lr=0.1)

  def update(*args):
    upload, state, info = client.update(*args)
    return jax.tree.map(lambda leaf: growth * leaf, upload), state, info

  def coefficients(state, feedback):
    p, state = static.update(state, feedback)
    return p.at[1].multiply(coefficient), state

  parts = federated(client._replace(update=update), static._replace(update=coefficients))
  engine = Engine(parts, federation((6, 3, 9, 4)), 4, devices=1)
  with pytest.raises(NonFiniteLoss, match="by round 1, though no training loss did: an upload, a mixing"):
    engine.advance(engine.init(jax.random.key(0)), 1)


def test_a_part_without_a_scale_sees_the_uploads_themselves(monkeypatch):
  """Bit for bit what it was: nothing is subtracted and added again."""
  monkeypatch.setattr("fedjax_het.engine.round.scaled", None)  # a call would fail
  engine = Engine(federated(fedavg(linear(), lr=0.1)), federation((6, 3, 9, 4)), 4, devices=1)
  engine.advance(engine.init(jax.random.key(0)), 1)


def test_uploads_that_are_no_models_are_refused():
  message = r"mixing = 'fedmgda': scales the clients' updates, and (fedevg|custom) uploads no model\. Use"
  evg = fedevg(mlp(), per_class=1)
  with pytest.raises(SettingError, match=message):
    federated(evg, mixing.fedmgda(), server.sgld(5))
  with pytest.raises(SettingError, match=message):
    federated(synthesis(linear()), mixing.observed(mixing.fedmgda()))
  federated(evg, mixing.static(), server.sgld(5))
  table = runpy.run_path(str(Path(__file__).parents[2] / "configs" / "table_4_2.py"))
  config = table["get_config"]("dataset=digits,algorithm=fedevg")
  plan(config)
  config.mixing.name = "fedmgda"
  with pytest.raises(SettingError, match=message):
    plan(config)


@pytest.mark.parametrize(
  ("settings", "named"),
  [
    (dict(epsilon=1.5), "epsilon = "),
    (dict(epsilon=-0.1), "epsilon = "),
    (dict(step="men"), "step = 'men'.*'mean'"),
  ],
)
def test_settings_are_checked(settings, named):
  with pytest.raises(SettingError, match=named):
    mixing.fedmgda(**settings)


def test_one_client_s_step_of_length_one_is_not_fedavg():
  assert mixing.fedmgda(step="unit").needs.check_cohort is None
