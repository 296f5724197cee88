"""SosicFL by hand, what it reduces to, and what a client and the server would use."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_parts import SIZES, float64, linear, linear_loss_and_gradient, mlp, one_client, walk

import fedjax_het as fh
from fedjax_het.clients.regions import Regions
from fedjax_het.clients.simplex import uniform_on_region, uniform_on_simplex
from fedjax_het.clients.sosicfl import mean_prediction
from fedjax_het.engine.engine import Engine
from fedjax_het.errors import SettingError

K, CLIENT, BATCH, LR = len(SIZES), 5, 4, 0.1
PLAIN = dict(lr=LR, momentum=0.0, weight_decay=0.0, batch_size=BATCH, epochs=2)


def owned(endpoints=3, radius=0.4, seed=0) -> Regions:
  """Each client's center is its own."""
  centers = np.random.default_rng(seed).dirichlet(np.ones(endpoints), K).astype(np.float32)
  return Regions(centers, radius, centers, np.arange(K))


def one_round(client, data, round=0):
  broadcast = client.init_broadcast(jax.random.key(0))
  state = client.init(jax.random.key(1), broadcast, None, fh.Context(CLIENT))
  context = fh.Context(CLIENT, round, 3, K)
  return (
    broadcast,
    state,
    jax.jit(client.update)(jax.random.key(7), broadcast, state, one_client(data, CLIENT), context),
  )


@pytest.mark.slow
@pytest.mark.parametrize(
  "start_round, points", [(0, None), pytest.param(1, None, marks=pytest.mark.slow), (0, 3), (1, 1)]
)
def test_eq_8_by_hand(ragged, start_round, points):
  """θ_m <- θ_m - α_m γ ∇F(w_α), α drawn from the step's key on the region, or on the simplex before t̃.

  With Ω_tr points a round from the keys 0 to Ω_tr - 1 of one of the walk's that no epoch has, in turn.
  """
  regions = owned()
  client = fh.sosicfl_all(linear(), regions, start_round=start_round, points=points, **PLAIN)
  broadcast, _, (upload, after, info) = one_round(client, ragged)
  endpoints, losses = float64(broadcast.params), []
  for s, (x, y, key) in enumerate(walk(jax.random.key(7), ragged, CLIENT, BATCH, 2)):
    key = (
      key
      if points is None
      else jax.random.fold_in(jax.random.fold_in(jax.random.key(7), 2**31 - 1), s % points)
    )
    center = jnp.asarray(regions.centers[CLIENT])
    alpha = uniform_on_simplex(key, 3) if start_round else uniform_on_region(key, center, regions.radius)
    alpha = np.asarray(alpha, np.float64)
    at = jax.tree.map(lambda leaf: np.tensordot(alpha, leaf, 1), endpoints)
    loss, gradient = linear_loss_and_gradient(at, x, y)
    endpoints = jax.tree.map(lambda leaf, g: leaf - LR * np.multiply.outer(alpha, g), endpoints, gradient)
    losses.append(loss)
  chex.assert_trees_all_close(float64(upload.params), endpoints, rtol=1e-5, atol=1e-6)
  assert info.loss == pytest.approx(np.mean(losses), rel=1e-5) and info.steps == len(losses)
  np.testing.assert_array_equal(after.center, regions.centers[CLIENT])


def test_an_endpoint_that_is_not_drawn_does_not_move(ragged):
  centers = np.tile(np.float32([[0.6, 0.4, 0.0]]), (K, 1))
  tiny = Regions(centers, 1e-7, centers, np.zeros(K, int))
  broadcast, _, (upload, *_) = one_round(fh.sosicfl_all(linear(), tiny, **PLAIN), ragged)
  for before, after in zip(jax.tree.leaves(broadcast.params), jax.tree.leaves(upload.params)):
    assert jnp.abs(after[:2] - before[:2]).min() > 1e-5
    np.testing.assert_allclose(after[2], before[2], atol=1e-7)


def test_endpoints_of_the_head_and_one_of_all_else(ragged):
  model, regions = mlp(), owned()
  client = fh.sosicfl(model, regions, **PLAIN)
  broadcast, state, _ = one_round(client, ragged)
  chex.assert_trees_all_equal(broadcast.params["fc1"], model.init(jax.random.key(0))["fc1"])
  head = broadcast.params["fc2"]["kernel"]
  assert head.shape == (3, 5, 3) and len({float(own[0, 0]) for own in head}) == 3
  np.testing.assert_array_equal(head[0], model.init(jax.random.key(0))["fc2"]["kernel"])
  other = fh.sosicfl(model, regions, head="fc1", **PLAIN).init_broadcast(jax.random.key(0)).params
  assert other["fc1"]["bias"].shape == (3, 5) and other["fc2"]["bias"].shape == (3,)
  with pytest.raises(SettingError, match="fc3"):
    fh.sosicfl(model, regions, head="fc3", **PLAIN).init_broadcast(jax.random.key(0))
  own = client.personalize(broadcast, state, None, fh.Context(CLIENT), 0.0)
  np.testing.assert_allclose(
    own["fc2"]["kernel"], np.tensordot(regions.centers[CLIENT], np.asarray(head), 1), rtol=1e-5
  )
  np.testing.assert_allclose(
    client.global_model(broadcast)["fc2"]["kernel"], np.mean(np.asarray(head), 0), rtol=1e-5, atol=1e-7
  )


@pytest.mark.slow
def test_before_a_late_start_nobody_knows_his_region(ragged):
  """All use the middle of the simplex, also by their losses, which a mixing may ask for."""
  client = fh.sosicfl(mlp(), owned(), start_round=2, **PLAIN)
  broadcast, state, _ = one_round(client, ragged)
  early, late = (client.personalize(broadcast, state, None, fh.Context(CLIENT, t), 0.0) for t in (1, 2))
  chex.assert_trees_all_close(early, client.global_model(broadcast), rtol=1e-6)
  center = owned().centers[CLIENT]
  wanted = np.tensordot(center, np.asarray(broadcast.params["fc2"]["kernel"]), 1)
  np.testing.assert_allclose(late["fc2"]["kernel"], wanted, rtol=1e-5)
  of = one_client(ragged, CLIENT)
  before, after = (client.loss(broadcast, state, of, fh.Context(CLIENT, t)) for t in (1, 2))
  assert abs(before - after) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("start_round", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_test_points_average_the_predicted_probabilities(ragged, start_round):
  """P = (1/Ω) Σ softmax(w_α x), α uniform on the region (before t̃ on the simplex), whatever the round is."""
  regions, x = owned(), np.random.default_rng(1).normal(size=(6, linear().shape[0]))
  client = fh.sosicfl_all(linear(), regions, test_points=4, start_round=start_round, **PLAIN)
  broadcast = client.init_broadcast(jax.random.key(0))
  state = client.init(jax.random.key(1), broadcast, None, fh.Context(CLIENT))
  own = client.personalize(broadcast, state, None, fh.Context(CLIENT, 1), 0.0)
  keys = jax.random.split(jax.random.fold_in(jax.random.key(0), CLIENT), 4)
  center = jnp.asarray(regions.centers[CLIENT])
  draw = uniform_on_simplex if start_round else lambda key, _: uniform_on_region(key, center, regions.radius)
  wanted = 0.0
  for alpha in np.float64([draw(key, 3) for key in keys]):
    at = jax.tree.map(lambda leaf, a=alpha: np.tensordot(a, leaf, 1), float64(broadcast.params))
    exp = np.exp(x @ at["fc"]["kernel"] + at["fc"]["bias"])
    wanted = wanted + exp / exp.sum(1, keepdims=True) / 4
  found = client.apply(own, jnp.asarray(x, jnp.float32))
  np.testing.assert_allclose(np.exp(found), wanted, rtol=2e-5)
  same = fh.sosicfl_all(linear(), regions, start_round=start_round, **PLAIN)
  shared = client.global_model(broadcast)
  np.testing.assert_array_equal(client.apply(shared, x), same.apply(shared, x))


@pytest.mark.slow
def test_test_points_change_no_training_and_judge_own_endpoints(ragged):
  tiny = owned(radius=1e-6)
  for method in (fh.sosicfl, fh.sosicfl_plus):
    (plain, engine), (state, judge) = (
      trained(method(mlp(), tiny, test_points=own, **SETTINGS), ragged) for own in (None, 3)
    )
    chex.assert_trees_all_equal(state.broadcast, plain.broadcast)
    at_centers, found = engine.evaluate(plain), judge.evaluate(state)
    chex.assert_trees_all_close(found, at_centers, rtol=1e-4, atol=1e-5)


def test_one_logit_is_averaged_as_a_probability():
  logits = np.array([[[-3.0], [0.5]], [[2.0], [40.0]]])
  p = np.mean(1 / (1 + np.exp(-logits)), 0)
  found = mean_prediction(jnp.asarray(logits, jnp.float32))
  np.testing.assert_allclose(found, np.log(p / (1 - p)), rtol=1e-5)


def trained(client, data, rounds=3):
  engine = Engine(fh.federated(client), data, 4, devices=1)
  return engine.advance(engine.init(jax.random.key(3)), rounds)[0], engine


SETTINGS = dict(lr=LR, batch_size=BATCH, epochs=2)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("method", "other", "settings"),
  [("sosicfl", "fedavg", {}), ("sosicfl_all", "fedavg", {}), ("sosicfl_plus", "ditto", {"local_epochs": 1})],
)
def test_one_endpoint_is_the_method_without(ragged, method, other, settings):
  point = np.ones((K, 1), np.float32)
  one = getattr(fh, method)(mlp(), Regions(point, 1.0, point, np.zeros(K, int)), **SETTINGS, **settings)
  without = getattr(fh, other)(mlp(), **SETTINGS, **settings)
  (own, _), (plain, _) = (trained(client, ragged) for client in (one, without))
  same = jax.tree.map(lambda a, b: a.reshape(b.shape), own.broadcast.params, plain.broadcast.params)
  chex.assert_trees_all_close(same, plain.broadcast.params, rtol=1e-5, atol=1e-6)
  if other == "ditto":
    kept = jax.tree.map(lambda a, b: a.reshape(b.shape), own.clients.params, plain.clients)
    chex.assert_trees_all_close(kept, plain.clients, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_plus_trains_the_same_endpoints_and_is_judged_by_its_own(ragged):
  """Whose own are drawn near to those received: the larger λ, the nearer."""
  regions = owned()
  plain, _ = trained(fh.sosicfl(mlp(), regions, **SETTINGS), ragged)
  far = []
  for lam in (0.0, 5.0):
    state, engine = trained(fh.sosicfl_plus(mlp(), regions, lam=lam, **SETTINGS), ragged)
    chex.assert_trees_all_close(state.broadcast, plain.broadcast, rtol=1e-5, atol=1e-6)
    own, sent = state.clients.params, state.broadcast.params
    gap = jax.tree.map(lambda own, sent: jnp.square(own - sent[None]).sum(), own, sent)
    far.append(sum(map(float, jax.tree.leaves(gap))))
    found = engine.evaluate(state)
    assert np.abs(found.personalized["loss"][:, 0] - found.global_["loss"]).max() > 1e-3
  assert far[1] < far[0]


def test_what_the_settings_refuse():
  with pytest.raises(SettingError, match="layers"):
    fh.sosicfl(mlp(), owned(), layers="tail")
  for points in (0, 2.0):
    with pytest.raises(SettingError, match="points"):
      fh.sosicfl(mlp(), owned(), points=points)
  with pytest.raises(SettingError, match="test_points = 0"):
    fh.sosicfl(mlp(), owned(), test_points=0)
  with pytest.raises(SettingError, match="test_points = 2: the task regression"):
    fh.sosicfl(mlp()._replace(task=fh.tasks.regression()), owned(), test_points=2)
  for effectless in ({"points": 2}, {"test_points": 2}, {"start_round": 3}):
    with pytest.raises(SettingError, match="with one endpoint"):
      fh.sosicfl_all(linear(), owned(1), **effectless, **PLAIN)
  with pytest.raises(SettingError, match=r"local_epochs = 3: .* lam = None"):
    fh.sosicfl_plus(mlp(), owned(), lam=None, local_epochs=3)
  with pytest.raises(SettingError, match="start_round"):
    fh.sosicfl(mlp(), owned(), start_round=5).needs.check_rounds(5)
  fh.sosicfl(mlp(), owned(), start_round=4).needs.check_rounds(5)


def test_without_a_start_every_client_is_the_whole_simplex_s():
  """Also in the pictures, and so in `Studies.simplex`."""
  regions = owned()
  for start_round, centers, radius in ((3, regions.centers, 0.4), (np.inf, np.full((K, 3), 1 / 3), 2.0)):
    found = fh.sosicfl_all(linear(), regions, start_round=start_round, **PLAIN).studies.simplex
    np.testing.assert_allclose(found.centers, centers, rtol=1e-6)
    assert float(found.radius) == pytest.approx(radius)
    np.testing.assert_array_equal(found.points, regions.points)


def warned(function, *args, **settings) -> None:
  with pytest.warns(UserWarning, match="No client is nearest to endpoints 2, 3 of 3") as caught:
    function(*args, **settings, rounds=1, cohort_size=2)
  assert [own.filename for own in caught] == [__file__]


def test_points_that_no_step_takes_again_are_remarked_on(ragged):
  """The largest client takes ceil(n / B) steps an epoch; epochs of its own endpoints count where more."""
  largest, corner = -(-max(SIZES) // BATCH), np.eye(3, dtype=np.float32)[np.arange(K) % 3]
  spread = Regions(corner, 0.4, corner, np.arange(K) % 3)
  for factory, steps in (
    (fh.sosicfl, 2 * largest),
    (functools.partial(fh.sosicfl_plus, local_epochs=3), 3 * largest),
  ):
    for points, told in ((None, 0), (steps - 1, 0), (steps, 1)):
      said = [*factory(mlp(), spread, points=points, **PLAIN).needs.remarks(ragged)]
      whose = "" if factory is fh.sosicfl else " of the server's endpoints, or of its own,"
      assert (
        said
        == [f"points = {points}: no client takes more than {steps} steps{whose} a round, so each draws one."]
        * told
      )


def test_run_and_sweep_warn_once_of_regions_but_not_where_nobody_has_one(ragged):
  regions = owned()._replace(points=np.eye(3)[np.zeros(K, int)])
  client = lambda **settings: fh.sosicfl_all(linear(), regions, **PLAIN | settings)  # noqa: E731
  make = lambda lr: fh.federated(client(lr=lr), fh.mixing.static(), fh.server.sgd())  # noqa: E731
  warned(fh.run, make(0.1), ragged, key=jax.random.key(0))
  warned(fh.sweep, make, {"lr": [0.1, 0.2]}, data=ragged)
  assert [*client(start_round=np.inf).needs.remarks(ragged)] == []
