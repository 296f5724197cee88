"""FedNova, FedExP and FedDisco against plain NumPy, and FedAvgM's server against its recursion."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_parts import linear, mlp

import fedjax_het as fh
from fedjax_het.mixing.feddisco import discrepancies
from fedjax_het.mixing.fedexp import extrapolation
from fedjax_het.mixing.fednova import normalised

LOCAL = dict(lr=0.1, epochs=2, batch_size=4, momentum=0.0, weight_decay=0.0)


def course(client, mixing=None, data=None, rounds=2, **more):
  algorithm = fh.federated(client, mixing, more.pop("server", None))
  return fh.run(algorithm, data, rounds=rounds, cohort_size=5, key=jax.random.key(1), **more)


def test_fednova_s_scales_by_hand():
  p, a = np.array([0.2, 0.5, 0.3]), np.array([4.0, 1.0, 9.5])
  found = normalised(jnp.asarray(p, jnp.float32), jnp.asarray(a, jnp.float32))
  np.testing.assert_allclose(found, (p * a).sum() / a, rtol=1e-6)
  assert normalised(jnp.ones(1), jnp.zeros(1)) == 1.0  # a client that took no step


@pytest.mark.slow
def test_fednova_with_equal_steps_is_fedavg(ragged):
  """And with unequal ones it is not; momentum counts gradients as SCAFFOLD does."""
  steps = {name: own for name, own in LOCAL.items() if name != "epochs"} | {"steps": 5}
  wanted = course(fh.fedavg(linear(), **steps), data=ragged).state.broadcast
  found = course(fh.fedavg(linear(), **steps), fh.mixing.fednova(), ragged).state.broadcast
  chex.assert_trees_all_close(found, wanted, rtol=1e-6, atol=1e-7)
  apart = [
    course(fh.fedavg(linear(), **LOCAL), own, ragged).state.broadcast for own in (None, fh.mixing.fednova())
  ]
  assert max(jax.tree.leaves(jax.tree.map(lambda a, b: abs(a - b).max(), *apart))) > 1e-3


@pytest.mark.slow
def test_fednova_s_error_falls_with_the_rate_where_fedavg_s_stays():
  """Two quadratic clients, one of 2 and one of 8 steps: the optimum of Σ p_i F_i is at 0."""
  tau, target, p = np.array([2, 8]), np.array([1.0, -1.0]), np.array([0.5, 0.5])

  def limit(lr, nova):
    w = 0.0
    for _ in range(int(60 / lr)):
      moved = (target - w) * (1 - (1 - lr) ** tau)
      w += (p * moved * (normalised_by_hand(p, tau) if nova else 1.0)).sum()
    return abs(w)

  def normalised_by_hand(p, a):
    return np.asarray(normalised(jnp.asarray(p), jnp.asarray(a, jnp.float32)))

  errors = {nova: [limit(lr, nova) for lr in (0.1, 0.05, 0.025)] for nova in (True, False)}
  assert min(errors[False]) > 0.4
  np.testing.assert_allclose(np.array(errors[True][:-1]) / errors[True][1:], 2.0, rtol=0.25)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("mu", [0.0, 1e-3, 0.5])
def test_steps_of_fedprox_count_as_its_recursion_says(momentum, mu):
  """a_n is how far n gradients of 1 go, where the proximal term pulls back."""
  lr, decay, t, steps = 0.2, 0.9, 3, np.array([0, 1, 2, 7, 50, 1000])
  part = fh.fedprox(linear(), mu=mu, lr=lr, lr_decay=decay, momentum=momentum)
  found = jax.jit(part.training.counted)(jnp.asarray(steps), jnp.int32(t))
  a, m, wanted = 0.0, 0.0, [0.0]
  for _ in range(steps.max()):
    m = momentum * m + 1.0 - lr * decay**t * mu * a
    a = a + m
    wanted.append(a)
  np.testing.assert_allclose(found, np.array(wanted)[steps], rtol=3e-5)
  if mu and not momentum:
    pull = lr * decay**t * mu
    np.testing.assert_allclose(found, (1 - (1 - pull) ** steps) / pull, rtol=3e-5)
  assert fh.fedprox(linear(), mu=mu, optimizer="adam").training.counted is None


def test_fedexp_s_step_by_hand():
  p, squares = np.array([0.25, 0.75]), np.array([8.0, 4.0])
  assert extrapolation(jnp.asarray(p), jnp.asarray(squares), jnp.asarray(0.5), 0.1) == pytest.approx(5 / 1.2)
  assert extrapolation(jnp.asarray(p), jnp.asarray(squares), jnp.asarray(5.0), 0.1) == 1.0


@pytest.mark.slow
def test_fedexp_moves_along_fedavg_s_step(ragged):
  plain, longer = (
    course(fh.fedavg(linear(), **LOCAL), own, ragged, rounds=1) for own in (None, fh.mixing.fedexp(1e-6))
  )
  start = (
    fh.Engine(fh.federated(fh.fedavg(linear(), **LOCAL)), ragged, 5).init(jax.random.key(1)).broadcast.params
  )
  steps = [
    jax.tree.map(lambda a, b: np.asarray(a - b), run.state.broadcast.params, start) for run in (plain, longer)
  ]
  ratios = np.concatenate([np.ravel(b / a) for a, b in zip(*map(jax.tree.leaves, steps)) if np.all(a != 0)])
  np.testing.assert_allclose(ratios, ratios[0], rtol=1e-3)
  assert ratios[0] >= 1.0


def test_feddisco_by_hand():
  counts = np.array([[4, 4, 0], [0, 0, 9], [2, 2, 2]])
  share = counts / counts.sum(1, keepdims=True)
  with np.errstate(divide="ignore", invalid="ignore"):
    wanted = np.where(share > 0, share * np.log(share * 3), 0.0).sum(1)
  np.testing.assert_allclose(discrepancies(counts, "even"), wanted, rtol=1e-5, atol=1e-7)
  part = fh.mixing.feddisco(counts, a=0.5, b=0.1)
  cohort, sizes = jnp.array([2, 1]), jnp.array([6, 9])
  heard = fh.Feedback(cohort, sizes, jnp.int32(0), None, None, None)
  own = np.array([6, 9]) / 15 - 0.5 * wanted[[2, 1]] / wanted[[2, 1]].sum() + 0.1
  own = np.maximum(own, 0)
  np.testing.assert_allclose(part.update((), heard)[0], own / own.sum(), rtol=1e-5)
  nothing = fh.mixing.feddisco(counts, a=1e6, b=0.0)
  lone = heard._replace(cohort=jnp.array([1]), sizes=jnp.array([9]))
  np.testing.assert_allclose(nothing.update((), lone)[0], [1.0])
  plain = fh.mixing.feddisco(counts, a=0.0, b=0.0)
  np.testing.assert_array_equal(plain.update((), heard)[0], fh.mixing.static().update((), heard)[0])


@pytest.mark.parametrize(
  "counts", ["many", [1, 2, 3], [[-1, 2]], [[0, np.nan]], [[0, 0], [1, 1]], [[0.5, 0.5]]]
)
def test_feddisco_checks_its_counts(counts):
  with pytest.raises(fh.SettingError, match="counts = "):
    fh.mixing.feddisco(counts)


@pytest.mark.parametrize(
  "part", [fh.mixing.fednova(), fh.mixing.fedexp(), fh.mixing.feddisco([[1, 2], [3, 4]])]
)
def test_a_client_that_is_mixed_with_nobody_is_fedavg_s(part):
  part.needs.check_cohort(2, 2)
  with pytest.raises(fh.SettingError, match=r"cohort_size = 1: .* FedAvg"):
    part.needs.check_cohort(1, 2)


@pytest.mark.parametrize("nesterov", [False, True])
def test_server_momentum_by_hand(nesterov):
  server = fh.server.avgm(0.5, 0.8, nesterov)
  x, v = np.array([1.0, -2.0]), np.zeros(2)
  broadcast = fh.Message({"w": jnp.asarray(x)})
  state = server.init(broadcast)
  for mean in ([0.0, 1.0], [3.0, 3.0], [1.0, -1.0]):
    broadcast, state = server.update(None, state, broadcast, fh.Message({"w": jnp.asarray(mean)}))
    delta = x - np.array(mean)
    v = 0.8 * v + delta
    x = x - 0.5 * (delta + 0.8 * v if nesterov else v)
    np.testing.assert_allclose(broadcast.params["w"], x, rtol=1e-6)
  still = fh.server.avgm(1.0, 0.0)
  moved, _ = still.update(None, still.init(broadcast), broadcast, fh.Message({"w": jnp.zeros(2)}))
  plain, _ = fh.server.sgd().update(
    None, fh.server.sgd().init(broadcast), broadcast, fh.Message({"w": jnp.zeros(2)})
  )
  chex.assert_trees_all_equal(moved, plain)


def test_fednova_asks_for_federated():
  with pytest.raises(fh.SettingError, match="asks the client part how its steps add up"):
    fh.mixing.fednova().scale(None)
  assert fh.federated(fh.fedavg(mlp()), fh.mixing.fednova()).mixing.adapt_to is None
