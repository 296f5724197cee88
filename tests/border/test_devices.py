"""The same bits on any number of devices, also where each has a single client.

Programs compiled as users' are have them, and nearly all that the other tests' quick compiler makes: what it
does not is skipped there, and tested with FEDJAX_HET_TEST_COMPILER=own, as `.ci/run` does.
"""

import chex
import jax
import numpy as np
import pytest
from cases import beside, cases, conditions, maker, slow_or_by_hand
from flax import linen as nn
from jax.sharding import PartitionSpec as P
from quick_compiler import FLAGS
from random_runs import differing, drawn

import fedjax_het as fh
from fedjax_het.clients.objective import scale_by_adam
from fedjax_het.engine.batched_runs import Members
from fedjax_het.engine.placement import client_mesh
from fedjax_het.engine.state import in_batches
from fedjax_het.mixing import propfair
from fedjax_het.models.layers.norms import BatchNorm

CLIENTS, SHAPE = 8, (8, 8, 1)  # products of 64 numbers: with four of them a dropped loop goes unnoticed
SIZES = {"one batch": [4] * CLIENTS, "two batches": [8] * CLIENTS, "ragged": [9, 2, 7, 3, 12, 2, 5, 4]}
ROUNDS = 3
as_users = pytest.mark.skipif(
  bool(FLAGS), reason="for FEDJAX_HET_TEST_COMPILER=own, which compiles as users do"
)


CONDITIONS = {f"{section}: {name}": (section, name) for section, name in conditions()}


def maker_of(method: str, sizes: str):
  """A method's, or a condition's beside a method whose clients have states."""
  model, condition = fh.models.two_nn(SHAPE, hidden=16), CONDITIONS.get(method)
  names = beside(condition) if condition else cases()[method]
  count = len(SIZES[sizes])
  return maker(names, model, ROUNDS, count, condition, epochs=1, batch_size=4)


def data_of(sizes: str) -> fh.data.FederatedData:
  rng, sizes = np.random.default_rng(0), SIZES[sizes]
  x = rng.normal(size=(sum(sizes), *SHAPE)).astype(np.float32)
  parts = np.split(np.arange(len(x)), np.cumsum(sizes)[:-1])
  return fh.federate(
    x, rng.integers(0, 10, len(x)), parts, jax.random.key(0), num_classes=10, test_fraction=0.0
  )


def run(method: str, sizes: str, cohort: int, devices: int, client_batch: int = 1):
  """All that three rounds leave, on the host; numbers are the program's values, as in launched runs."""
  make, numbers = maker_of(method, sizes)
  where = dict(devices=devices, client_batch=client_batch)
  engine = fh.Engine(make, data_of(sizes), cohort, settings=numbers, **where)
  state, infos = engine.advance(engine.init(jax.random.key(5)), ROUNDS)
  return jax.tree.map(np.asarray, (state._replace(key=()), infos))


@pytest.mark.parametrize(
  "method", [pytest.param(name, marks=slow_or_by_hand(name)) for name in (*cases(), *CONDITIONS)]
)
def test_one_client_a_device_has_the_bits_of_many(method):
  chex.assert_trees_all_equal(
    run(method, "two batches", CLIENTS, devices=1), run(method, "two batches", CLIENTS, devices=CLIENTS)
  )


@pytest.mark.slow
@pytest.mark.parametrize(
  "sizes, cohort, devices", [("one batch", 5, 8), ("two batches", 8, 4), ("ragged", 8, 8), ("ragged", 5, 4)]
)
def test_cohorts_of_any_share_of_the_devices_have_the_same_bits(sizes, cohort, devices):
  chex.assert_trees_all_equal(run("fedavg", sizes, cohort, 1), run("fedavg", sizes, cohort, devices))


@pytest.mark.slow
def test_three_clients_at_once_have_the_same_bits_on_any_number_of_devices():
  """And the draws of one at a time, but not its bits: stacked products are summed in another order."""
  one, *others = (run("fedavg", "ragged", 8, devices, client_batch=3) for devices in (1, 2, 8))
  for other in others:
    chex.assert_trees_all_equal(one, other)
  infos, single = one[1], run("fedavg", "ragged", 8, 1)[1]
  chex.assert_trees_all_equal((infos.cohort, infos.coefficients, infos.clients.steps),
       (single.cohort, single.coefficients, single.clients.steps))  # fmt: skip
  np.testing.assert_allclose(infos.clients.loss, single.clients.loss, rtol=1e-5)


@pytest.mark.slow
def test_a_member_alone_on_its_device_has_the_bits_of_many():
  data, keys = data_of("two batches"), jax.random.split(jax.random.key(6), 4)
  make, numbers = maker_of("fedavg", "two batches")
  found = []
  for devices in (1, 4):
    engine = Members(lambda: make(**numbers), data, {}, 4, 5, devices=devices)
    state, infos = engine.advance(engine.init(keys), 3)
    found.append(jax.tree.map(np.asarray, (state._replace(key=()), infos)))
  chex.assert_trees_all_equal(*found)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(12), *(pytest.param(seed, marks=as_users) for seed in (30, 47))])
def test_a_random_run_has_the_same_bits_wherever_it_is_computed(seed):
  """More of them by `benchmarks/checks/fuzz_devices.py`."""
  run, place = drawn(seed)
  assert not differing(run, place), (run, place)


@pytest.mark.slow
def test_a_device_with_fewer_clients_than_client_batch_has_the_bits_of_one_with_all():
  """Where one client alone filled a group, XLA knew that its rows are equal, and summed in another order."""
  rng, sizes = np.random.default_rng(13), (300, 11, 10, 10, 5)
  x = rng.normal(size=(sum(sizes), 7)).astype(np.float32)
  parts = np.split(rng.permutation(len(x)), np.cumsum(sizes)[:-1])
  data = fh.federate(
    x, rng.integers(0, 4, len(x)), parts, jax.random.key(1), num_classes=4, test_fraction=0.0
  )
  client = fh.fedavg(fh.models.two_nn((7,), 4, hidden=9), lr=0.05, epochs=2, batch_size=3)

  def left(devices):
    engine = fh.Engine(fh.federated(client, propfair()), data, 2, devices=devices, client_batch=2)
    state, infos = engine.advance(engine.init(jax.random.key(0)), 6)
    return jax.tree.map(np.array, (state._replace(key=()), infos))

  chex.assert_trees_all_equal(left(1), left(2))


@pytest.mark.slow
@pytest.mark.parametrize("method", [pytest.param("fedevg", marks=as_users), "fedcvae", "fedcgan"])
def test_clients_side_by_side_that_train_by_adam_have_the_same_bits_on_any_number_of_devices(method):
  chex.assert_trees_all_equal(*(run(method, "ragged", 2, devices, client_batch=2) for devices in (1, 2)))


def on_one_device_and_two(fn, *args):
  """What clients side by side compute by `fn` on one device, and on each of two."""
  for devices in (1, 2):
    mapped = jax.shard_map(
      jax.vmap(fn), mesh=client_mesh(devices), in_specs=P(), out_specs=P(), check_vma=False
    )
    yield jax.jit(mapped)(*args)


def test_adam_of_clients_side_by_side_divides_alike_on_one_device_and_on_two():
  """Leaves of one shape are divided by 1 - β^t, which XLA replaced by products on one device alone."""

  def step(leaves, count, b1, b2):
    adam = scale_by_adam(b1, b2)
    tree = {"a": leaves[0], "b": leaves[1]}
    return adam.update(tree, adam.init(tree)._replace(count=count))[0]

  leaves, decays = jax.random.normal(jax.random.key(0), (2, 2, 100)), np.float32([[0.9] * 2, [0.999] * 2])
  chex.assert_trees_all_equal(*on_one_device_and_two(step, leaves, np.int32([3, 7]), *decays))


class Normalised(nn.Module):
  """Two hidden layers with batch normalisation, whose sums are divided by the number of real rows."""

  @nn.compact
  def __call__(self, x, train=False):
    x = x.reshape(len(x), -1)
    for name in ("first", "second"):
      x = nn.relu(BatchNorm(name=name)(nn.Dense(9)(x), train))
    return nn.Dense(10)(x)


@pytest.mark.slow
@pytest.mark.parametrize(
  "model",
  [fh.models.from_flax(Normalised(), SHAPE, 10), fh.models.energy_mlp(SHAPE, 10)],
  ids=["batch norm", "spectral norm"],
)
def test_clients_side_by_side_with_a_normalised_model_have_the_same_bits_on_any_number_of_devices(model):
  """Both models divide by numbers that each client has of its own."""
  client = fh.fedavg(model, lr=0.05, epochs=2, batch_size=4)

  def left(devices):
    engine = fh.Engine(fh.federated(client), data_of("ragged"), 3, devices=devices, client_batch=2)
    state, infos = engine.advance(engine.init(jax.random.key(5)), 2)
    return jax.tree.map(np.asarray, (state._replace(key=()), infos))

  one = left(1)
  for devices in (2, 3):
    chex.assert_trees_all_equal(one, left(devices))


@pytest.mark.slow
def test_a_client_has_its_place_in_its_group_on_any_number_of_devices():
  """A convolution's bits depend on the place: its sums cross the clients of a group in vectors."""
  model = fh.models.make("two_cnn", (12, 12, 1), 3)
  rng, sizes = np.random.default_rng(0), (9, 2, 7, 3, 12, 2, 5, 4)
  x, parts = (
    rng.normal(size=(44, 12, 12, 1)).astype(np.float32),
    np.split(np.arange(44), np.cumsum(sizes)[:-1]),
  )
  data = fh.federate(x, rng.integers(0, 3, 44), parts, jax.random.key(0), num_classes=3, test_fraction=0.0)
  algorithm = fh.federated(fh.fedavg(model, lr=0.05, epochs=1, batch_size=4))

  def left(devices):
    engine = fh.Engine(algorithm, data, 3, devices=devices, client_batch=2)
    state, infos = engine.advance(engine.init(jax.random.key(5)), 2)
    metrics = engine.evaluate(state, "train")
    return jax.tree.map(np.asarray, (state._replace(key=()), infos, metrics))

  chex.assert_trees_all_equal(left(1), left(2))


@pytest.mark.slow
@pytest.mark.parametrize("states, batch", [(1, 3), (3, 4), (2, 9)])
def test_blocks_of_clients_that_are_smaller_than_client_batch_change_no_metric(states, batch):
  """An evaluation of two clients at once has the bits of one of all."""
  model = fh.models.two_nn(SHAPE, hidden=16)
  algorithm = fh.federated(fh.ditto(model, epochs=1, batch_size=4))

  def metrics(**where):
    engine = fh.Engine(algorithm, data_of("ragged"), 1, devices=1, client_batch=batch, **where)
    return engine.evaluate(engine.advance(engine.init(jax.random.key(5)), 1)[0], "train")

  chex.assert_trees_all_equal(metrics(), metrics(device_states=states))


@pytest.mark.slow
def test_members_side_by_side_have_the_same_bits_on_any_number_of_devices():
  data, keys = data_of("two batches"), jax.random.split(jax.random.key(6), 5)
  make, numbers = maker_of("fedavg", "two batches")
  found = []
  for devices in (1, 2, 4):
    engine = Members(lambda: make(**numbers), data, {}, 5, 5, devices=devices, member_batch=2)
    state, infos = engine.advance(engine.init(keys), 3)
    found.append(jax.tree.map(np.asarray, (engine.to_save(state)._replace(key=()), infos)))
  for other in found[1:]:
    chex.assert_trees_all_equal(found[0], other)


@pytest.mark.parametrize("num_clients", [1, 3, 16, 19])
def test_first_states_are_made_in_groups_of_one_size(num_clients):
  """Whatever share of the numbers is asked for: a product of fewer rows is summed in another order."""
  weights = jax.random.normal(jax.random.key(0), (67, 5))

  def own(i):
    x = jax.random.normal(jax.random.fold_in(jax.random.key(1), i), (67,))
    return {"sum": x @ weights, "number": i}

  everybody = jax.jit(lambda ids: in_batches(own, ids, num_clients))(np.arange(num_clients))
  np.testing.assert_array_equal(everybody["number"], np.arange(num_clients))
  for some in ([0], [num_clients - 1], range(num_clients // 2, num_clients)):
    ids = np.array(some)
    found = jax.jit(lambda ids: in_batches(own, ids, num_clients))(ids)
    chex.assert_trees_all_equal(found, jax.tree.map(lambda leaf: leaf[ids], everybody))
