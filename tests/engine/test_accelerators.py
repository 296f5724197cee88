"""What is done otherwise where the backend is no CPU, tried on CPUs: the same numbers, but for rounding."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_het as fh
from fedjax_het.clients.objective import updates_barrier
from fedjax_het.engine.batched_runs import Members
from fedjax_het.engine.placement import client_mesh, weighted_sum
from fedjax_het.local import trips
from fedjax_het.models.layers import convolution
from fedjax_het.models.layers.product import product


@pytest.fixture
def gpu(monkeypatch):
  """A context in which the backend calls itself a GPU."""

  def call(function, *args):
    with monkeypatch.context() as patch:
      patch.setattr(jax, "default_backend", lambda: "gpu")
      return function(*args)

  return call


def clients(sizes):
  rng = np.random.default_rng(0)
  rows = sum(sizes)
  return fh.federate(
    rng.integers(0, 256, (rows, 8, 8, 2), np.uint8), rng.integers(0, 3, rows),
    np.split(np.arange(rows), np.cumsum(sizes)[:-1]), jax.random.key(0), num_classes=3, test_fraction=0.0,
  )  # fmt: skip


def linear():
  return fh.models.two_nn((8, 8, 2), 3, hidden=4)


@pytest.mark.parametrize(
  "method, sizes, cohort, epochs",
  [
    ("fedavg", [8] * 4, 3, 1),
    ("fedavg", [3, 9, 1, 7], 2, 2),
    pytest.param("superfed_mm", [5], 1, 1, marks=pytest.mark.slow),
    pytest.param("superfed_mm", [3, 9, 1], 3, 1, marks=pytest.mark.slow),
    pytest.param("apfl", [3, 9, 1], 2, 1, marks=pytest.mark.slow),
    pytest.param("pfedme", [4, 4], 1, 1, marks=pytest.mark.slow),
  ],
)
def test_rounds_are_those_of_a_cpu(gpu, method, sizes, cohort, epochs):
  """All clients of a cohort side by side, sums at once, updates as they come, windows by places."""

  def rounds():
    model = fh.models.two_cnn((8, 8, 2), 3, hidden=2, dense=4, conv="patches")
    client = getattr(fh, method)(model, epochs=epochs, batch_size=3)
    engine = fh.Engine(fh.federated(client), clients(sizes), cohort, devices=2)
    assert engine.client_batch == (1 if jax.default_backend() == "cpu" else None)
    state, infos = engine.advance(engine.init(jax.random.key(1)), 2)
    return jax.tree.map(np.asarray, (state.broadcast, state.clients, infos.clients.loss, infos.cohort))

  ours, here = gpu(rounds), rounds()
  np.testing.assert_array_equal(ours[-1], here[-1])
  chex.assert_trees_all_close(ours, here, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
  "shape, kernel", [((3, 9, 8, 4), (3, 5)), ((2, 7, 7, 1), (1, 1)), ((2, 6, 5, 3), (6, 5))]
)
def test_windows_by_places_are_those_of_slices(gpu, shape, kernel):
  x = jax.random.normal(jax.random.key(0), shape)
  found = gpu(convolution._windows, x, *kernel)
  np.testing.assert_array_equal(found, convolution._windows(x, *kernel))
  stacked = gpu(jax.vmap(lambda x: convolution._windows(x, *kernel)), jnp.stack([x, -x]))
  np.testing.assert_array_equal(stacked, jnp.stack([found, -found]))


@pytest.mark.parametrize("count", [1, 5, 8])
def test_a_sum_at_once_is_the_weighted_sum(gpu, count):
  rng = np.random.default_rng(count)
  p = rng.dirichlet(np.ones(count)).astype(np.float32)
  stacked = {"a": rng.normal(size=(count, 37, 5)).astype(np.float32), "n": np.full((count, 2), 9)}
  total = jax.jit(lambda *own: weighted_sum(*own, client_mesh(3)))
  program = gpu(lambda: total.lower(p, stacked).compile())
  expected = np.tensordot(p.astype(float), stacked["a"].astype(float), 1)
  found = program(p, stacked)
  np.testing.assert_allclose(found["a"], expected, rtol=1e-5, atol=1e-6)
  assert found["n"].tolist() == [9, 9] and " while(" not in program.as_text()


def test_a_kernel_s_gradient_is_one_product(gpu):
  x, kernel = jax.random.normal(jax.random.key(0), (4, 7)), jax.random.normal(jax.random.key(1), (7, 3))

  def gradients():
    own = jax.grad(lambda *given: jnp.sin(product(*given)).sum(), (0, 1))
    return str(jax.make_jaxpr(own)(x, kernel)).count("dot_general"), own(x, kernel)

  (there, ours), (here, on_a_cpu) = gpu(gradients), gradients()
  assert there == here + 1 == 3
  chex.assert_trees_all_close(ours, on_a_cpu, rtol=1e-5)


def test_nothing_waits_and_one_trip_is_no_loop(gpu):
  program = gpu(lambda: jax.jit(updates_barrier).lower([jnp.ones(5000), jnp.ones(3)]).compile().as_text())
  assert "is-finite" not in program
  assert gpu(trips, 1) == 1 and isinstance(trips(1), jax.Array) and trips(2) == 2


def test_members_side_by_side_train_what_the_round_says(gpu):
  """SuPerFed's members take the branch of before or after round L, not both and one result."""

  def run():
    make = lambda lr: fh.federated(fh.superfed_mm(linear(), start_round=1, lr=lr, epochs=1, batch_size=3))  # noqa: E731
    settings, keys = {"lr": np.asarray([0.1, 0.2], np.float32)}, jax.random.split(jax.random.key(2))
    engine = Members(make, clients([4, 3, 5]), settings, 2, 2, devices=1)
    state, _ = engine.advance(engine.init(keys), 3)
    text = engine._compiled["advance"].as_text()
    return text, [jax.tree.map(np.asarray, (own.broadcast, own.clients)) for own in engine.split(state)]

  text, members = gpu(run)
  assert " conditional(" in text
  for member, lr, key in zip(members, (0.1, 0.2), jax.random.split(jax.random.key(2))):
    client = fh.superfed_mm(linear(), start_round=1, lr=lr, epochs=1, batch_size=3)
    engine = fh.Engine(fh.federated(client), clients([4, 3, 5]), 2, devices=1)
    state, _ = engine.advance(engine.init(key), 3)
    chex.assert_trees_all_close(member, (state.broadcast, state.clients), rtol=1e-4, atol=1e-6)
