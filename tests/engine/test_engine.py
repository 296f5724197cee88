"""The engine's own arithmetic: batches, placement, errors and the clock."""

import contextlib
import dataclasses
import gc
import time

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import with_every
from small_parts import SIZES, federation, mlp, one_client, round_draws

from fedjax_het import mixing, server
from fedjax_het.clients.fedevg import fedevg
from fedjax_het.clients.sgd import fedavg
from fedjax_het.clients.superfed import superfed
from fedjax_het.data.container import view_axes
from fedjax_het.engine import cpu
from fedjax_het.engine.compile_cache import uncollected
from fedjax_het.engine.engine import Engine
from fedjax_het.engine.placement import client_mesh, map_clients, over_clients
from fedjax_het.engine.round import MAX_CHUNK
from fedjax_het.engine.run import run
from fedjax_het.errors import NonFiniteLoss, SettingError
from fedjax_het.federated import federated
from fedjax_het.local import for_each_batch, shuffle, steps_per_epoch
from fedjax_het.models import two_nn
from fedjax_het.parts import Context

LOCAL = dict(lr=0.1, epochs=1, batch_size=4)


@pytest.mark.parametrize("cohort_size", [0, -1, 13])
def test_impossible_cohorts_are_named(ragged, cohort_size):
  with pytest.raises(SettingError, match=f"^cohort_size = {cohort_size}: there are 12 clients"):
    Engine(federated(fedavg(mlp())), ragged, cohort_size)


@pytest.mark.parametrize(
  "changed, message",
  [
    ({"devices": 0}, "^devices = 0: out of range"),
    ({"devices": 99}, "^devices = 99: .* have 8 devices in all. Use 1 to 8"),
    ({"devices": 1.5}, "^devices = 1.5: must be a whole number"),
    ({"cohort_size": 1.5}, "^cohort_size = 1.5: must be a whole number"),
    ({"cohort_size": "2"}, "^cohort_size = '2': not a number"),
    ({"rounds": None}, "^rounds = None: not a number"),
    ({"cohort_size": (1, 2)}, r"^cohort_size = \(1, 2\): not a number"),
    ({"rounds": {"a": 1}}, "^rounds = .*: not a number"),
    ({"rounds": 1.5}, "^rounds = 1.5: must be a whole number"),
    ({"key": 3}, r"^key = 3: not a key. Use key=jax.random.key\(3\)"),
    ({"key": None}, r"^key = None: .*jax.random.key\(0\)"),
  ],
)
def test_impossible_runs_are_named_before_any_compile(changed, message, ragged, monkeypatch):
  monkeypatch.setattr(jax, "jit", None)
  settings = dict(rounds=1, cohort_size=2, key=jax.random.key(0), devices=1) | changed
  with pytest.raises(SettingError, match=message):
    run(federated(fedavg(mlp())), ragged, **settings)


@pytest.mark.slow
def test_an_update_in_the_method_s_place_is_what_trains(ragged):
  """Also where the engine would cut the method's own: on devices that do not divide the cohort."""
  base = fedavg(mlp())
  mine = base._replace(
    update=lambda key, broadcast, *rest: (broadcast, *base.update(key, broadcast, *rest)[1:])
  )
  assert base.training is not None and mine.training is None
  for devices in (1, 2):
    found = run(federated(mine), ragged, rounds=1, cohort_size=3, key=jax.random.key(0), devices=devices)
    start = Engine(federated(mine), ragged, 3, devices=devices).init(jax.random.key(0)).broadcast
    chex.assert_trees_all_close(found.state.broadcast.params, start.params, atol=1e-6)


def test_a_key_of_another_generator_is_named(ragged):
  key = jax.random.key(0, impl="rbg")
  with pytest.raises(SettingError, match=r"key = .*: a key of"):
    run(federated(fedavg(mlp())), ragged, rounds=1, cohort_size=2, key=key, devices=1)


def test_fair_mixing_of_one_client_a_round_is_refused(ragged):
  algorithm = federated(fedavg(mlp()), mixing.term())
  with pytest.raises(SettingError, match=r"cohort_size = 1: .* would be FedAvg"):
    run(algorithm, ragged, rounds=1, cohort_size=1, key=jax.random.key(0), devices=1)


@pytest.mark.parametrize(
  "parts, message",
  [
    ((fedavg(mlp()), mixing.static), r"mixing = 'static': is not a Mixing. Call the factory: static\(...\)"),
    (
      (mixing.static(), fedavg(mlp())),
      "client = 'Mixing': is not a ClientUpdate. Give client, mixing, server",
    ),
    ((fedavg(mlp()), None, 0.1), "server = 'float': is not a ServerUpdate"),
    (
      (fedevg(mlp(), per_class=1),),
      "server = 'sgd': does not take the signals that fedevg uploads. .*such as sgld",
    ),
    (
      (fedavg(mlp()), None, server.sgld(rounds=1)),
      "server = 'sgld': does not take the models that fedavg uploads. .*such as sgd",
    ),
  ],
)
def test_what_is_no_part_or_no_pair_is_named(parts, message):
  with pytest.raises(SettingError, match=message):
    federated(*parts)


# Batches.


def visits(data, ids, batch_size, epochs):
  """How often, and in how many batches, each client of `ids` visits each of its rows, under vmap."""

  def one(view, key):
    def step(carry, batch):
      counts, weights, steps = carry
      row = batch.x[:, 0].astype(jnp.int32)  # each example carries its own row number
      return counts.at[row].add(batch.weight), weights.at[steps].set(batch.weight.sum()), steps + 1

    start = (jnp.zeros(len(data.x)), jnp.zeros(200), jnp.int32(0))
    return for_each_batch(key, view, batch_size, epochs, step, start)

  view = data.clients(jnp.asarray(ids))
  keys = jax.random.split(jax.random.key(1), len(ids))
  mapped = jax.vmap(one, in_axes=(view_axes(view), 0))
  return jax.tree.map(np.asarray, jax.jit(mapped)(view, keys))


def numbered(sizes):
  data = federation(sizes)
  return dataclasses.replace(data, x=jnp.tile(jnp.arange(len(data.x), dtype=jnp.float32)[:, None], (1, 4)))


@pytest.mark.parametrize("sizes", [SIZES, (8,) * 4])
@pytest.mark.parametrize("batch_size", [1, 4, 7, 64])
def test_every_row_is_visited_once_an_epoch(sizes, batch_size):
  data, epochs = numbered(sizes), 3
  counts, weights, steps = visits(data, range(len(sizes)), batch_size, epochs)
  for i, size in enumerate(sizes):
    expected = np.zeros(len(data.x))
    start = int(data.train.start[i])
    expected[start : start + size] = epochs
    np.testing.assert_array_equal(counts[i], expected)
    per_epoch = -(-size // batch_size)
    assert steps[i] == epochs * per_epoch
    last = size - (per_epoch - 1) * batch_size
    full = [min(batch_size, size)] * (per_epoch - 1) + [last]
    np.testing.assert_array_equal(weights[i, : steps[i]], full * epochs)
    assert not weights[i, steps[i] :].any()


@pytest.mark.parametrize("sizes", [(8, 3, 1), (8,) * 2])
def test_a_batch_above_the_largest_client_has_no_more_rows_than_that_client(sizes):
  data, seen = federation(sizes), []

  def step(steps, batch):
    seen.append(len(batch.weight))
    return steps + 1

  client = one_client(data, 1)
  steps = for_each_batch(jax.random.key(0), client, 1000, 2, step, jnp.int32(0))
  assert steps == 2 and seen == [8] and steps_per_epoch(client, 2**31 - 1) == 1


def test_order_is_random_and_new_each_epoch(ragged):
  orders = [np.asarray(shuffle(jax.random.key(k), one_client(ragged, 0), 40)) for k in range(3)]
  assert all(sorted(order) == list(range(40)) for order in orders)
  assert len({tuple(order) for order in [*orders, range(40)]}) == 4
  firsts = jax.vmap(lambda key: shuffle(key, one_client(ragged, 2), 8)[0])(
    jax.random.split(jax.random.key(0), 1400)
  )
  counts = np.bincount(firsts, minlength=7)
  assert (
    len(counts) == 7 and ((counts - 200) ** 2 / 200).sum() < 22.5
  )  # χ² of 6 degrees of freedom, p = 0.001


# Placement.


@pytest.mark.slow
@pytest.mark.parametrize("devices", with_every([1, 2, 3, 8], 1, 3))
@pytest.mark.parametrize("client_batch", with_every([1, 2, None], 2, None))
def test_mapping_gives_each_client_its_own(ragged, devices, client_batch):
  """Numbers of clients that the devices or the batch divide, and that they do not."""
  mesh = client_mesh(devices)

  def what(shared, view, i, tree):
    return {
      "start": view.start + shared,
      "size": view.size,
      "id": i,
      "row": view.take(jnp.int32(0))[0],
      "t": tree,
    }

  @jax.jit
  def mapped(key, count):
    ids = jax.random.permutation(key, 12)[: count.shape[0]]
    return ids, map_clients(what, mesh, client_batch, jnp.int32(1000), ragged.clients(ids), ids, (2 * ids,))

  for count in (1, 3, 5, 7, 12):
    ids, found = mapped(jax.random.key(count), jnp.zeros(count))
    own = ragged.clients(ids)
    expected = {
      "start": own.start + 1000,
      "size": own.size,
      "id": ids,
      "row": ragged.x[own.start],
      "t": (2 * ids,),
    }
    chex.assert_trees_all_equal(found, expected)


@pytest.mark.slow
def test_client_states_are_spread_where_they_divide(ragged):
  assert over_clients(client_mesh(4), 12).spec == jax.sharding.PartitionSpec("clients")
  assert over_clients(client_mesh(8), 12).spec == jax.sharding.PartitionSpec()
  engine = Engine(federated(superfed(mlp(), **LOCAL)), ragged, 3, devices=4)
  state, _ = engine.advance(engine.init(jax.random.key(0)), 1)
  leaf = jax.tree.leaves(state.clients)[0]
  assert [shard.data.shape[0] for shard in leaf.addressable_shards] == [3] * 4


@pytest.mark.slow
def test_company_is_irrelevant(ragged):
  """All in one vmap: a client's results do not depend on its slot or on who is trained beside it."""
  client = superfed(mlp(), **LOCAL)
  broadcast = client.init_broadcast(jax.random.key(0))

  @jax.jit
  def train(ids):
    keys = jax.vmap(lambda i: jax.random.fold_in(jax.random.key(1), i))(ids)
    local = jax.vmap(lambda key: client.init(key, broadcast, None, Context()))(keys)

    def one(shared, view, key, own):
      return client.update(key, shared, own, view, Context())

    return map_clients(one, client_mesh(1), None, broadcast, ragged.clients(ids), keys, local)

  pick = lambda tree, slots: jax.tree.map(lambda leaf: leaf[np.asarray(slots)], tree)  # noqa: E731
  ids = jnp.array([4, 2, 10, 3, 9])
  alone = train(ids)
  for others, slots in (([3, 4, 9, 10, 2], [1, 4, 3, 0, 2]), ([4, 2, 10, 3, 0], [0, 1, 2, 3])):
    found = pick(train(jnp.array(others)), slots)
    chex.assert_trees_all_equal(found, pick(alone, range(len(slots))))


# Chunks, errors, the clock.


@pytest.mark.parametrize("rounds", [0, -1, MAX_CHUNK + 1])
def test_chunks_have_a_length(ragged, rounds):
  engine = Engine(federated(fedavg(mlp(), **LOCAL)), ragged, 5, devices=1)
  with pytest.raises(ValueError, match=f"num_rounds = {rounds}"):
    engine.advance(engine.init(jax.random.key(0)), rounds)


@pytest.mark.slow
def test_infos_have_a_row_a_round(ragged):
  engine = Engine(federated(fedavg(mlp(), **LOCAL)), ragged, 5, devices=1)
  state = engine.init(jax.random.key(0))
  expected = []
  for t in range(3):
    expected.append(round_draws(state._replace(round=jnp.int32(t)), 12, 5)[0])
  state, infos = engine.advance(state, 3)
  np.testing.assert_array_equal(infos.cohort, expected)
  assert int(state.round) == 3
  sizes = np.asarray(SIZES)[infos.cohort]
  np.testing.assert_array_equal(infos.clients.steps, -(-sizes // 4))
  np.testing.assert_allclose(infos.coefficients, sizes / sizes.sum(1, keepdims=True), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_a_nan_names_its_round_and_client(ragged, devices):
  """The message counts rounds from 1, as people do."""
  broken = 7
  rows = slice(int(ragged.train.start[broken]), int(ragged.train.start[broken]) + 1)
  data = dataclasses.replace(ragged, x=ragged.x.at[rows].set(jnp.nan))
  engine = Engine(federated(fedavg(mlp(), **LOCAL)), data, 2, devices=devices)
  state = engine.init(jax.random.key(1))
  first = next(t for t in range(50) if broken in round_draws(state._replace(round=jnp.int32(t)), 12, 2)[0])
  assert first > 1
  state, _ = engine.advance(state, first - 1)
  with pytest.raises(NonFiniteLoss, match=rf"became nan in round {first + 1} at client {broken}\."):
    engine.advance(state, 4)


@pytest.mark.slow
def test_seconds_are_accounted(ragged):
  started = time.perf_counter()
  engine = Engine(federated(fedavg(mlp(), **LOCAL)), ragged, 5, devices=1)
  assert engine.seconds == (0.0, 0.0, 0.0)
  state = engine.init(jax.random.key(0))
  initialised = engine.seconds
  assert initialised.compile > 0 and initialised.train == initialised.eval == 0
  state, _ = engine.advance(state, 1)
  trained = engine.seconds
  assert trained.compile > initialised.compile and trained.train > 0 and trained.eval == 0
  engine.evaluate(state)
  evaluated = engine.seconds
  assert evaluated.compile > trained.compile and evaluated.train == trained.train and evaluated.eval > 0
  state, _ = engine.advance(state, 2)
  engine.evaluate(state)
  assert engine.seconds.compile == evaluated.compile
  assert engine.seconds.train > evaluated.train and engine.seconds.eval > evaluated.eval
  assert sum(engine.seconds) <= time.perf_counter() - started


@pytest.mark.slow
@pytest.mark.parametrize("method", [fedavg, superfed])
def test_a_first_state_has_the_bits_of_a_fully_optimised_program(monkeypatch, ragged, method):
  model, states = two_nn((4,), 3, hidden=64), []
  for level in (2, 3):
    monkeypatch.setattr(cpu, "OPTIONS", {"xla_backend_optimization_level": level})
    states.append(Engine(federated(method(model)), ragged, 2).init(jax.random.key(0)))
  chex.assert_trees_all_equal(*states)


def test_nothing_is_collected_while_a_program_is_made(ragged):
  seen, at_work, often = [], [], gc.get_threshold()
  engine = Engine(federated(fedavg(mlp(), **LOCAL)), ragged, 2, devices=1)

  @contextlib.contextmanager
  def doing(what):
    at_work.append(what)
    yield
    at_work.pop()

  engine.doing = doing
  gc.set_threshold(700, 10, 10)  # Python's own
  gc.callbacks.append(lambda phase, _: seen.append(at_work[-1:]))
  try:
    engine.compile()
  finally:
    gc.callbacks.pop()
    gc.set_threshold(*often)
  assert ["compiling the rounds"] not in seen and engine.seconds.compile > 0


@pytest.mark.parametrize("collecting", [True, False])
def test_python_collects_as_before_once_a_program_is_made(collecting):
  (gc.enable if collecting else gc.disable)()
  try:
    with pytest.raises(KeyError), uncollected():
      assert not gc.isenabled()
      raise KeyError
    assert gc.isenabled() == collecting
  finally:
    gc.enable()
