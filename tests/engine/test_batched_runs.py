"""Members' examples: each once on a device, or brought over in time; and what a member's server sends."""

import contextlib

import jax
import numpy as np
import pytest
from small_parts import federation, linear, mlp

import fedjax_het as fh
from fedjax_het.data.container import FederatedData
from fedjax_het.engine import batched_runs
from fedjax_het.engine.batched_runs import Members
from fedjax_het.engine.divergence import Divergence
from fedjax_het.engine.side_by_side import Fields, form, pooled, size, smallest, stacked, whole

SIZES = (9, 1, 7, 3, 12, 2, 9, 1, 10, 5, 4, 11) * 2  # the largest nine have 93 of 196
WIDTH, ROWS = 4, 200


def split(seed: int, labels=None, **settings) -> FederatedData:
  """The same 200 examples, which every seed divides among ten clients and orders in its own way."""
  rng = np.random.default_rng(0)
  x, y = rng.normal(size=(ROWS, WIDTH)).astype(np.float32), rng.integers(0, 3, ROWS)
  parts = np.array_split(np.random.default_rng(seed).permutation(ROWS), 10)
  y = y if labels is None else labels(y)
  return fh.federate(x, y, parts, jax.random.key(seed), num_classes=3, valid_fraction=0.2, **settings)


def of(fields: Fields, m: int) -> Fields:
  return fields._replace(own=jax.tree.map(lambda leaf: leaf[m], fields.own))


def same(one, other):
  jax.tree.map(np.testing.assert_array_equal, one, other)


def test_pooled_examples_are_each_once_and_every_member_finds_its_own():
  data = [split(0), split(1), split(2, lambda y: (y + (np.arange(ROWS) < 7)) % 3)]
  data.append(data[1])  # another setting with one seed's data
  fields, statics = pooled(data), form(data)
  table = np.column_stack([fields.common["x"], fields.common["y"]])
  assert len(table) == len(np.unique(table, axis=0)) == ROWS + 7  # seven labels differ in one member
  for m, each in enumerate(data):
    own = whole(statics, of(fields, m))
    for part in ("train", "valid", "test"):
      for i in range(10):
        index = np.arange(getattr(each, part).size[i])
        same(own.clients(i, part).take(index), each.clients(i, part).take(index))


def test_what_takes_less_memory_lies_on_a_device():
  """Examples that each client scales by its own are others in every member."""
  alike, apart = [split(s) for s in range(4)], [split(s, standardize=(0, 1)) for s in range(4)]
  assert smallest(alike, 4).common.keys() == {"x", "y"} and not smallest(apart, 4).common
  assert not smallest(alike, 1).common  # a member a device has nobody to share with
  assert {*smallest(alike[:1], 1).common} >= {"x", "y", "train"}
  assert size(smallest(alike, 4).common) == ROWS * 4 * (WIDTH + 1)


def make(nu):
  """A method whose clients look at their examples first, and when they are judged."""
  base = fh.superfed(mlp(), nu=nu, start_round=0, lr=0.1, epochs=1, batch_size=4)

  def first(data):
    return data.take(jax.numpy.arange(1))[0].mean()

  def init(key, broadcast, data, context):
    return jax.tree.map(lambda leaf: leaf + first(data), base.init(key, broadcast, data, context))

  def personalize(broadcast, state, data, context, lam):
    model = base.personalize(broadcast, state, data, context, lam)
    return jax.tree.map(lambda leaf: leaf + first(data), model)

  needs = fh.Needs(sees_data=("init", "personalize"))
  return fh.federated(base._replace(init=init, personalize=personalize, needs=needs))


def swept(data, device_rows=None):
  """Three members on two devices, all that they leave."""
  settings = dict(seeds=[3, 7, 8], data=data, rounds=5, cohort_size=3, eval_every=2, devices=2)
  found = fh.sweep(make, {"nu": [1.0]}, **settings, device_rows=device_rows)
  return found.state._replace(key=jax.random.key_data(found.state.key)), *found[2:5]


@pytest.mark.slow
def test_examples_of_all_members_may_stay_on_the_host():
  same(swept(federation(SIZES), 190), swept(federation(SIZES)))


@pytest.mark.slow
def test_each_members_examples_may_stay_on_the_host_or_lie_together(monkeypatch):
  data = [split(s) for s in range(3)]
  together, streamed = swept(data), swept(data, 170)
  monkeypatch.setattr(batched_runs, "smallest", lambda data, held: stacked(data))
  apart = swept(data)
  same(streamed, apart)
  # The same bits too as users' programs are compiled; these tests' compiler rounds some sums otherwise.
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), together, apart)


def test_too_little_room_for_the_members_cohorts_is_named():
  """Members of one seed have one cohort; members of several have so many, on data of all or their own."""

  def on(data, count, rows, seeds=None, **options):
    algorithm = fh.federated(fh.fedavg(linear(), epochs=1))
    return Members(lambda: algorithm, data, {}, count, 3, devices=1, device_rows=rows, seeds=seeds, **options)

  on(federation(SIZES), 3, 70, seeds=1)
  for batch in (0, -1, 1.5):
    with pytest.raises(fh.SettingError, match=f"^member_batch = {batch}"):
      on(federation(SIZES), 3, 70, seeds=1, member_batch=batch)
  with pytest.raises(
    fh.SettingError, match=r"^device_rows = 185: half of them is a window, and the largest 9 clients have 93 "
  ):
    on(federation(SIZES), 3, 185)
  with pytest.raises(fh.SettingError, match=r"largest 3 clients of each of 2 members have 78 .*400"):
    on([split(0), split(1)], 2, 155)


def sends(boost):
  """FedAvg whose server multiplies what it sends."""
  parts = fh.federated(fh.fedavg(linear(), lr=0.1, epochs=1, batch_size=4))

  def update(key, state, broadcast, aggregate):
    broadcast, state = parts.server.update(key, state, broadcast, aggregate)
    return broadcast._replace(params=jax.tree.map(lambda leaf: boost * leaf, broadcast.params)), state

  return parts._replace(server=parts.server._replace(update=update))


def test_programs_are_kept_by_the_rows_that_values_ask_for():
  """More clients come with the second probabilities than the first program has rows for."""
  keys, kept = jax.random.split(jax.random.key(5), 2), {}
  client = fh.fedavg(linear(), lr=0.1, epochs=1, batch_size=4)

  def arrived(probability, programs):
    make = lambda q: fh.federated(client, participation=fh.participation.poisson(probability=q))  # noqa: E731
    engine = Members(make, federation(SIZES), {"q": probability}, 2, 2, devices=1)
    engine.keep_programs(programs)
    return engine.rows, engine.advance(engine.init(keys), 2)[1]

  few, _ = arrived([0.01, 0.02], kept)
  rows, found = arrived([0.8, 0.9], kept)
  assert rows > few and found.present.shape[-1] == rows
  same(found, arrived([0.8, 0.9], {})[1])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:cohort_size")
@pytest.mark.parametrize("parts", [
  dict(system=fh.system.lognormal(sigma=1.0, step_seconds=0.25, deadline=2.0)),
  dict(
    asynchronous=fh.asynchronous.fedbuff(buffer_size=2, concurrency=4), system=fh.system.lognormal(sigma=1.0)
  ),
])  # fmt: skip
def test_a_member_s_clock_goes_by_its_own_data(parts):
  """Of data whose clients are equally large, each member's in its own size."""

  def make(lr):
    return fh.federated(fh.fedavg(linear(), lr=lr, epochs=1, batch_size=4), **parts)

  data, own = [federation((24,) * 6), federation((8,) * 6)], dict(rounds=3, cohort_size=3, client_batch=1)
  swept = fh.sweep(make, {"lr": [0.1]}, [0, 1], data=data, devices=1, **own)
  for m, (clients, seed) in enumerate(zip(data, (0, 1))):
    alone = fh.run(make, clients, key=jax.random.key(seed), settings={"lr": 0.1}, devices=1, **own)
    same(swept.infos.clients.steps[m], alone.infos.clients.steps)
    same(swept.infos.cohort[m], alone.infos.cohort)
    same(jax.tree.map(lambda leaf: leaf[m], swept.infos.elapsed), alone.infos.elapsed)


@pytest.mark.slow
def test_a_member_whose_server_sends_what_is_not_finite_has_diverged():
  """No loss tells: the last round's was finite."""
  settings = dict(data=federation(SIZES), rounds=1, cohort_size=3, devices=1)
  result = fh.sweep(sends, {"boost": [1.0, np.inf]}, **settings)
  assert result.diverged == [None, Divergence(1)] and np.isfinite(result.infos.clients.loss).all()
  top1 = [own["global"]["top1"]["mean"] for own in result.metrics]
  assert np.isfinite(top1[0]) and np.isnan(top1[1])
  assert "What the server sends became NaN or infinite by round 1" in str(result.diverged[1])


@pytest.mark.slow
def test_a_sweep_whose_servers_all_send_what_is_not_finite_ends():
  with pytest.raises(fh.NonFiniteLoss, match=r"inf}: What the server sends .* by round 1, though .*rates\.$"):
    fh.sweep(sends, {"boost": [np.inf]}, data=federation(SIZES), rounds=3, cohort_size=3, devices=1)


def test_programs_of_other_values_are_taken_over():
  """The second engine compiles nothing, and ends with the bits of one that compiles for itself."""
  keys, told = jax.random.split(jax.random.key(1), 2), []

  def trained(nu, programs):
    engine = Members(make, split(0), {"nu": nu}, 2, 3, devices=1)
    engine.doing = lambda what: contextlib.nullcontext(told.append(what))
    engine.keep_programs(programs)
    state, infos = engine.advance(engine.init(keys), 2)
    return infos, engine.evaluate(state, "valid")

  kept = {}
  trained([1.0, 2.0], kept)
  compiled = len(told)
  found = trained([0.5, 3.0], kept)
  assert len(told) == compiled > 0
  same(found, trained([0.5, 3.0], {}))
  with pytest.raises(TypeError):  # three members are another program
    three = Members(make, split(0), {"nu": [1.0] * 3}, 3, 3, devices=1)
    three.keep_programs(kept)
    three.init(jax.random.split(jax.random.key(1), 3))


def test_members_states_are_advanced_in_their_own_buffers():
  """SCAFFOLD's states of forty clients are nearly all of the program's memory; a second copy would show."""

  def made(lr):
    return fh.federated(fh.scaffold(mlp(hidden=4096), lr=lr, epochs=1, batch_size=4))

  engine = Members(made, federation((5,) * 40), {"lr": [0.1, 0.2, 0.3]}, 3, 2, devices=1)
  state = engine.init(jax.random.split(jax.random.key(2), 3))
  states = sum(leaf.nbytes for leaf in jax.tree.leaves(state.clients))
  engine.advance(state, 2)
  used = engine._compiled["advance"].memory_analysis()
  assert used.alias_size_in_bytes >= states > used.temp_size_in_bytes


def test_members_may_differ_in_their_keys_alone():
  """Without settings, and with common data, a member's state is all that it has."""
  keys = jax.random.split(jax.random.key(2), 2)
  client = fh.fedavg(linear(), lr=0.1, epochs=1, batch_size=4)
  engine = Members(lambda: fh.federated(client), federation(SIZES), {}, 2, 3, devices=1)
  state, _ = engine.advance(engine.init(keys), 1)
  alone = fh.Engine(fh.federated(client), federation(SIZES), 3, devices=1)
  for m, key in enumerate(keys):
    own, _ = alone.advance(alone.init(key), 1)
    same(jax.tree.map(lambda leaf, m=m: leaf[m], state.broadcast.params), own.broadcast.params)
