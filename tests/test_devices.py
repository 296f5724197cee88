"""The same bits on any number of devices, also where each has a single client."""

import chex
import jax
import numpy as np
import pytest
from cases import cases, maker

import fedjax_het as fh
from fedjax_het.engine.members import Members

CLIENTS, SHAPE = 8, (8, 8, 1)  # products of 64 numbers: with four of them a dropped loop goes unnoticed
SIZES = {"one batch": [4] * CLIENTS, "two batches": [8] * CLIENTS, "ragged": [9, 2, 7, 3, 12, 2, 5, 4]}
ROUNDS = 3


def maker_of(method: str, sizes: str):
  model = fh.models.two_nn(SHAPE, hidden=16)
  return maker(cases()[method], model, rounds=ROUNDS, num_clients=len(SIZES[sizes]), epochs=1, batch_size=4)


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


@pytest.mark.slow
@pytest.mark.parametrize("method", cases())
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
