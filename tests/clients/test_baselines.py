"""The field's baselines, a round of one client each against plain NumPy, and without their term FedAvg.

The oracles walk through the same mini-batches in float64 with gradients written by hand for softmax
regression. Methods that read features are held against losses that are written again, apart from the
library's.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from one_round import CLIENT, LOCAL, LR, SHARE, add, close, like, one_round, sgd
from small_parts import (
  float64,
  linear,
  linear_loss_and_gradient,
  one_client,
  rows_of,
)

import fedjax_het as fh
from fedjax_het.clients.fedadmm import fedadmm
from fedjax_het.clients.fedcm import fedcm
from fedjax_het.clients.feddc import feddc
from fedjax_het.clients.feddyn import feddyn
from fedjax_het.clients.per_fedavg import meta_gradient, per_fedavg


def test_feddyn_by_hand(ragged):
  part = feddyn(linear(), alpha=0.3, **LOCAL)
  first = part.init_broadcast(jax.random.key(0))
  h, x0 = like(first.params, 0.1), float64(first.params)
  _, _, upload, after, _ = one_round(part, ragged, first, h)
  wanted, _ = sgd(first.params, ragged, lambda g, w: add(add(g, add(w, x0, -1.0), 0.3), float64(h), 0.3))
  close(upload.params, wanted)
  close(after, add(float64(h), add(wanted, x0, -1.0)))
  assert upload.even == ()


def test_the_drift_server_adds_the_mean_of_all_clients_drifts():
  server, params = fh.server.drift(), {"w": jnp.arange(3.0)}
  mean = {"w": jnp.array([1.0, 3.0, 0.0])}
  moved, state = server.update(
    None, {"w": jnp.full(3, 0.5)}, fh.Message(params), fh.Message(mean), jnp.float32(0.25)
  )
  np.testing.assert_allclose(state["w"], [0.75, 1.0, 0.0])
  np.testing.assert_allclose(moved.params["w"], [1.75, 4.0, 0.0])


@pytest.mark.slow
@pytest.mark.slow
def test_feddyn_s_fixed_point_is_the_optimum_of_the_mean_of_the_losses(ragged):
  """Where FedAvg stands still elsewhere."""
  own = dict(lr=0.05, epochs=2, batch_size=100, momentum=0.0, weight_decay=0.05)

  def slope(part):
    found = fh.run(
      fh.federated(part, fh.mixing.uniform()), ragged, rounds=400, cohort_size=12, key=jax.random.key(0)
    )
    params = float64(found.state.broadcast.params)
    slopes = [add(linear_loss_and_gradient(params, *rows_of(ragged, i))[1], params, 0.05) for i in range(12)]
    return np.sqrt(sum(np.square(sum(leaves)).sum() for leaves in zip(*map(jax.tree.leaves, slopes)))) / 12

  assert 8 * slope(feddyn(linear(), alpha=0.5, **own)) < slope(fh.fedavg(linear(), **own))


@pytest.mark.slow
def test_feddc_by_hand(ragged):
  part = feddc(linear(), alpha=0.2, **LOCAL)
  first = part.init_broadcast(jax.random.key(0))
  s = like(first.params, 0.1, 1)
  first = first._replace(even=s)
  state = part.init(None, first, None, None)._replace(drift=like(s, 0.1, 2), gradient=like(s, 0.1, 3))
  _, _, upload, after, _ = one_round(part, ragged, first, state)
  x0, h, own, s = (float64(tree) for tree in (first.params, state.drift, state.gradient, s))
  along = lambda g, w: add(add(add(g, add(add(w, x0, -1.0), h), 0.2), s), own, -1.0)  # noqa: E731
  wanted, steps = sgd(first.params, ragged, along)
  gradient = add(add(own, s, -1.0), add(wanted, x0, -1.0), -1 / (steps * LR))
  close(upload.params, wanted)
  close((after.drift, after.gradient), (add(h, add(wanted, x0, -1.0)), gradient), rtol=1e-4, atol=1e-5)
  close(upload.even, add(s, add(gradient, own, -1.0), SHARE), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_fedadmm_by_hand(ragged):
  part = fedadmm(linear(), rho=0.2, **LOCAL)
  first = part.init_broadcast(jax.random.key(0))
  state = part.init(None, first, None, None)._replace(
    params=like(first.params, 1.0, 2), dual=like(first.params, 0.1, 3)
  )
  _, _, upload, after, _ = one_round(part, ragged, first, state)
  x0, w0, dual = (float64(tree) for tree in (first.params, state.params, state.dual))
  y = jax.tree.map(lambda leaf: 0.2 * leaf, dual)
  wanted, _ = sgd(first.params, ragged, lambda g, w: add(add(g, y), add(w, x0, -1.0), 0.2))
  later = add(y, add(wanted, x0, -1.0), 0.2)
  change = add(add(wanted, later, 5.0), add(w0, y, 5.0), -1.0)  # of w + y/ρ
  close(upload.params, add(x0, change))
  close(after, type(after)(wanted, jax.tree.map(lambda leaf: 5.0 * leaf, later)))


@pytest.mark.slow
def test_fedcm_by_hand(ragged):
  part = fedcm(linear(), alpha=0.3, **LOCAL)
  first = part.init_broadcast(jax.random.key(0))._replace(
    extra=like(part.init_broadcast(jax.random.key(0)).params, 0.2)
  )
  _, _, upload, _, _ = one_round(part, ragged, first)
  m, x0 = float64(first.extra), float64(first.params)
  wanted, steps = sgd(first.params, ragged, lambda g, w: jax.tree.map(lambda a, b: 0.3 * a + 0.7 * b, g, m))
  close(upload.params, wanted)
  close(upload.extra, jax.tree.map(lambda a, b: (a - b) / (steps * LR), x0, wanted), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("hessian", ["none", "exact", "difference"])
def test_per_fedavg_s_gradient_by_hand(hessian):
  """Of quadratics ½ wᵀ A_b w - c_bᵀ w, whose Hessians are A_b."""
  rng = np.random.default_rng(0)
  a = rng.normal(size=(3, 4, 4))
  a, c, w = a @ a.transpose(0, 2, 1), rng.normal(size=(3, 4)), rng.normal(size=4)
  gradient = lambda own, b: jnp.asarray(a[b], jnp.float32) @ own - jnp.asarray(c[b], jnp.float32)  # noqa: E731
  found = meta_gradient(gradient, jnp.asarray(w, jnp.float32), (0, 1, 2), 0.05, hessian, 1e-2)
  outer = a[1] @ (w - 0.05 * (a[0] @ w - c[0])) - c[1]
  wanted = outer if hessian == "none" else outer - 0.05 * a[2] @ outer
  np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=2e-3)


def test_per_fedavg_is_judged_after_a_step(ragged):
  part = per_fedavg(linear(), alpha=0.3, **LOCAL)
  first = part.init_broadcast(jax.random.key(0))
  found = part.personalize(first, (), one_client(ragged, CLIENT), fh.Context(CLIENT), 0.0)
  slope = linear_loss_and_gradient(float64(first.params), *rows_of(ragged, CLIENT))[1]
  close(found, add(float64(first.params), slope, -0.3))
