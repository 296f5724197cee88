"""FedBuff and FedAsync: order of arrivals, weights of staleness, whole runs by hand, what is refused."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from event_queue import arrivals
from launching import config_of, records, start
from small_parts import SIZES, federation, linear, mlp, scaffold

import fedjax_het as fh
from fedjax_het.asynchronous import hinge, polynomial
from fedjax_het.asynchronous.stale import constant
from fedjax_het.engine.asynchronous import idle
from fedjax_het.engine.batched_runs import Members
from fedjax_het.engine.checks import remarks_of
from fedjax_het.engine.elapsed import Clock
from fedjax_het.errors import SettingError
from fedjax_het.parts import ClientUpdate, LocalTraining, in_one_go

K, ROUNDS = len(SIZES), 12


def halfway() -> ClientUpdate:
  """A client part whose upload is (θ + a_i) / 2, a_i = i + t in every coordinate for client i in round t."""

  def finish(broadcast, state, data, context, work):
    aim = jnp.float32(context.client) + jnp.float32(context.round)
    params = jax.tree.map(lambda leaf: 0.5 * leaf + 0.5 * aim, broadcast.params)
    return fh.Message(params), state + 1.0, fh.Info(aim, jnp.int32(1))

  training = LocalTraining(
    lambda data: jnp.int32(1), lambda *_: jnp.float32(0.0), lambda k, b, s, d, c, work, *_: work, finish
  )
  own = scaffold(linear())
  return own._replace(
    init_broadcast=lambda key: fh.Message({"w": jnp.zeros(2)}), update=in_one_go(training), name="halfway",
    init=lambda *_: jnp.zeros(()), loss=lambda broadcast, state, data, context: broadcast.params["w"].sum(),
    personalize=lambda broadcast, state, data, context, lam: linear().init(jax.random.key(0)),
  )  # fmt: skip


def of_seconds(seconds) -> fh.System:
  """A system whose client i takes `seconds[i]`, about, as all messages take no time."""
  step = jnp.asarray(seconds, jnp.float32)
  return fh.System(lambda key, sizes: fh.Speeds(step, jnp.full(K, 1e30)), name="given")


def run(part, seconds, rounds=ROUNDS, client=None, **parts):
  client = halfway() if client is None else client
  algorithm = fh.federated(client, asynchronous=part, system=of_seconds(seconds), **parts)
  engine = fh.Engine(algorithm, federation(SIZES), 3)
  state = engine.init(jax.random.key(3))
  seconds = np.array(state.pool.seconds)  # the state's memory is used again
  return *engine.advance(state, rounds), seconds


def begun(key, buffer_size):
  """Whom an engine's run of this key starts, see `arrivals`."""

  def start(t, batch, working):
    own = jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(key, t), 8), batch)
    return np.asarray(idle(own, jnp.array(working or [-1], jnp.int32), K, buffer_size))

  return start


@pytest.mark.parametrize(
  "buffer_size, concurrency",
  [(3, 4), *(pytest.param(*own, marks=pytest.mark.slow) for own in ((1, 1 + K // 2), (3, K)))],
)
def test_arrivals_are_those_of_an_event_queue(buffer_size, concurrency):
  seconds = 2.0 ** -np.random.default_rng(buffer_size).integers(0, 5, K) * (1 + np.arange(K) % 3)
  state, infos, whole = run(fh.asynchronous.fedbuff(buffer_size, concurrency), seconds)
  assert (whole == seconds).all()
  steps = arrivals(whole, begun(state.key, buffer_size), ROUNDS, buffer_size, concurrency)
  clock, done = 0.0, {}  # of those that work, when they are done: exact, as all are multiples of 1/16
  for t, (started, came, passed) in enumerate(steps):
    assert infos.cohort[t].tolist() == [i for i, _ in came]
    assert infos.elapsed[t] == passed
    late = [t - step for _, step in came]
    np.testing.assert_allclose(infos.figures["staleness"][t], np.mean(late), rtol=1e-6)
    assert infos.figures["stalest"][t] == max(late)
    assert not {*done} & {*started} and len({*started}) == len(started)
    done |= {i: clock + seconds[i] for i in started}
    assert len(done) == concurrency
    first = sorted(done.values())[:buffer_size]
    assert sorted(done.pop(i) for i, _ in came) == first
    assert passed == first[-1] - clock
    clock = first[-1]


def by_hand(part, mean, seconds, key, buffer_size, concurrency):
  """θ after each step, in float64."""
  theta, sent, found = 0.0, {}, []
  for t, (started, came, _) in enumerate(
    arrivals(seconds, begun(key, buffer_size), ROUNDS, buffer_size, concurrency)
  ):
    sent |= {(i, t): (0.5 * theta + 0.5 * (i + t), theta) for i in started}
    p = mean([i for i, _ in came])
    theta = sum(own * part(theta, *sent[event], t - event[1]) for own, event in zip(p, came))
    found.append(theta)
  return np.array(found)


def even(ids):
  return np.full(len(ids), 1 / len(ids))


def by_size(ids):
  return np.array(SIZES, float)[ids] / np.array(SIZES, float)[ids].sum()


@pytest.mark.parametrize("mixing, mean", [(fh.mixing.uniform, even), (fh.mixing.static, by_size)])
def test_fedbuff_moves_by_what_the_clients_moved_weighed_by_how_late_they_are(mixing, mean):
  seconds = np.random.default_rng(1).lognormal(0.0, 1.0, K)
  part = fh.asynchronous.fedbuff(2, 7, exponent=0.7)
  state, infos, whole = run(part, seconds, mixing=mixing())
  assert infos.figures["stalest"].max() > 2
  want = by_hand(
    lambda theta, sent, base, late: theta + (1 + late) ** -0.7 * (sent - base), mean, whole, state.key, 2, 7
  )
  np.testing.assert_allclose(state.broadcast.params["w"], want[-1], rtol=1e-5)
  assert np.array(state.clients).sum() == 2 * ROUNDS + 5  # all that began have been counted


def test_a_server_with_drifts_adds_those_of_the_uploads_that_came():
  """H <- H + (B/K) mean s Δ, with the same B/K in every step however late the uploads are."""
  seconds = np.random.default_rng(1).lognormal(0.0, 1.0, K)
  part = fh.asynchronous.fedbuff(2, 7, exponent=0.7)
  state, _, whole = run(part, seconds, mixing=fh.mixing.uniform(), server=fh.server.drift())
  theta, drift, sent = 0.0, 0.0, {}
  for t, (started, came, _) in enumerate(arrivals(whole, begun(state.key, 2), ROUNDS, 2, 7)):
    sent |= {(i, t): 0.5 * (i + t) - 0.5 * theta for i in started}
    update = np.mean([(1 + t - step) ** -0.7 * sent[i, step] for i, step in came])
    drift += 2 / K * update
    theta += update + drift
  np.testing.assert_allclose(state.broadcast.params["w"], theta, rtol=1e-5)
  np.testing.assert_allclose(state.server["w"], drift, rtol=1e-5)


def test_late_values_that_are_no_updates_are_averaged_with_the_present_ones():
  """Variances of batches stay above 0 so; and what has a weight of its own is weighed by s too."""
  own, aim = halfway(), lambda context: jnp.float32(context.client) ** 2

  def finish(broadcast, state, data, context, work):
    upload, *rest = own.training.finish(broadcast, state, data, context, work)
    pooled = fh.Pooled(aim(context), jnp.float32(context.client))
    return upload._replace(extra=aim(context), stats={"var": aim(context)}, pooled=pooled), *rest

  training, zero = own.training._replace(finish=finish), jnp.float32(0.0)
  first = fh.Message({"w": jnp.zeros(2)}, zero, {"var": zero}, pooled=zero)
  client = own._replace(init_broadcast=lambda key: first, update=in_one_go(training))
  client = client._replace(needs=fh.Needs(replaces=("extra", "stats")))
  seconds, part = np.random.default_rng(1).lognormal(0.0, 1.0, K), fh.asynchronous.fedbuff(2, 7)
  state, _, whole = run(part, seconds, client=client, mixing=fh.mixing.uniform())
  value, pooled = 0.0, 0.0
  for t, (_, came, _) in enumerate(arrivals(whole, begun(state.key, 2), ROUNDS, 2, 7)):
    ids, s = np.array([i for i, _ in came]), np.array([(1 + t - step) ** -0.5 for _, step in came])
    value += np.mean(s * (ids**2 - value))
    pooled = (s * ids * ids**2).sum() / (s * ids).sum()
  np.testing.assert_allclose([state.broadcast.extra, state.broadcast.stats["var"]], value, rtol=1e-5)
  np.testing.assert_allclose(state.broadcast.pooled, pooled, rtol=1e-5)


def test_fedasync_mixes_the_models_themselves():
  seconds = np.random.default_rng(2).lognormal(0.0, 1.0, K)
  state, infos, whole = run(
    fh.asynchronous.fedasync(6, alpha=0.8, staleness="hinge", slope=2.0, delay=1), seconds
  )
  assert infos.figures["stalest"].max() > 2

  def mixed(theta, sent, base, late):
    weight = 0.8 * (1.0 if late <= 1 else 1.0 / (2.0 * (late - 1) + 1.0))
    return (1 - weight) * theta + weight * sent

  want = by_hand(mixed, even, whole, state.key, 1, 6)
  np.testing.assert_allclose(state.broadcast.params["w"], want[-1], rtol=1e-5)


def test_uploads_that_are_too_late_count_nothing():
  seconds = np.random.default_rng(1).lognormal(0.0, 1.0, K)
  state, _, whole = run(fh.asynchronous.fedbuff(2, 7, max_staleness=1), seconds, mixing=fh.mixing.uniform())
  want = by_hand(
    lambda theta, sent, base, late: theta + ((1 + late) ** -0.5 if late <= 1 else 0.0) * (sent - base),
    even, whole, state.key, 2, 7,
  )  # fmt: skip
  np.testing.assert_allclose(state.broadcast.params["w"], want[-1], rtol=1e-5)


def test_weights_of_staleness():
  late = np.arange(9)
  np.testing.assert_allclose(polynomial(jnp.asarray(late), 0.5), (1 + late) ** -0.5, rtol=1e-6)
  want = [1.0 if t <= 4 else 1 / (10 * (t - 4) + 1) for t in late]
  np.testing.assert_allclose(hinge(jnp.asarray(late)), want, rtol=1e-6)
  assert (np.asarray(constant(jnp.asarray(late))) == 1).all()


@pytest.mark.parametrize(
  "staleness, client",
  [("constant", fh.fedavg), pytest.param("polynomial", fh.scaffold, marks=pytest.mark.slow)],
)
def test_with_as_many_at_once_as_the_server_waits_for_it_is_the_synchronous_run(staleness, client):
  """Bit for bit, whatever the speeds and the cohort size."""
  own, data = client(mlp(), lr=0.1, batch_size=6), federation(SIZES)

  def left(cohort_size, **parts):
    engine = fh.Engine(fh.federated(own, **parts), data, cohort_size)
    state, infos = engine.advance(engine.init(jax.random.key(1)), 3)
    return jax.random.key_data(state.key), state._replace(key=()), infos.cohort, infos.clients

  asynchronous = fh.asynchronous.fedbuff(4, 4, staleness=staleness)
  slow = fh.system.lognormal(sigma=2.0)
  chex.assert_trees_all_equal(left(4), left(1, asynchronous=asynchronous, system=slow))


@pytest.mark.slow
def test_losses_are_those_of_the_arriving_clients_at_the_present_broadcast():
  part, seconds = fh.asynchronous.fedbuff(2, 7), np.random.default_rng(1).lognormal(0.0, 1.0, K)
  infos = run(part, seconds, rounds=3, mixing=fh.mixing.afl())[1]
  before = run(part, seconds, rounds=2, mixing=fh.mixing.afl())[0]
  np.testing.assert_allclose(infos.losses[2], float(before.broadcast.params["w"].sum()), rtol=1e-6)


@pytest.mark.slow
def test_server_seconds_pass_between_steps():
  """Clients work on while the server does: an upload that has come by then is there at once."""
  seconds = np.ones(K)
  algorithm = fh.federated(
    halfway(), asynchronous=fh.asynchronous.fedbuff(2, 4),
    system=of_seconds(seconds)._replace(server_seconds=5.0),
  )  # fmt: skip
  engine = fh.Engine(algorithm, federation(SIZES), 3)
  infos = engine.advance(engine.init(jax.random.key(0)), 4)[1]
  assert infos.elapsed.tolist() == [1.0, 0.0, 0.0, 0.0]


def test_a_system_is_given_where_there_is_none():
  algorithm = fh.federated(halfway(), asynchronous=fh.asynchronous.fedbuff(2, 5))
  assert algorithm.system.name == "constant"
  assert not fh.federated(halfway(), asynchronous=fh.asynchronous.fedbuff(2, 2)).system.there


@pytest.mark.slow
def test_exponents_are_values_of_a_sweep():
  seconds, data = np.random.default_rng(1).lognormal(0.0, 1.0, K), federation(SIZES)

  def make(exponent):
    part = fh.asynchronous.fedbuff(2, 7, exponent=exponent)
    return fh.federated(halfway(), fh.mixing.uniform(), asynchronous=part, system=of_seconds(seconds))

  engine = Members(make, data, {"exponent": [0.0, 0.7]}, 2, 2)
  state, infos = engine.advance(engine.init(jnp.stack([jax.random.key(3)] * 2)), ROUNDS)
  for m, exponent in enumerate((0.0, 0.7)):
    part = fh.asynchronous.fedbuff(2, 7, exponent=exponent)
    alone, own, _ = run(part, seconds, mixing=fh.mixing.uniform())
    assert (infos.cohort[m] == own.cohort).all()
    np.testing.assert_allclose(state.broadcast.params["w"][m], alone.broadcast.params["w"], rtol=1e-6)
  assert abs(np.diff(state.broadcast.params["w"][:, 0])) > 0.1


SIGNAL = halfway()._replace(needs=fh.Needs(uploads_model=False))


@pytest.mark.parametrize("parts, told", [
  (dict(client=SIGNAL, server=fh.server.sgld(4)), "uploads no update"),
  (dict(client=halfway()._replace(update=lambda *args: None)), "does not say how long it trains"),
  (dict(client=halfway()._replace(first_pass=lambda *args: None)), "a pass of the whole cohort"),
  (dict(mixing=fh.mixing.aaggff_d()), "reads the probabilities"),
  (dict(participation=fh.participation.available()), "participation available draws whole cohorts"),
  (dict(system=fh.system.lognormal(deadline=9.0)), "has a deadline or over-selection"),
])  # fmt: skip
def test_parts_that_need_whole_cohorts_are_refused(parts, told):
  with pytest.raises(SettingError, match=f"asynchronous = 'fedbuff': lets clients train .*{told}"):
    fh.federated(**{"client": halfway(), **parts}, asynchronous=fh.asynchronous.fedbuff(2, 5))


@pytest.mark.parametrize("make, told", [
  (lambda: fh.asynchronous.fedbuff(5, 4), "concurrency = 4: fewer clients train than the 5"),
  (lambda: fh.asynchronous.fedbuff(slope=3.0), "slope = 3.0: has no effect with staleness polynomial"),
  (lambda: fh.asynchronous.fedasync(staleness="constant", exponent=1.0), "exponent = 1.0: has no effect"),
  (lambda: fh.asynchronous.fedbuff(staleness="linear"), "staleness = 'linear'"),
  (lambda: run(fh.asynchronous.fedbuff(2, K + 1), np.ones(K)), f"concurrency = {K + 1}: there are {K}"),
  (lambda: fh.Engine(
    fh.federated(halfway(), asynchronous=fh.asynchronous.fedbuff(2, 5)), federation(SIZES), 2, device_rows=50
  ), "device_rows = 50: asynchronous fedbuff starts clients as others are done"),
])  # fmt: skip
def test_settings_that_cannot_be_are_refused(make, told):
  with pytest.raises(SettingError, match=told.replace("(", r"\(")):
    make()


def test_a_user_is_told_whose_place_the_buffer_takes():
  algorithm = fh.federated(halfway(), asynchronous=fh.asynchronous.fedbuff(2, 5))
  (told,) = remarks_of(algorithm, federation(SIZES), 3)
  assert told == "cohort_size: fedbuff takes 2 uploads in each step of the server."
  assert not [*remarks_of(algorithm, federation(SIZES), 2)]


def test_whom_is_idle_is_drawn_uniformly():
  draw = jax.jit(jax.vmap(lambda key: idle(key, jnp.array([2, -1, 5]), K, 3)))
  found = np.asarray(draw(jax.random.split(jax.random.key(0), 4000)))
  assert all(len({*row}) == 3 for row in found)
  counts = np.bincount(found.ravel(), minlength=K)
  assert counts[2] == counts[5] == 0
  wanted = 4000 * 3 / (K - 2)
  assert (((np.delete(counts, [2, 5]) - wanted) ** 2) / wanted).sum() < 30  # chi² of 9 degrees


@pytest.mark.slow
def test_expected_seconds_of_a_step_are_the_mean_of_many():
  part, seconds = fh.asynchronous.fedbuff(2, 5), np.random.default_rng(1).lognormal(0.0, 1.0, K)
  algorithm = fh.federated(
    halfway(), asynchronous=part, system=of_seconds(seconds)._replace(server_seconds=1.0)
  )
  clock = Clock(algorithm, federation(SIZES), 3, jax.random.key(3))
  engine = fh.Engine(algorithm, federation(SIZES), 3)
  infos = engine.advance(engine.init(jax.random.key(3)), 128)[1]
  took = clock.rounds(infos)
  np.testing.assert_array_equal(took, infos.elapsed.astype(float) + 1.0)
  assert abs(clock.expected() - took.mean()) < 4 * took.std() / np.sqrt(len(took))


@pytest.mark.slow
def test_a_launched_run_goes_on_with_the_uploads_that_were_on_their_way(tmp_path):
  parts = dict(
    algorithm={"name": "scaffold"}, asynchronous={"buffer_size": 2, "concurrency": 5},
    system={"name": "lognormal", "sigma": 1.0},
  )  # fmt: skip
  whole = start(config_of(rounds=7, **parts), str(tmp_path / "whole"))
  start(config_of(rounds=3, **parts), str(tmp_path / "part"))
  resumed = start(config_of(rounds=7, **parts), str(tmp_path / "part"))
  for name in ("bytes", "simulated_seconds", "client_steps", "cohort_size"):
    assert resumed[name] == whole[name]
  assert whole["cohort_size"] == 2
  lines = [[{**line, "seconds": 0} for line in records(tmp_path / name)] for name in ("whole", "part")]
  assert lines[0][-1] == lines[1][-1]
