"""FedALA's mixture of the own and the received head against plain NumPy in float64."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from float64_steps import KEY
from one_round import BATCH, CLIENT, LOCAL, LR, add, close, like, one_round
from small_parts import (
  SIZES,
  float64,
  linear,
  linear_loss_and_gradient,
  mlp,
  one_client,
  rows_of,
  walk,
)

import fedjax_het as fh
from fedjax_het.clients.fedala import WEIGHTS, Own, fedala
from fedjax_het.local import shuffle

# FedALA


def learnt_by_hand(params, own, weights, passes, key, data, share=0.7, rate=2.0, prior=0.0):
  """(weights, losses of the last mini-batches) after passes over a share of the client's rows."""
  view = one_client(data, CLIENT)
  x, y = rows_of(data, CLIENT)
  padded = -(-data.limits[0] // BATCH) * BATCH
  order = np.asarray(shuffle(jax.random.fold_in(key, WEIGHTS), view, padded))[: int(share * len(x))]
  kernel, bias, losses = params["fc"]["kernel"], params["fc"]["bias"], []
  for _ in range(passes):
    for first in range(0, len(order), BATCH):
      rows = order[first : first + BATCH]
      mixed = {"fc": {"kernel": kernel, "bias": own + (bias - own) * weights + prior}}
      loss, slope = linear_loss_and_gradient(mixed, x[rows], y[rows])
      weights = np.clip(weights - rate * slope["fc"]["bias"] * (bias - own), 0.0, 1.0)
    losses.append(loss)
  return weights, losses


def ala(**more):
  return fedala(linear(), head="fc/bias", rate=2.0, share=0.7, **{**LOCAL, **more})


def trained_from(params, data):
  for x, y, _ in walk(KEY, data, CLIENT, BATCH, LOCAL["epochs"]):
    params = add(params, linear_loss_and_gradient(params, x, y)[1], -LR)
  return params


@pytest.mark.slow
@pytest.mark.parametrize("times", [0, 1])
def test_fedala_by_hand(times, ragged):
  part = ala(threshold=0.02)
  first = part.init_broadcast(KEY)
  state = part.init(KEY, first, None, None)
  own, weights = np.array([1.0, -0.5, 0.7]), np.array([0.9, 0.3, 0.6])
  of = lambda bias: {"fc": {"bias": jnp.asarray(bias, jnp.float32)}}  # noqa: E731
  assert all((leaf == 1).all() for leaf in jax.tree.leaves(state.weights)) and state.times == 0
  state = Own(of(own), of(weights), jnp.int32(times))
  _, _, upload, after, info = one_round(part, ragged, first, state)
  params, passes = float64(first.params), 1
  if times == 0:
    _, losses = learnt_by_hand(params, own, weights, 100, KEY, ragged)
    passes = next(n for n in range(11, 101) if np.std(losses[n - 10 : n]) < 0.02 or n == 100)
    assert passes < 100
  weights, _ = learnt_by_hand(params, own, weights, passes, KEY, ragged)
  assert info.figures["passes"] == passes and after.times == times + 1
  close(after.weights["fc"]["bias"], weights)
  mixed = own + (params["fc"]["bias"] - own) * weights
  wanted = trained_from({"fc": {"kernel": params["fc"]["kernel"], "bias": mixed}}, ragged)
  close(upload.params, wanted)
  close(after.head["fc"]["bias"], wanted["fc"]["bias"])


@pytest.mark.slow
def test_fedala_judges_the_mixture_of_the_next_round(ragged):
  part = ala(calibration="logit_adjustment")
  first = part.init_broadcast(KEY)
  own, weights = np.array([1.0, -0.5, 0.7]), np.array([0.9, 0.3, 0.6])
  of = lambda bias: {"fc": {"bias": jnp.asarray(bias, jnp.float32)}}  # noqa: E731
  state, context = Own(of(own), of(weights), jnp.int32(1)), fh.Context(CLIENT, 7, 3, 12)
  found = part.personalize(first, state, one_client(ragged, CLIENT), context, 0.0)
  key = jax.random.fold_in(jax.random.fold_in(jax.random.key(WEIGHTS), CLIENT), 7)
  params = float64(first.params)
  prior = np.log(np.bincount(rows_of(ragged, CLIENT)[1]) / SIZES[CLIENT])  # by which losses are calibrated
  learnt, _ = learnt_by_hand(params, own, weights, 1, key, ragged, prior=prior)
  close(found["fc"]["bias"], own + (params["fc"]["bias"] - own) * learnt)
  chex.assert_trees_all_equal(found["fc"]["kernel"], first.params["fc"]["kernel"])
  kept = {"fc": {**params["fc"], "bias": own + (params["fc"]["bias"] - own) * weights}}
  loss = part.loss(first, state, one_client(ragged, CLIENT), context)
  np.testing.assert_allclose(loss, linear_loss_and_gradient(kept, *rows_of(ragged, CLIENT))[0], rtol=1e-5)
  chex.assert_trees_all_equal(part.global_model(first), first.params)


@pytest.mark.slow
def test_fedala_without_weights_or_differences_is_fedavg_bit_for_bit(ragged):
  wanted = one_round(fh.fedavg(mlp(), **LOCAL), ragged)[2]
  chex.assert_trees_all_equal(one_round(fedala(mlp(), rate=0.0, **LOCAL), ragged)[2], wanted)
  _, _, upload, after, info = one_round(fedala(mlp(), **LOCAL), ragged)  # θ_i = θ
  chex.assert_trees_all_equal(upload, wanted)
  assert after.times == 0 and info.figures["passes"] == 0


@pytest.mark.slow
def test_the_first_learning_of_fedala_has_a_bound_and_one_row_is_enough(ragged):
  part = fedala(mlp(), passes=5, share=0.01, **LOCAL)
  first = part.init_broadcast(KEY)
  state = part.init(KEY, first, None, None)
  state = state._replace(head=like(state.head))
  assert one_round(part, ragged, first, state)[4].figures["passes"] == 5
