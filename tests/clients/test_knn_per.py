"""kNN-Per's neighbours and its choice of λ against plain NumPy, and where it sees which rows."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from float64_steps import KEY, features, read
from one_round import CLIENT, LOCAL, one_round
from small_parts import (
  CLASSES,
  float64,
  mlp,
  one_client,
  rows_of,
  softmax,
)

import fedjax_het as fh
from fedjax_het.clients.knn_per import knn_per
from fedjax_het.engine.engine import Engine
from fedjax_het.engine.trained import trained

# kNN-Per


def nearest_by_hand(z, y, query, k, sigma):
  """p_kNN of one row; None without neighbours."""
  order = np.argsort(((z - query) ** 2).sum(1))[:k]
  weights = np.exp(-((z[order] - query) ** 2).sum(1) / (z.shape[1] * sigma))
  return np.bincount(y[order], weights, minlength=CLASSES) / weights.sum() if len(order) else None


@pytest.mark.slow
@pytest.mark.parametrize("client", [8, 1])
@pytest.mark.parametrize("validates", [False, True, None])  # None: others have validation rows
def test_knn_per_by_hand(client, validates, ragged):
  k, sigma = 3, 0.4
  part = knn_per(mlp(), k=k, sigma=sigma, **LOCAL)
  first = part.init_broadcast(KEY)
  x, y = rows_of(ragged, client)
  own = float64(first.params)
  z_of = lambda rows: np.asarray(features(own, rows), np.float64)  # noqa: E731
  f_of = lambda rows: softmax(read(own["fc2"], z_of(rows)))  # noqa: E731
  z, data = z_of(x), one_client(ragged, client)
  judged_x, judged_y = rows_of(ragged, 4)
  if validates:
    data = dataclasses.replace(data, validation=one_client(ragged, 4))
    rows = [(nearest_by_hand(z, y, q, k, sigma), f, c) for q, f, c in zip(
      z_of(judged_x), f_of(judged_x), judged_y)]  # fmt: skip
  else:
    if validates is None:
      none = dataclasses.replace(one_client(ragged, 4), size=jnp.int32(0))
      data = dataclasses.replace(data, validation=none)
    rows = [
      (nearest_by_hand(np.delete(z, i, 0), np.delete(y, i), z[i], k, sigma), f_of(x)[i], y[i])
      for i in range(len(y))
    ]
  losses = [
    np.mean([-np.log(max(f[c] if p is None else lam * p[c] + (1 - lam) * f[c], 1e-12)) for p, f, c in rows])
    for lam in np.arange(11) / 10
  ]
  found = part.personalize(first, (), data, fh.Context(client), 0.0)
  np.testing.assert_allclose(found.lam, np.argmin(losses) / 10, atol=1e-6)
  queries = np.random.default_rng(0).normal(size=(6, 4))
  lam = np.argmin(losses) / 10
  wanted = [
    lam * nearest_by_hand(z, y, q, k, sigma) + (1 - lam) * f for q, f in zip(z_of(queries), f_of(queries))
  ]
  outputs = part.apply(found, queries.astype(np.float32))
  np.testing.assert_allclose(jax.nn.softmax(outputs), wanted, rtol=1e-4, atol=1e-5)
  alone = part.apply(found._replace(lam=jnp.float32(1.0)), queries.astype(np.float32))
  assert np.isfinite(alone).all()  # also of a class that no neighbour has


@pytest.mark.slow
def test_knn_per_trains_as_fedavg_and_says_where_lambda_is_from(ragged):
  part, plain = knn_per(mlp(), **LOCAL), fh.fedavg(mlp(), **LOCAL)
  chex.assert_trees_all_equal(one_round(part, ragged)[2], one_round(plain, ragged)[2])
  said = knn_per(mlp(), steps=3, epochs=2).needs.remarks(ragged)
  assert next(said).startswith("epochs = 2: no effect")
  first, data = part.init_broadcast(KEY), one_client(ragged, CLIENT)
  loss = part.loss(first, (), data, None)
  assert loss == plain.loss(first, (), data, None)
  x = data.take(jnp.arange(3))[0]
  chex.assert_trees_all_equal(part.apply(part.global_model(first), x), mlp().apply(first.params, x))
  assert [*part.needs.remarks(ragged)] == [
    "knn_per chooses λ on training rows, as no client has validation rows (valid_fraction)."
  ]


@pytest.mark.slow
def test_knn_per_sees_validation_rows_in_evaluations_wherever_rows_lie():
  rng = np.random.default_rng(0)
  x, y = rng.normal(size=(120, 4)).astype(np.float32), rng.integers(0, CLASSES, 120)
  parts = np.split(np.arange(120), np.cumsum([40, 20, 10, 30])[:-1])
  data = fh.federate(x, y, parts, KEY, num_classes=CLASSES, test_fraction=0.2, valid_fraction=0.2)
  part = knn_per(mlp(), k=3, sigma=0.05, **LOCAL)
  assert not [*part.needs.remarks(data)]

  def judged(**where):
    engine = Engine(fh.federated(part), data, 2, devices=1, **where)
    state = engine.init(jax.random.key(1))
    return state, engine.evaluate(state)

  state, found = judged()
  sent, used = state.broadcast, trained(fh.federated(part), data, state, 2, 0)
  chex.assert_trees_all_equal(found, judged(device_rows=118)[1])
  lambdas, personalize = [], jax.jit(part.personalize)
  for i in range(4):
    own = dataclasses.replace(one_client(data, i), validation=one_client(data, i, "valid"))
    model, test = personalize(sent, (), own, fh.Context(i), 0.0), one_client(data, i, "test")
    rows, labels = test.take(jnp.arange(int(test.size)))
    right = (part.apply(model, rows).argmax(1) == labels).mean()
    np.testing.assert_allclose(found.personalized["top1"][i, 0], right, atol=1e-6)
    alone = personalize(sent, (), one_client(data, i), fh.Context(i), 0.0)
    assert used.personal(i).lam == model.lam
    lambdas.append(float(model.lam - alone.lam))
  assert any(lambdas)  # or validation rows would have chosen as training rows do
