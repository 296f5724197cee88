"""Mime, MimeLite and FedSMOO against plain NumPy in float64, and the special cases that they are."""

import chex
import jax
import numpy as np
import pytest
from one_round import BATCH, CLIENT, LOCAL, LR, add, close, like, one_round
from small_parts import (
  SIZES,
  float64,
  linear,
  linear_loss_and_gradient,
  mlp,
  round_draws,
  rows_of,
  walk,
)

import fedjax_het as fh
from fedjax_het.clients.feddyn import feddyn
from fedjax_het.clients.fedsmoo import fedsmoo
from fedjax_het.clients.mime import mime, mimelite
from fedjax_het.engine.engine import Engine
from fedjax_het.errors import SettingError

COHORT, BETA = 4, 0.7
slope = lambda params, x, y: linear_loss_and_gradient(params, x, y)[1]  # noqa: E731


def mixed(p, trees):
  return jax.tree.map(lambda *leaves: sum(q * leaf for q, leaf in zip(p, leaves)), *trees)


@pytest.mark.slow
@pytest.mark.parametrize("method", [mime, mimelite])
def test_two_rounds_of_mime_by_hand(method, ragged):
  """Two, since the momentum of the first is 0 while clients train by MimeLite."""
  engine = Engine(fh.federated(method(linear(), beta=BETA, **LOCAL)), ragged, COHORT, devices=1)
  state = engine.init(jax.random.key(3))
  params = float64(state.broadcast.params)
  momentum = jax.tree.map(np.zeros_like, params)
  for _ in range(2):
    cohort, keys, _ = round_draws(state, len(SIZES), COHORT)
    state, _ = engine.advance(state, 1)
    p = np.asarray(SIZES, np.float64)[cohort] / np.asarray(SIZES)[cohort].sum()
    center = mixed(p, [slope(params, *rows_of(ragged, i)) for i in cohort])
    uploads = []
    for i in cohort:
      own = params
      for x, y, _ in walk(keys[i], ragged, i, BATCH, LOCAL["epochs"]):
        gradient = slope(own, x, y)
        if method is mime:
          gradient = add(add(gradient, slope(params, x, y), -1.0), center)
        own = add(own, mixed((1 - BETA, BETA), (gradient, momentum)), -LR)
      uploads.append(own)
    params, momentum = mixed(p, uploads), mixed((1 - BETA, BETA), (center, momentum))
    close(state.broadcast.params, params)
    close(state.broadcast.pooled if method is mime else state.broadcast.extra, momentum)


@pytest.mark.slow
def test_mime_of_one_client_with_one_batch_is_mimelite_after_its_first_gradient(ragged):
  """Where ∇f(θ; b) = c, the corrected gradient is the plain one; the first momentum is c's share already."""
  own = dict(LOCAL, batch_size=64, calibration="logit_adjustment")  # whose counts are the client's
  first = mime(linear(), beta=BETA, **own)
  sent = first.init_broadcast(jax.random.key(0))
  once = one_round(fh.fedavg(linear(), **own | dict(epochs=1)), ragged)[2]
  center = jax.tree.map(lambda a, b: (a - b) / LR, float64(sent.params), float64(once.params))
  momentum = like(sent.params, 0.2)
  found = first.first_pass(
    jax.random.key(0), sent._replace(pooled=momentum), (), ragged.clients(CLIENT), fh.Context(CLIENT)
  )
  close(found.values, mixed((1 - BETA, BETA), (center, float64(momentum))), rtol=1e-4, atol=1e-5)
  assert found.weights == SIZES[CLIENT]
  upload = one_round(first, ragged, sent._replace(pooled=found.values))[2]
  lite = mimelite(linear(), beta=BETA, **own)
  wanted = one_round(lite, ragged, fh.Message(sent.params, extra=momentum))[2]
  chex.assert_trees_all_close(upload.params, wanted.params, rtol=1e-5, atol=1e-6)
  chex.assert_trees_all_close(wanted.extra, found.values, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_without_momentum_mimelite_is_fedavg_bit_for_bit(ragged):
  upload = one_round(mimelite(mlp(), beta=0.0, **LOCAL | dict(momentum=0.9)), ragged)[2]
  chex.assert_trees_all_equal(upload, one_round(fh.fedavg(mlp(), **LOCAL), ragged)[2])


def test_local_momentum_beside_the_server_s_is_remarked(ragged):
  for method in (mime, mimelite):
    part = method(linear(), momentum=0.9)
    assert [*part.needs.remarks(ragged)] == [
      f"momentum = 0.9: no effect beside {part.name}, which has the server's; set beta."
    ]
    assert not [*method(linear(), momentum=0.0).needs.remarks(ragged)]
    assert part.training.gradients == (2 if method is mime else 1)
    with pytest.raises(SettingError, match=f"'adam': replaces SGD, whose momentum {part.name} takes"):
      method(linear(), optimizer="adam")


@pytest.mark.slow
def test_fedsmoo_by_hand(ragged):
  lam, rho = 0.3, 0.2
  part = fedsmoo(linear(), lam=lam, rho=rho, **LOCAL)
  first = part.init_broadcast(jax.random.key(0))
  state = part.init(None, first, None, None)._replace(
    drift=like(first.params, 0.1), dual=like(first.params, 0.1, 1)
  )
  mean = like(first.params, 0.2, 2)
  first = first._replace(even=mean)
  upload, after = one_round(part, ragged, first, state)[2:4]

  def scaled(tree):
    norm = np.sqrt(sum(np.square(leaf).sum() for leaf in jax.tree.leaves(tree)))
    return jax.tree.map(lambda leaf: rho * leaf / (norm + 1e-7), tree)

  center, drift, dual, shared = (float64(t) for t in (first.params, state.drift, state.dual, mean))
  params, shared = center, scaled(shared)
  for x, y, _ in walk(jax.random.key(0), ragged, CLIENT, BATCH, LOCAL["epochs"]):
    ascent = scaled(add(add(slope(params, x, y), dual, -1.0), shared, -1.0))
    dual = add(add(dual, ascent), shared, -1.0)
    along = slope(add(params, ascent), x, y)
    params = add(params, add(along, add(add(params, center, -1.0), drift), lam), -LR)
  close(upload.params, params)
  close(after, type(after)(add(drift, add(params, center, -1.0)), dual))
  close(upload.even, dual)


@pytest.mark.slow
def test_the_first_step_of_fedsmoo_is_a_sharpness_aware_one(ragged):
  own = dict(LOCAL, steps=1, calibration="logit_adjustment")
  upload = one_round(fedsmoo(mlp(), lam=0.3, rho=0.2, **own), ragged)[2]
  wanted = one_round(fh.fedavg(mlp(), sam_radius=0.2, **own), ragged)[2]
  chex.assert_trees_all_close(upload.params, wanted.params, rtol=1e-5, atol=1e-6)


def test_without_the_penalty_fedsmoo_s_server_adds_no_drift():
  assert {*fedsmoo(linear(), lam=0.0).needs.brings} == {"mixing"}


def test_without_ascents_fedsmoo_is_feddyn_and_brings_its_server(ragged):
  part = fedsmoo(linear(), lam=0.2, rho=0.0, **LOCAL)
  plain = feddyn(linear(), alpha=0.2, **LOCAL)
  chex.assert_trees_all_equal(one_round(part, ragged)[2:4], one_round(plain, ragged)[2:4])
  assert part.training.gradients == 1 and fedsmoo(linear()).training.gradients == 2
  for one in (part, fedsmoo(linear())):
    assert one.needs.brings["server"].name == "drift" and one.needs.brings["mixing"].name == "uniform"
    assert one.needs.transformed == ("params",)
  with pytest.raises(SettingError, match=r"sam_radius = 0.2: fedsmoo sets the radius"):
    fedsmoo(linear(), sam_radius=0.2)
