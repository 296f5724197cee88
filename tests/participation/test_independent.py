"""Cohorts of drawn size: rows that suffice, frequencies, and aggregates without bias, against NumPy."""

from math import comb

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_parts import federation, float64, linear, round_draws
from test_participation import BATCH, EPOCHS, SGD, local_sgd

import fedjax_het as fh
from fedjax_het import participation
from fedjax_het.engine.checks import remarks_of
from fedjax_het.engine.cohort import participation_key
from fedjax_het.engine.engine import Engine
from fedjax_het.errors import DataError, SettingError
from fedjax_het.federated import federated
from fedjax_het.participation.independent import TAIL, enough_rows, inclusion

SIZES = (9, 1, 7, 3, 12, 2)
NUM = np.asarray(SIZES, np.float64)


def chances(weights, size):
  """π by bisection for c, float64."""
  low, high = 0.0, size / weights.min()
  for _ in range(200):
    c = (low + high) / 2
    low, high = (c, high) if np.minimum(1, c * weights).sum() < size else (low, c)
  return np.minimum(1.0, low * weights)


def draws(part, size, count, seed=2):
  """(ids, present, probability, beyond) of `count` rounds."""
  state = part.init(jax.random.key(seed), jnp.asarray(SIZES), size)
  rows = part.rows(len(SIZES), size)
  draw = jax.jit(jax.vmap(lambda t: part.draw(jax.random.key(seed), t, state, len(SIZES), rows)))
  found = draw(jnp.arange(count))
  return tuple(map(np.asarray, (found.ids, found.present, found.probability, found.beyond)))


@pytest.mark.parametrize("num, q", [(10, 0.3), (40, 0.1), (100, 0.02), (5, 1.0), (1, 0.5)])
def test_so_many_rows_are_enough_and_no_more(num, q):
  p = [comb(num, a) * q**a * (1 - q) ** (num - a) for a in range(num + 1)]
  tail = [sum(p[r + 1 :]) for r in range(num + 1)]
  rows = enough_rows(num, q)
  assert tail[rows] < TAIL and (rows == 1 or tail[rows - 1] >= TAIL)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6])
def test_probabilities_are_in_proportion_and_at_most_one(size):
  for weights in (NUM, np.ones(6), NUM**3):
    found = inclusion(jnp.asarray(weights, jnp.float32), size)
    np.testing.assert_allclose(found, chances(weights, size), rtol=2e-5)


@pytest.mark.parametrize("name", ["poisson", "poisson of a third", "importance", "importance with dropouts"])
def test_clients_come_as_often_as_their_probabilities_say(name):
  """χ² of six clients over 4000 rounds, independent of one another; 30 is beyond the 0.9999 quantile."""
  part, wanted = {
    "poisson": (participation.poisson(), np.full(6, 0.5)),
    "poisson of a third": (participation.poisson(1 / 3), np.full(6, 1 / 3)),
    "importance": (participation.importance(), chances(NUM, 3)),
    "importance with dropouts": (participation.importance(dropout=0.25), 0.75 * chances(NUM, 3)),
  }[name]
  ids, present, probability, beyond = draws(part, 3, 4000)
  assert not beyond.any()
  counts = np.bincount(ids[present], minlength=6)
  np.testing.assert_allclose(probability[present], wanted[ids[present]], rtol=1e-5)
  spread = 4000 * wanted * np.maximum(1 - wanted, 1e-6)
  assert ((counts - 4000 * wanted) ** 2 / spread).sum() < 30, (counts, 4000 * wanted)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_the_mean_aggregate_over_the_draws_is_that_of_all_clients(dropout):
  ids, present, probability, _ = draws(participation.importance(dropout=dropout), 2, 20_000)
  update, w = np.array([3.0, -1.0, 0.5, 2.0, -4.0, 7.0]), NUM / NUM.sum()
  found = np.where(present, w[ids] / probability * update[ids], 0.0).sum(1)
  error = found.std() / np.sqrt(len(found))
  assert abs(found.mean() - w @ update) < 4 * error and error < 0.05


@pytest.mark.slow
@pytest.mark.parametrize("mixing", [fh.mixing.static(), fh.mixing.uniform()])
def test_a_round_of_importance_sampling_against_numpy(mixing):
  data, part = federation(SIZES), participation.importance(dropout=0.2)
  algorithm = federated(fh.fedavg(linear(), **SGD), mixing, participation=part)
  engine = Engine(algorithm, data, 3, devices=1)
  state = engine.init(jax.random.key(8))
  params = float64(state.broadcast.params)
  w = NUM / NUM.sum() if mixing.name == "static" else np.full(6, 1 / 6)
  π = 0.8 * chances(NUM, 3)
  for _ in range(4):
    _, keys, _ = round_draws(state, 6, 6)
    own = state.participation
    drawn = part.draw(participation_key(state.key), state.round, own, 6, engine.rows)
    state, infos = engine.advance(state, 1)
    here = [int(i) for i, there in zip(drawn.ids, drawn.present) if there]
    steps = [EPOCHS * -(-SIZES[i] // BATCH) for i in here]
    after = params
    moved = [local_sgd(params, keys[i], data, i, done) for i, done in zip(here, steps)]
    for i, new in zip(here, moved):
      scale = w[i] / π[i]
      after = jax.tree.map(lambda t, a, b, scale=scale: t + scale * (a - b), after, new, params)
    params = after
    chex.assert_trees_all_close(float64(state.broadcast.params), params, rtol=1e-4, atol=1e-5)
    assert infos.coefficients.sum() == pytest.approx(1.0 if here else 0.0, abs=1e-5)


def test_a_small_capacity_leaves_clients_out_and_counts_them():
  part = participation.poisson(0.6, capacity=2)
  ids, present, _, beyond = draws(part, 5, 500)
  assert ids.shape == (500, 2) and part.rows(6, 5) == 2
  assert beyond.mean() == pytest.approx(1.7, abs=0.2)  # Σ_a max(a - 2, 0) P(A = a) = 1.645 of B(6, 0.6)
  assert (present.sum(1)[beyond > 0] == 2).all()


def test_probabilities_know_a_small_capacity():
  """And not one that is as good as never reached, whose bits stay."""
  exact = sum(min(2, a) * comb(6, a) * 0.6**a * 0.4 ** (6 - a) for a in range(7))
  small = participation.poisson(0.6, capacity=2, dropout=0.1)
  assert float(small.sampled(6, 5).expected) == pytest.approx(0.9 * exact, rel=1e-5)
  for part in (small, participation.importance(capacity=2, dropout=0.1)):
    state = part.init(jax.random.key(0), jnp.full(6, 9), 4)
    one = part.draw(jax.random.key(1), jnp.int32(0), state, 6, 2)
    mean = exact if part is small else sum(min(2, a) * comb(6, a) * 2**a / 3**6 for a in range(7))
    np.testing.assert_allclose(one.probability, 0.9 * mean / 6, rtol=1e-5)
  for capacity in (None, 30, 100):
    part = participation.poisson(0.05, capacity=capacity)
    one = part.draw(jax.random.key(1), jnp.int32(0), jnp.float32(0.05), 100, part.rows(100, 5))
    assert (one.probability == jnp.float32(0.05)).all() and float(part.sampled(100, 5).expected) == 5.0


def test_an_unused_cohort_size_is_said():
  data, client = federation(SIZES), fh.fedavg(linear(), **SGD)
  (said,) = remarks_of(federated(client, participation=participation.poisson(0.25)), data)
  assert said == "cohort_size: poisson draws how many clients take part, 1.5 on average."
  assert not [*remarks_of(federated(client, participation=participation.poisson()), data)]
  engine = Engine(federated(client, participation=participation.poisson(0.25)), data, 2, devices=1)
  assert engine.rows == enough_rows(6, 0.25)


def test_what_cannot_be_corrected_is_refused(tmp_path):
  part = participation.importance()
  for client, more, said in (
    (fh.fedavg(linear()), dict(mixing=fh.mixing.qffl()), "mixing qffl has no coefficients of all clients"),
    (fh.fedavg(linear()), dict(aggregation=fh.aggregation.median()), "aggregation median is no mean"),
    (fh.feddyn(linear()), {}, "server drift adds up what those that arrive have sent, uncorrected"),
    (fh.scaffold(linear()), {}, "also sends even, which would be averaged as if all were drawn alike"),
  ):
    with pytest.raises(SettingError, match=f"participation = 'importance': .*{said}"):
      federated(client, participation=part, **more)
  path = tmp_path / "weights.txt"
  path.write_text("1\n2\n0\n")
  with pytest.raises(DataError, match="line 3: '0' is no number above 0"):
    participation.importance(str(path))
  path.write_text("1\n2\n3.5\n")
  own = federated(fh.fedavg(linear()), participation=participation.importance(str(path)))
  with pytest.raises(SettingError, match="has 3 weights, and there are 6 clients"):
    Engine(own, federation(SIZES), 2)


@pytest.mark.slow
def test_drawn_sizes_run_on_devices_and_with_states_on_the_host():
  data = federation(SIZES)
  for part in (participation.poisson(0.3, dropout=0.2), participation.importance(capacity=5)):
    algorithm = federated(fh.ditto(linear(), **SGD), participation=part)
    found = []
    for where in (dict(devices=1), dict(devices=2), dict(devices=1, device_states=6, device_rows=70)):
      engine = Engine(algorithm, data, 2, **where)
      state, infos = engine.advance(engine.init(jax.random.key(3)), 5)
      found.append(jax.tree.map(np.asarray, (state._replace(key=()), infos)))
    for other in found[1:]:
      jax.tree.map(np.testing.assert_array_equal, found[0], other)
