"""FedAvg and FedProx against softmax regression trained by hand in NumPy."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_parts import (
  federation,
  float64,
  linear,
  linear_loss_and_gradient,
  one_client,
  round_draws,
  rows_of,
  walk,
)

from fedjax_het import mixing, server
from fedjax_het.clients.objective import leaves_barrier, training_loss
from fedjax_het.clients.sgd import fedavg, fedprox
from fedjax_het.clients.superfed import superfed
from fedjax_het.engine.engine import Engine
from fedjax_het.errors import SettingError
from fedjax_het.federated import federated
from fedjax_het.parts import Context

ROUNDS, COHORT = 3, 5


def local_sgd(center, key, data, i, lr, *, mu=0.0, momentum, weight_decay, epochs, batch_size):
  """m <- momentum m + ∇ + mu (θ - θ^g) + weight_decay θ;  θ <- θ - lr m: (θ, mean loss, steps)."""
  params = center
  buffer = jax.tree.map(np.zeros_like, center)
  losses = []
  for x, y, _ in walk(key, data, i, batch_size, epochs):
    loss, gradient = linear_loss_and_gradient(params, x, y)
    gradient = jax.tree.map(lambda g, p, c: g + mu * (p - c) + weight_decay * p, gradient, params, center)
    buffer = jax.tree.map(lambda m, g: momentum * m + g, buffer, gradient)
    params = jax.tree.map(lambda p, m: p - lr * m, params, buffer)
    losses.append(loss)
  return params, np.mean(losses), len(losses)


def check(client, data, *, lr, lr_decay, weights="sizes", server_lr=1.0, **settings):
  """Runs the engine and the plain loop side by side."""
  mix = mixing.static() if weights == "sizes" else mixing.uniform()
  engine = Engine(federated(client, mix, server.sgd(server_lr)), data, COHORT, devices=2)
  state = engine.init(jax.random.key(8))
  params = float64(state.broadcast.params)
  sizes = np.asarray(data.train.size, np.float64)
  for t in range(ROUNDS):
    cohort, keys, _ = round_draws(state, data.num_clients, COHORT)
    state, infos = engine.advance(state, 1)
    uploads, losses, steps = zip(
      *(local_sgd(params, keys[i], data, i, lr * lr_decay**t, **settings) for i in cohort)
    )
    p = sizes[cohort] / sizes[cohort].sum() if weights == "sizes" else np.full(COHORT, 1 / COHORT)
    mean = jax.tree.map(lambda *leaves: np.tensordot(p, leaves, 1), *uploads)
    params = jax.tree.map(lambda old, new: old - server_lr * (old - new), params, mean)
    np.testing.assert_array_equal(infos.cohort[0], cohort)
    np.testing.assert_array_equal(infos.clients.steps[0], steps)
    np.testing.assert_allclose(infos.coefficients[0], p, rtol=1e-6)
    np.testing.assert_allclose(infos.clients.loss[0], losses, rtol=1e-5, atol=1e-6)
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-6),
      float64(state.broadcast.params),
      params,
    )


SGD = dict(
  momentum=0.9, weight_decay=0.01, epochs=2, batch_size=4
)  # 5, 7, 9 and 25 rows leave partial batches


def test_fedavg_is_sgd_by_hand(ragged):
  check(fedavg(linear(), lr=0.05, lr_decay=0.5, **SGD), ragged, lr=0.05, lr_decay=0.5, **SGD)


@pytest.mark.slow
def test_fedprox_is_sgd_by_hand(ragged):
  check(fedprox(linear(), mu=1.5, lr=0.05, lr_decay=0.9, **SGD), ragged, lr=0.05, lr_decay=0.9, mu=1.5, **SGD)


@pytest.mark.slow
def test_equal_clients_take_the_static_path(uniform):
  assert uniform.uniform[0]
  settings = SGD | dict(batch_size=3)
  check(fedavg(linear(), lr=0.05, **settings), uniform, lr=0.05, lr_decay=1.0, **settings)


@pytest.mark.slow
def test_server_step_and_equal_weights(ragged):
  check(
    fedavg(linear(), lr=0.05, **SGD), ragged, lr=0.05, lr_decay=1.0, weights="equal", server_lr=0.3, **SGD
  )


@pytest.mark.slow
def test_optimizer_instead_of_sgd(ragged):
  """Any function from the round's learning rate to an optax transformation."""
  from optax import sgd

  client = fedavg(linear(), lr=0.05, lr_decay=0.5, epochs=1, batch_size=4, optimizer=lambda lr: sgd(2.0 * lr))
  settings = dict(momentum=0.0, weight_decay=0.0, epochs=1, batch_size=4)
  check(client, ragged, lr=0.1, lr_decay=0.5, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("part", [fedavg, superfed])
def test_a_learning_rate_in_the_optimizers_state_decays(part):
  """Steps of η_t along ones, both ends alike: θ_T = θ_0 - n (η + η/2 + η/4), n = 4 steps a round."""

  def along_ones(learning_rate):
    ones = optax.stateless(lambda gradient, params: jax.tree.map(jnp.ones_like, gradient))
    return optax.chain(ones, optax.scale_by_learning_rate(learning_rate))

  settings = dict(lr=0.5, lr_decay=0.5, epochs=2, batch_size=2)
  client = part(linear(), optimizer=optax.inject_hyperparams(along_ones), **settings)
  engine = Engine(federated(client), federation([4]), 1, devices=1)
  before = engine.init(jax.random.key(0))
  first = float64((before.broadcast.params, before.clients))
  after, _ = engine.advance(before, 3)
  last = float64((after.broadcast.params, after.clients))
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a - b, 4 * 0.875, rtol=1e-5), first, last)


def test_training_loss_is_the_mean_over_the_clients_rows(ragged):
  client = fedavg(linear())
  broadcast = client.init_broadcast(jax.random.key(0))
  for i in (0, 1, 8):
    expected, _ = linear_loss_and_gradient(float64(broadcast.params), *rows_of(ragged, i))
    for found in (
      client.loss(broadcast, (), one_client(ragged, i), Context()),
      training_loss(linear(), broadcast.params, one_client(ragged, i), batch_size=7),  # of 40, 1 and 25
    ):
      np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mapped", [jax.vmap, lambda fn: lambda i: jax.lax.map(fn, i)], ids=["vmap", "map"])
def test_training_loss_has_the_gradient_of_the_mean_over_the_clients_rows(ragged, mapped):
  """Clients of one to ten blocks; what else the loss may be asked, along a direction, agrees."""
  params, way = (linear().init(jax.random.key(seed)) for seed in (0, 1))

  def of_client(i):
    loss = lambda p: training_loss(linear(), p, one_client(ragged, i), batch_size=4)  # noqa: E731
    return *jax.value_and_grad(loss)(params), jax.jvp(loss, (params,), (way,))[1]

  clients = jnp.asarray((0, 1, 2, 8))
  losses, gradients, slopes = jax.jit(mapped(of_client))(clients)
  for j, i in enumerate(clients.tolist()):
    loss, gradient = linear_loss_and_gradient(float64(params), *rows_of(ragged, i))
    np.testing.assert_allclose(losses[j], loss, rtol=1e-5, atol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a[j], b, rtol=1e-5, atol=1e-6), gradients, gradient)
    slope = sum(jax.tree.leaves(jax.tree.map(lambda g, w: (g * w).sum(), gradient, float64(way))))
    np.testing.assert_allclose(slopes[j], slope, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
  "setting, value",
  [
    ("mu", -0.1), ("lr", 0.0), ("lr", -1.0), ("lr", float("nan")), ("epochs", 0), ("epochs", 1.5),
    ("batch_size", 0), ("batch_size", -3), ("lr_decay", 1.01), ("lr_decay", 0.0), ("momentum", -0.1),
    ("weight_decay", -1e-4),
  ],
)  # fmt: skip
def test_impossible_settings_are_named(setting, value):
  with pytest.raises(SettingError, match=f"^{setting} = ") as error:
    fedprox(linear(), **{setting: value})
  assert error.value.setting == setting


@pytest.mark.parametrize("make", [fedprox, superfed])
def test_an_optimizer_with_its_rate_is_refused(make):
  with pytest.raises(
    SettingError, match=r"^optimizer = 'GradientTransf.*not a function.*optimizer=optax.adam"
  ):
    make(linear(), optimizer=optax.adam(1e-3))


def test_settings_at_their_bounds_are_fine():
  fedprox(linear(), mu=0.0, lr=1e-9, lr_decay=1.0, momentum=0.0, weight_decay=0.0, epochs=1, batch_size=1)


def test_updates_that_wait_for_each_other_keep_their_values():
  """Also beside an infinite or NaN one; and the compiler does not see through the zero they wait for."""
  for bad in (np.inf, -np.inf, np.nan, 3e38):
    updates = {"a": jnp.full(5000, bad), "b": jnp.linspace(-1, 1, 4097), "c": jnp.array([bad, 1.0])}
    chex.assert_trees_all_equal(jax.jit(leaves_barrier)(updates), updates)
  other = jax.jit(lambda *leaves: leaves_barrier(leaves)[1])
  for sizes, waits in (((2, 3), True), ((5000, 5000, *[1] * 63), True), ((5000, *[4096] * 64), False)):
    program = other.lower(*(jnp.ones(size) for size in sizes)).compile().as_text()
    assert ("is-finite" in program) == waits, sizes


def test_a_program_of_updates_that_wait_grows_as_their_number():
  """Not as its square: the zero is computed once, not again in each update."""

  def lines(count: int) -> int:
    leaves = [jnp.ones(5000 + i) for i in range(count)]
    step = jax.jit(lambda ps: jax.tree.map(jnp.add, ps, leaves_barrier([-0.1 * jnp.cos(p) for p in ps])))
    return step.lower(leaves).compile().as_text().count("\n")

  assert lines(24) < 2.2 * lines(12)
