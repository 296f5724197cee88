"""Where the personalisation baselines end on least-squares clients, whose optima are known in closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_het as fh

pytestmark = pytest.mark.slow

CLIENTS, EXAMPLES, DIM, LR, EPOCHS = 6, 12, 3, 0.05, 5
FULL = dict(lr=LR, momentum=0.0, weight_decay=0.0, batch_size=EXAMPLES)  # all of a client's examples at once


def least_squares() -> fh.Model:
  """x θ, without a bias: F_i(θ) = mean (x θ - y)²."""
  return fh.Model(
    lambda key: {"fc": {"kernel": jax.random.normal(key, (DIM, 1))}},
    lambda params, x: x @ params["fc"]["kernel"], "least_squares", (DIM,), 1, task=fh.tasks.regression(),
  )  # fmt: skip


@pytest.fixture(scope="module")
def clients():
  """(data, Hessians H_i [K, D, D], optima θ_i* [K, D]); the clients differ in both."""
  rng = np.random.default_rng(0)
  x = rng.normal(size=(CLIENTS, EXAMPLES, DIM)) * rng.uniform(0.5, 1.5, (CLIENTS, 1, DIM))
  y = np.einsum("knd,kd->kn", x, 2.0 * rng.normal(size=(CLIENTS, DIM))) + 0.1 * rng.normal(
    size=(CLIENTS, EXAMPLES)
  )
  x, y = x.astype(np.float32), y.astype(np.float32)
  data = fh.federate(
    x.reshape(-1, DIM), y.ravel(), np.arange(CLIENTS * EXAMPLES).reshape(CLIENTS, -1), jax.random.key(0),
    num_classes=1, test_fraction=0.0, task=fh.tasks.regression(),
  )  # fmt: skip
  x, y = x.astype(float), y.astype(float)
  hessians = 2.0 * np.einsum("knd,kne->kde", x, x) / EXAMPLES
  optima = np.stack([np.linalg.lstsq(a, b)[0] for a, b in zip(x, y)])
  return data, hessians, optima


def after(client, data, rounds, cohort_size=CLIENTS, server=None):
  """The state after so many rounds."""
  engine = fh.Engine(fh.federated(client, server=server), data, cohort_size, devices=1)
  state = engine.init(jax.random.key(0))
  for _ in range(rounds // 100):
    state, _ = engine.advance(state, 100)
  return state


def flat(tree):
  """[..., D] of {"fc": {"kernel": [..., D, 1]}}."""
  return np.asarray(tree["fc"]["kernel"], float)[..., 0]


def zero_of(matrices, centers):
  """θ with Σ_i M_i (θ - θ_i) = 0."""
  return np.linalg.solve(matrices.sum(0), np.einsum("kde,ke->d", matrices, centers))


def drift(hessians):
  """I - (I - η H_i)^E: how far E local steps go towards a client's optimum."""
  return np.eye(DIM) - np.stack([np.linalg.matrix_power(np.eye(DIM) - LR * h, EPOCHS) for h in hessians])


def test_scaffold_ends_at_the_optimum_and_fedavg_where_drift_takes_it(clients):
  data, hessians, optima = clients
  best, drifted = zero_of(hessians, optima), zero_of(drift(hessians), optima)
  assert np.linalg.norm(best - drifted) > 0.05
  model = least_squares()
  fedavg = flat(after(fh.fedavg(model, epochs=EPOCHS, **FULL), data, 300).broadcast.params)
  np.testing.assert_allclose(fedavg, drifted, atol=1e-4)
  scaffold = after(fh.scaffold(model, epochs=EPOCHS, **FULL), data, 800)
  np.testing.assert_allclose(flat(scaffold.broadcast.params), best, atol=1e-4)
  gradients = np.einsum("kde,ke->kd", hessians, best - optima)
  np.testing.assert_allclose(flat(scaffold.clients), gradients, atol=1e-3)


def test_scaffold_s_server_variate_is_the_clients_mean_whoever_takes_part(clients):
  data, _, _ = clients
  state = after(fh.scaffold(least_squares(), epochs=EPOCHS, **FULL), data, 100, cohort_size=2)
  own = flat(state.clients)
  assert np.abs(own).max() > 0.1
  np.testing.assert_allclose(flat(state.broadcast.even), own.mean(0), atol=1e-5)


def test_ditto_ends_at_the_minimum_near_fedavg_s_model(clients):
  data, hessians, optima = clients
  lam = 0.7
  state = after(fh.ditto(least_squares(), lam=lam, epochs=EPOCHS, local_epochs=3, **FULL), data, 400)
  center = zero_of(drift(hessians), optima)
  for own, h, optimum in zip(flat(state.clients), hessians, optima):
    expected = np.linalg.solve(h + lam * np.eye(DIM), h @ optimum + lam * center)
    np.testing.assert_allclose(own, expected, atol=2e-4)
  assert np.ptp(flat(state.clients), axis=0).min() > 0.1


def test_pfedme_ends_at_the_minimum_of_the_envelopes(clients):
  """One outer step a round, whose inner problem is solved: then no drift is left."""
  data, hessians, optima = clients
  lam = 2.0
  client = fh.pfedme(least_squares(), lam=lam, inner_steps=200, outer_lr=0.2, epochs=1, **FULL)
  state = after(client, data, 200, server=fh.server.sgd(lr=0.5))
  inverse = np.linalg.inv(hessians + lam * np.eye(DIM))
  center = zero_of(np.einsum("kde,kef->kdf", inverse, hessians), optima)
  np.testing.assert_allclose(flat(state.broadcast.params), center, atol=2e-4)
  own = np.einsum("kde,ke->kd", inverse, np.einsum("kde,ke->kd", hessians, optima) + lam * center)
  np.testing.assert_allclose(flat(state.clients), own, atol=2e-4)


def test_apfl_s_mixtures_end_at_the_clients_own_optima(clients):
  data, hessians, optima = clients
  alpha = 0.5
  state = after(fh.apfl(least_squares(), alpha=alpha, epochs=EPOCHS, **FULL), data, 800)
  center = flat(state.broadcast.params)
  np.testing.assert_allclose(center, zero_of(drift(hessians), optima), atol=1e-4)

  # v̄ of the last steps had each client's own w; the kept v is what makes the mixture with that w best.
  def local_model(h, optimum):
    moved = np.linalg.matrix_power(np.eye(DIM) - LR * h, EPOCHS) @ (center - optimum) + optimum
    return (optimum - (1 - alpha) * np.array([center, moved])) / alpha

  for own, h, optimum in zip(flat(state.clients.local), hessians, optima):
    low, high = np.sort(local_model(h, optimum), axis=0)
    assert (own > low - 2e-3).all() and (own < high + 2e-3).all()


def test_fedrep_recovers_a_shared_representation():
  """y = x B* w_i with B* [8, 2]: the angles between the learnt and the true span vanish."""
  dim, width, num, count = 8, 2, 16, 40
  rng = np.random.default_rng(1)
  truth = np.linalg.qr(rng.normal(size=(dim, width)))[0]
  x = rng.normal(size=(num, count, dim)).astype(np.float32)
  y = np.einsum("knd,dw,kw->kn", x, truth, rng.normal(size=(num, width))).astype(np.float32)
  data = fh.federate(
    x.reshape(-1, dim), y.ravel(), np.arange(num * count).reshape(num, -1), jax.random.key(0),
    num_classes=1, test_fraction=0.0, task=fh.tasks.regression(),
  )  # fmt: skip

  def init(key):
    first, second = jax.random.split(key)
    body = jnp.linalg.qr(jax.random.normal(first, (dim, width)))[0]
    return {"body": {"kernel": body}, "head": {"kernel": jax.random.normal(second, (width, 1))}}

  model = fh.Model(
    init, lambda p, x: x @ p["body"]["kernel"] @ p["head"]["kernel"], "two_linear", (dim,), 1,
    task=fh.tasks.regression(), head=("head",),
  )  # fmt: skip
  client = fh.fedrep(
    model, lr=0.05, momentum=0.0, weight_decay=0.0, epochs=20, body_epochs=1, batch_size=count
  )
  cosines = {}
  for rounds in (0, 300):
    body = np.asarray(after(client, data, rounds, cohort_size=8).broadcast.params["body"]["kernel"], float)
    cosines[rounds] = np.linalg.svd(np.linalg.qr(body)[0].T @ truth)[1].min()
  assert cosines[0] < 0.7 and cosines[300] > 0.9999
