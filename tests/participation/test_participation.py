"""Participation: who takes part, against NumPy; absentees are left out of every sum."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import with_every
from small_parts import federation, float64, linear, linear_loss_and_gradient, mlp, round_draws, walk

import fedjax_het as fh
from fedjax_het import participation
from fedjax_het.config.algorithm import build_algorithm
from fedjax_het.config.plan import plan
from fedjax_het.config.quickstart import get_config
from fedjax_het.config.values import plain, with_values
from fedjax_het.engine.averages import without_absent
from fedjax_het.engine.engine import Engine
from fedjax_het.errors import DataError, SettingError
from fedjax_het.federated import federated
from fedjax_het.methods import CLIENTS, small_model
from fedjax_het.mixing.responses import respond
from fedjax_het.parts import Draw, Feedback, Participation

SIZES = (9, 1, 7, 3, 12, 2)
ROUNDS, COHORT, LR, EPOCHS, BATCH = 6, 4, 0.1, 2, 4
SGD = dict(lr=LR, epochs=EPOCHS, batch_size=BATCH, momentum=0.0, weight_decay=0.0, lr_decay=1.0)
HALF = participation.available(0.6, dropout=0.2, least_work=0.4)


def engine_of(part, client=None, devices=1, cohort=COHORT, data=None):
  client = fh.fedavg(linear(), **SGD) if client is None else client
  return Engine(federated(client, participation=part), data or federation(SIZES), cohort, devices=devices)


def left(engine, rounds=ROUNDS, seed=3):
  state, infos = engine.advance(engine.init(jax.random.key(seed)), rounds)
  return jax.tree.map(np.asarray, (state._replace(key=()), infos))


def scripted(present, work=1.0) -> Participation:
  """Clients 0, 1, ... in every round, present as in the rows of `present` [rounds, S]."""

  def draw(key, round, state, num_clients, cohort_size):
    ids = jnp.arange(cohort_size, dtype=jnp.int32)
    there = jnp.asarray(present)[jnp.minimum(round, len(present) - 1)]
    return Draw(ids, there, jnp.full(cohort_size, work, jnp.float32), jnp.ones(cohort_size), state + there)

  init = lambda key, sizes, cohort_size: jnp.zeros(COHORT, jnp.int32)  # noqa: E731
  return Participation(draw, init, "scripted", cuts_work=work < 1)


def test_settings_that_leave_nobody_out_are_the_plain_run():
  for part in (
    participation.uniform(), participation.available(1.0), participation.available(probability=1),
    participation.cyclic(1),
  ):  # fmt: skip
    assert federated(fh.fedavg(linear()), participation=part).participation == Participation()
  assert participation.available(0.9).draw and participation.uniform(dropout=0.1).draw


def local_sgd(params, key, data, i, last):
  """Plain SGD up to the step `last`, float64."""
  for step, (x, y, _) in enumerate(walk(key, data, i, BATCH, EPOCHS)):
    if step < last:
      gradient = linear_loss_and_gradient(params, x, y)[1]
      params = jax.tree.map(lambda p, g: p - LR * g, params, gradient)
  return params


@pytest.mark.slow
def test_fedavg_with_absentees_against_numpy():
  data, engine = federation(SIZES), engine_of(HALF)
  state = engine.init(jax.random.key(8))
  params, sizes = float64(state.broadcast.params), np.asarray(data.train.size, np.float64)
  shortened = 0
  for _ in range(ROUNDS):
    _, keys, _ = round_draws(state, len(SIZES), len(SIZES))
    key, now = jax.random.fold_in(state.key, 2**32 - 1), int(state.round)
    drawn = HALF.draw(key, jnp.int32(now), (), len(SIZES), COHORT)
    state, infos = engine.advance(state, 1)
    here = [int(i) for i, there in zip(drawn.ids, drawn.present) if there]
    np.testing.assert_array_equal(infos.present[0], drawn.present)
    work = dict(zip(np.asarray(drawn.ids).tolist(), np.asarray(drawn.work, np.float64)))
    steps = {i: EPOCHS * -(-SIZES[i] // BATCH) for i in here}
    done = {i: max(1, int(np.ceil(work[i] * steps[i] - 1e-4))) for i in here}
    shortened += sum(done[i] < steps[i] for i in here)
    if here:
      p = sizes[here] / sizes[here].sum()
      uploads = [local_sgd(params, keys[i], data, i, done[i]) for i in here]
      params = jax.tree.map(lambda *leaves: np.tensordot(p, leaves, 1), *uploads)
    chex.assert_trees_all_close(float64(state.broadcast.params), params, atol=2e-6)
    wanted = [done.get(int(i), 0) for i in drawn.ids]
    np.testing.assert_array_equal(infos.clients.steps[0], wanted)
  assert shortened


@pytest.mark.slow
def test_scaffold_with_absentees_against_numpy():
  """The server's variate moves by S'/K of the mean, S' those that arrive; the absent keep their own."""
  present = np.array([[True, False, True, True], [False, True, True, False], [False] * 4, [True] * 4])
  data, client = federation(SIZES), fh.scaffold(linear(), **SGD)
  engine = engine_of(scripted(present), client, data=data)
  state = engine.init(jax.random.key(8))
  params, sizes = float64(state.broadcast.params), np.asarray(data.train.size, np.float64)
  c = jax.tree.map(np.zeros_like, params)
  own = [c] * len(SIZES)
  for t in range(len(present)):
    _, keys, _ = round_draws(state, len(SIZES), len(SIZES))
    state, _ = engine.advance(state, 1)
    here, moved, uploads = np.flatnonzero(present[t]), {}, []
    for i in here:
      y, count = params, 0
      for x, labels, _ in walk(keys[i], data, i, BATCH, EPOCHS):
        g = linear_loss_and_gradient(y, x, labels)[1]
        y = jax.tree.map(lambda y, g, own, c: y - LR * (g - own + c), y, g, own[i], c)
        count += 1
      scale = 1 / (LR * count)
      moved[i] = jax.tree.map(lambda o, c, x, y: o - c + scale * (x - y), own[i], c, params, y)
      uploads.append(y)
    if len(here):
      p = sizes[here] / sizes[here].sum()
      change = [jax.tree.map(np.subtract, moved[i], own[i]) for i in here]
      c = jax.tree.map(lambda c, *d: c + sum(d) / len(SIZES), c, *change)
      params = jax.tree.map(lambda *leaves: np.tensordot(p, leaves, 1), *uploads)
    own = [moved.get(i, own[i]) for i in range(len(SIZES))]
    chex.assert_trees_all_close(float64(state.broadcast.params), params, atol=2e-5)
    chex.assert_trees_all_close(float64(state.broadcast.even), c, atol=2e-4)
    chex.assert_trees_all_close(float64(state.clients), jax.tree.map(lambda *a: np.stack(a), *own), atol=2e-4)


def test_a_round_in_which_nobody_arrives_leaves_everything_where_it_is():
  engine = engine_of(scripted([[False] * 4]), fh.scaffold(linear(), **SGD))
  first = engine.init(jax.random.key(3))
  kept = jax.tree.map(np.array, (first.broadcast, first.server, first.mixing, first.clients))
  state, infos = engine.advance(first, 1)
  chex.assert_trees_all_equal((state.broadcast, state.server, state.mixing, state.clients), kept)
  assert not infos.present.any() and not infos.clients.steps.any() and int(state.round) == 1


@pytest.mark.slow
def test_who_is_there_comes_as_often_as_the_part_says():
  """χ² of how often each client arrives, of 5 degrees of freedom; and the inclusion probabilities."""
  for part in (participation.available(0.5, dropout=0.3), participation.uniform(dropout=0.3)):
    draw = jax.jit(jax.vmap(lambda t, part=part: part.draw(jax.random.key(2), t, (), 6, 3)[:4]))
    ids, present, _, probability = map(np.asarray, draw(jnp.arange(6000)))
    counts = np.bincount(ids[present], minlength=6)
    assert np.allclose(probability, probability[0, 0], rtol=1e-5)
    wanted = 6000 * probability[0, 0]
    assert ((counts - wanted) ** 2 / (wanted * (1 - wanted / 6000))).sum() < 30, (counts, wanted)
    assert all(len(set(row)) == 3 for row in ids.tolist())


def test_own_probabilities_stay_and_blocks_take_turns(tmp_path):
  part = participation.available(0.5, spread=0.5)
  own = part.init(jax.random.key(2), jnp.ones(6, jnp.int32), 6)
  draws = [part.draw(jax.random.key(2), jnp.int32(t), own, 6, 6) for t in range(2)]
  chances = [np.asarray(one.probability)[np.argsort(one.ids)] for one in draws]
  np.testing.assert_allclose(*chances)
  assert chances[0].std() > 0.05
  cycle = participation.cyclic(3, 2)
  for t, block in ((0, {0, 1}), (1, {0, 1}), (2, {2, 3}), (4, {4, 5}), (6, {0, 1})):
    one = cycle.draw(jax.random.key(2), jnp.int32(t), (), 6, 3)
    assert {*np.asarray(one.ids)[np.asarray(one.present)].tolist()} == block
  path = tmp_path / "trace.csv"
  path.write_text("# client, from, to\n0, 0, 2\n3,1,5\n0,4,5\n")
  recorded = participation.trace(str(path))
  for t, there in ((0, {0}), (1, {0, 3}), (2, {3}), (4, {0, 3}), (9, set())):
    one = recorded.draw(jax.random.key(2), jnp.int32(t), (), 6, 3)
    assert {*np.asarray(one.ids)[np.asarray(one.present)].tolist()} == there
  with pytest.raises(SettingError, match="it has a client 3, and there are 3"):
    recorded.needs.check_cohort(2, 3)
  path.write_text("0, 2, 2\n")
  with pytest.raises(DataError, match=r"line 1: '0, 2, 2' is not client, from round, to round"):
    participation.trace(str(path))


@pytest.mark.slow
@pytest.mark.parametrize("cohort", with_every([2, 4, 5], 5))
def test_any_number_of_devices_has_the_same_bits(cohort):
  """Cohorts below, at and above the number of devices, on ragged clients with partial work."""
  client = fh.superfed(mlp(), lr=0.05, epochs=2, batch_size=4)
  one = left(engine_of(HALF, client, 1, cohort))
  for devices in (2, 4):
    chex.assert_trees_all_equal(one, left(engine_of(HALF, client, devices, cohort)))


@pytest.mark.slow
@pytest.mark.parametrize("name", with_every(["available", "cyclic", "uniform"], "available"))
def test_rows_and_states_on_the_host_change_nothing(name):
  part = {
    "available": participation.available(0.6, 0.3, dropout=0.2, least_work=0.4),
    "cyclic": participation.cyclic(3, 2), "uniform": participation.uniform(dropout=0.3),
  }[name]  # fmt: skip
  algorithm, data = federated(fh.ditto(linear(), **SGD), participation=part), federation(SIZES)
  whole = left(Engine(algorithm, data, 3, devices=1))
  for where in (dict(device_rows=70), dict(device_states=4), dict(device_rows=70, device_states=3)):
    engine = Engine(algorithm, data, 3, devices=2, **where)
    chex.assert_trees_all_equal(whole, left(engine))


@pytest.mark.slow
def test_members_whose_rows_are_on_the_host_draw_with_their_own_settings():
  data = federation(SIZES * 5)

  def make(q):
    return federated(fh.fedavg(linear(), **SGD), participation=participation.available(q, 0.2))

  more = dict(data=data, rounds=5, cohort_size=2, seeds=[0, 1])
  here, there = (fh.sweep(make, {"q": [0.4, 0.8]}, **more, device_rows=rows) for rows in (None, 180))
  chex.assert_trees_all_equal(here.infos.present, there.infos.present)
  chex.assert_trees_all_equal(here.state.broadcast, there.state.broadcast)


@pytest.mark.slow
def test_a_stop_changes_nothing():
  """Also the part's own state, which is one of the run's."""
  for part in (HALF, scripted(np.random.default_rng(0).random((6, 4)) < 0.5, work=0.5)):
    whole = left(engine_of(part))
    engine = engine_of(part)
    state, _ = engine.advance(engine.init(jax.random.key(3)), 2)
    again = engine_of(part)
    state, _ = again.advance(state, 4)
    chex.assert_trees_all_equal(jax.tree.map(np.asarray, state._replace(key=())), whole[0])


@pytest.mark.slow
def test_a_sweep_over_a_probability_is_one_program():
  def make(q):
    return federated(fh.fedavg(linear(), **SGD), participation=participation.available(q))

  found = fh.sweep(make, {"q": [0.5, 0.9, 1.0]}, data=federation(SIZES), rounds=4, cohort_size=COHORT)
  for i, q in enumerate((0.5, 0.9)):
    alone = fh.run(
      make, federation(SIZES), rounds=4, cohort_size=COHORT, key=jax.random.key(0), settings={"q": q}
    )
    assert alone.metrics == found.metrics[i]


def test_parts_that_count_on_a_whole_cohort_are_refused_by_name():
  client = fh.fedavg(linear())
  for parts, said in (
    (dict(mixing=fh.mixing.afl()), "mixing afl counts on a whole cohort"),
    (dict(mixing=fh.mixing.fedmgda()), "mixing fedmgda counts on a whole cohort"),
  ):
    with pytest.raises(SettingError, match=f"participation = 'available': .* {said}"):
      federated(client, participation=HALF, **parts)
  with pytest.raises(SettingError, match="device_rows = 10: participation scripted draws a cohort only"):
    Engine(federated(client, participation=scripted([[True] * 3])), federation(SIZES), 3, device_rows=10)


def test_a_launched_run_without_absentees_is_the_plain_one():
  """A probability of 1 stays a constant, so that the part is left out; others are values of the program."""
  config = with_values(plain(get_config("algorithm=fedavg")), {"participation.name": "available"})
  model = small_model(CLIENTS["fedavg"])
  for probability, values in ((1, {}), (1.0, {}), (0.5, {"participation.probability": 0.5})):
    own = plan(with_values(config, {"participation.probability": probability}))
    found = {name: value for name, value in own.numbers.items() if name.startswith("participation")}
    assert found == values
    assert (build_algorithm(own, model).participation.draw is None) == (not values)
  with pytest.raises(SettingError, match=r"participation\.path = '': names no file"):
    plan(with_values(config, {"participation.name": "trace"}))
  with pytest.raises(SettingError, match=r"participation\.dropout = 1\.0: out of range"):
    plan(with_values(config, {"participation.dropout": 1.0}))


@pytest.mark.slow
def test_aaggff_d_estimates_from_those_that_arrive():
  """r̆_i = r̄ + (r_i - r̄)/π_i for the present, r̄ for all others, whatever the absent clients' losses are."""
  num, cohort = 9, np.array([4, 0, 7, 2, 5], np.int32)
  present, losses = np.array([True, False, True, True, False]), np.array([1.0, 9.0, 2.0, 0.5, 3.0])
  chances = np.array([0.3, 0.4, 0.25, 0.4, 0.0])
  part = fh.mixing.aaggff_d()
  heard = without_absent(jnp.asarray(losses, jnp.float32), jnp.asarray(present))
  np.testing.assert_allclose(heard, np.where(present, losses, 3.5 / 3), rtol=1e-6)
  given = Feedback(
    jnp.asarray(cohort), jnp.ones(5, jnp.int32), jnp.int32(0), lambda: heard, lambda: None, None,
    jnp.asarray(present), None, jnp.asarray(chances, jnp.float32),
  )  # fmt: skip
  state = part.init(jnp.ones(num, jnp.int32))
  _, after = part.update(state, given)
  rate = len(cohort) / num
  r = np.float64(respond(jnp.asarray(losses[present], jnp.float32), "normal", 0.0, rate))
  mean = r.mean()
  estimate = np.full(num, mean)
  estimate[cohort[present]] = mean + (r - mean) / chances[present]
  p = np.full(num, 1 / num)
  gradient = -estimate / (1 + mean) + mean * (p @ (estimate - mean)) / (1 + mean) ** 2
  np.testing.assert_allclose(after.total - state.total, gradient, rtol=1e-5)
