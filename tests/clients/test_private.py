"""Record-level DP-SGD at clients: whole rounds by hand, what bounds a record, the noise, and the sampling."""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from private_steps import drawn_batches, norm, trained_by_hand
from scipy import stats
from small_parts import SIZES, federation, float64, linear, one_client, round_draws, walk

import fedjax_het as fh
from fedjax_het.clients import private
from fedjax_het.clients.recipe import recipe_of
from fedjax_het.local import Batch, for_each_drawn_batch

DATA, BATCH, RATE, CLIP = federation(SIZES), 4, 0.3, 0.4
PLAIN = {"lr": RATE, "momentum": 0.0, "weight_decay": 0.0, "batch_size": BATCH, "epochs": 2}
DP = {**PLAIN, "dp_clip": CLIP, "dp_noise_multiplier": 0.7}


def engine_of(client, **where):
  return fh.Engine(fh.federated(client), DATA, len(SIZES), **{"devices": 1, **where})


def batches_of(key, i, sampling):
  steps = 2 * -(-SIZES[i] // BATCH)
  return drawn_batches(key, DATA, i, BATCH, steps) if sampling == "poisson" else walk(key, DATA, i, BATCH, 2)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", ["poisson", pytest.param("shuffle", marks=pytest.mark.slow)])
def test_two_rounds_of_scaffold_and_fedavg_by_hand(sampling):
  """Twelve ragged clients, two of one record: DP-FedAvg's first round, and two rounds of DP-SCAFFOLD.

  c_i' = c_i - c + (x - y)/(n η) is the mean of the noised gradients, as the paper has it (Noble, Bellet,
  Dieuleveut, AISTATS 2022); c moves by their mean, and models are averaged by n_i.
  """
  shares, settings = np.array(SIZES) / sum(SIZES), {**DP, "dp_sampling": sampling}
  engine = engine_of(fh.scaffold(linear(), **settings))
  state = engine.init(jax.random.key(3))
  first = float64(state.broadcast.params)
  center, control = first, jax.tree.map(np.zeros_like, first)
  own = [jax.tree.map(np.zeros_like, first) for _ in SIZES]
  cuts = 0
  for round in range(2):
    _, keys, _ = round_draws(state, len(SIZES), len(SIZES))
    trained, moved = [], []
    for i, n in enumerate(SIZES):
      correct = lambda g, i=i: jax.tree.map(lambda a, b, c: a - b + c, g, own[i], control)  # noqa: E731
      batches = list(batches_of(keys[i], i, sampling))
      after, cut = trained_by_hand(center, batches, RATE, CLIP, 0.7, min(BATCH, n), correct)
      cuts += cut
      trained.append(after)
      scale = 1.0 / (len(batches) * RATE)
      moved.append(
        jax.tree.map(lambda b, c, x, y, s=scale: b - c + s * (x - y), own[i], control, center, after)
      )
    state, _ = engine.advance(state, 1)
    average = lambda trees, w: jax.tree.map(lambda *each: sum(a * b for a, b in zip(w, each)), *trees)  # noqa: E731
    if round == 0:
      plain = engine_of(fh.fedavg(linear(), **settings))
      alone, _ = plain.advance(plain.init(jax.random.key(3)), 1)
      chex.assert_trees_all_close(float64(alone.broadcast.params), average(trained, shares), atol=2e-5)
    center, control, own = average(trained, shares), average(moved, [1 / len(SIZES)] * len(SIZES)), moved
    chex.assert_trees_all_close(float64(state.broadcast.params), center, atol=2e-5)
    chex.assert_trees_all_close(float64(state.broadcast.even), control, atol=5e-5)
  assert cuts > 0


def gradient_of(x, y, weight=None, release=0, key=None, change=lambda batch: batch, **own):
  """A noised gradient at θ of `linear`, without a client around it; no noise unless it is given."""
  recipe = recipe_of(linear(), {**PLAIN, "dp_clip": CLIP, "dp_noise_multiplier": 0.0, **own})
  params = linear().init(jax.random.key(5))
  weight = jnp.ones(len(x)) if weight is None else weight
  batch = private.SealedBatch(Batch(x, y, weight, jax.random.key(7) if key is None else key), 4.0, "mine")
  return recipe.gradient(params, (), batch, release=release)[:2]


def test_no_record_moves_the_sum_by_more_than_the_clip():
  """Of records of any length, one that is not finite among them, and far from the decision or not."""
  rng = np.random.default_rng(0)
  x = jnp.asarray(rng.normal(size=(30, 4)) * 10.0 ** rng.uniform(-3, 4, (30, 1)), jnp.float32)
  x, y = x.at[7].set(jnp.inf), jnp.asarray(rng.integers(0, 3, 30))
  find = jax.jit(lambda order, weight: gradient_of(x[order], y[order], weight)[1])
  whole = float64(find(jnp.arange(30), jnp.ones(30)))
  lengths = []
  for row in range(30):
    # Records of weight 1 come first in a batch: the left out one is the last.
    order = jnp.array([*range(row), *range(row + 1, 30), row])
    without = find(order, jnp.ones(30).at[29].set(0.0))
    lengths.append(4.0 * norm(jax.tree.map(np.subtract, whole, float64(without))))
  assert np.isfinite(lengths).all() and max(lengths) <= CLIP * (1 + 1e-4)
  assert lengths[7] < 1e-5 and sorted(lengths)[-10] > 0.99 * CLIP and sorted(lengths)[3] < 0.9 * CLIP


def test_the_noise_has_its_variance_and_none_of_two_is_alike():
  x, y = jnp.ones((1, 4)), jnp.zeros(1, jnp.int32)
  keys = jax.random.split(jax.random.key(0), 4000)
  draw = lambda release: jax.vmap(  # noqa: E731
    lambda key: gradient_of(x, y, key=key, release=release, dp_noise_multiplier=1.5)[1]["fc"]["kernel"]
  )
  one, other = (np.asarray(jax.jit(draw(release))(keys), np.float64) for release in (0, 1))
  std = 1.5 * CLIP / 4.0
  np.testing.assert_allclose(one.std(0), std, rtol=0.06)  # 5.4 deviations of a deviation of 4,000 draws
  alone = (one - one.mean(0)).ravel() / std
  assert abs(alone.std() - 1) < 0.01 and stats.kstest(alone, "norm").pvalue > 1e-3
  flat = np.concatenate([one.reshape(4000, -1), other.reshape(4000, -1)], axis=1)
  assert np.abs(np.corrcoef(flat.T) - np.eye(24)).max() < 0.08  # 5 deviations


@pytest.mark.slow
def test_the_sum_does_not_depend_on_the_size_of_blocks():
  """To 1e-6; the order of a sum, and with it the last bits, is that of the blocks."""
  rng = np.random.default_rng(1)
  x, y = jnp.asarray(rng.normal(size=(13, 4)), jnp.float32), jnp.asarray(rng.integers(0, 3, 13))
  weight = (jnp.arange(13) < 9).astype(jnp.float32)
  loss, gradient = gradient_of(x, y, weight, dp_block=1)
  for block in (3, 9, 13, 99):
    chex.assert_trees_all_close((loss, gradient), gradient_of(x, y, weight, dp_block=block), atol=1e-6)
  x = x.at[9:].set(jnp.nan)  # beyond the batch's records
  chex.assert_trees_all_close((loss, gradient), gradient_of(x, y, weight, dp_block=4), atol=1e-6)


def counted(n, batch_size, capacity, steps):
  """In which steps each of a client's n records is, bool [steps, n]."""
  data = fh.federate(np.arange(n, dtype=np.float32)[:, None], np.zeros(n, int), [np.arange(n)],
                     jax.random.key(0), num_classes=2, test_fraction=0.0)  # fmt: skip
  view = one_client(data, 0)

  def step(carry, batch):
    found, s = carry
    ids = jnp.where(batch.weight > 0, batch.x[:, 0].astype(int), n)
    return found.at[s, ids].set(True, mode="drop"), s + 1

  run = jax.jit(lambda key: for_each_drawn_batch(
    key, view, batch_size, capacity, steps, step, (jnp.zeros((steps, n), bool), 0)))  # fmt: skip
  return np.asarray(run(jax.random.key(2))[0])


def test_each_record_is_drawn_by_itself_with_its_probability():
  n, size, steps = 12, 3, 4000
  inside = counted(n, size, private.capacity_of(size), steps)
  sizes = np.bincount(inside.sum(1), minlength=n + 1)[:9]
  expected = stats.binom.pmf(np.arange(9), n, size / n) * steps
  expected[8] += steps - expected.sum()
  sizes[8] += steps - sizes.sum()
  assert stats.chisquare(sizes, expected).pvalue > 1e-3
  per_record = (inside.sum(0) - steps / 4) / np.sqrt(steps * 0.25 * 0.75)
  assert stats.chi2.sf((per_record**2).sum(), n) > 1e-3
  for a, b in itertools.combinations(range(4), 2):
    assert abs(inside[:, a] & inside[:, b]).mean() == pytest.approx(1 / 16, abs=0.02)


def test_beyond_the_capacity_records_are_kept_by_chance_and_one_record_is_in_every_batch():
  inside = counted(10, 5, 4, 3000)
  assert inside.sum(1).max() == 4
  assert stats.chisquare(inside.sum(0)).pvalue > 1e-3
  assert counted(1, 5, 3, 6).all()


@pytest.mark.parametrize("size", [1, 3, 10, 64, 1000])
def test_the_capacity_is_the_least_that_overflows_with_less_than_1e9th(size):
  found = private.capacity_of(size)
  assert stats.poisson.sf(found, size) < 1e-9 <= stats.poisson.sf(found - 1, size)
  assert all(stats.binom.sf(found, n, min(1.0, size / n)) < 1e-9 for n in (size, 2 * size, 10_000, 10**6))


@pytest.mark.slow
def test_without_noise_and_clip_whole_batches_are_plain_training():
  """To rounding: the sum is over single gradients. By default nothing of it is in the program."""
  data = federation((8, 4, 12, 4))
  run = lambda **own: fh.run(  # noqa: E731
    fh.federated(fh.fedavg(linear(), **{**PLAIN, "momentum": 0.9, **own})),
    data, rounds=2, cohort_size=4, key=jax.random.key(1), devices=1,
  ).state.broadcast.params  # fmt: skip
  off = run(dp_clip=1e9, dp_noise_multiplier=0.0, dp_sampling="shuffle")
  chex.assert_trees_all_close(off, run(), atol=1e-6)


def test_one_class_trains_and_an_empty_batch_is_noise_alone():
  x, y = jnp.ones((3, 4)), jnp.zeros(3, jnp.int32)
  loss, gradient = gradient_of(x, y, jnp.zeros(3), dp_noise_multiplier=1.0)
  again, other = gradient_of(-x, 1 + y, jnp.zeros(3), dp_noise_multiplier=1.0)
  assert loss == again == 0.0
  chex.assert_trees_all_equal(gradient, other)
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient_of(x, y)))


@pytest.mark.slow
def test_devices_change_no_bit():
  """One device and four, one client at a time: blocks, draws and noise are each client's own."""
  found = []
  for devices in (1, 4):
    engine = engine_of(fh.scaffold(linear(), **DP, dp_block=3), devices=devices, client_batch=1)
    state, infos = engine.advance(engine.init(jax.random.key(4)), 2)
    found.append(jax.tree.map(np.asarray, (state._replace(key=()), infos.clients)))
  chex.assert_trees_all_equal(*found)
