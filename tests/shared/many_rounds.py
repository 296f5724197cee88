"""A run round by round, and plain SGD in float64 on softmax regression, for methods with a server."""

import jax
import jax.numpy as jnp
import numpy as np
from one_round import BATCH, LOCAL, LR, add
from small_parts import float64, linear_loss_and_gradient, round_draws, walk

import fedjax_het as fh


def rounds_of(part, data, cohort_size, rounds, devices=2):
  """Runs the engine round by round: yields (state before, state after, cohort, client keys, figures)."""
  engine = fh.Engine(fh.federated(part), data, cohort_size, devices=devices)
  state = engine.init(jax.random.key(3))
  for _ in range(rounds):
    before = jax.tree.map(jnp.copy, state)
    state, infos = engine.advance(state, 1)
    cohort, keys, _ = round_draws(before, data.num_clients, cohort_size)
    yield before, state, cohort, keys, infos


def stacked(trees):
  return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def flat(tree):
  """A stack as rows, float64 [S, P]."""
  leaves = jax.tree.leaves(float64(tree))
  return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)


def row(stack, i):
  return jax.tree.map(lambda leaf: leaf[i], stack)


def sgd(params, key, data, i, along=lambda gradient, params: gradient, epochs=LOCAL["epochs"]):
  """Plain local SGD on softmax regression."""
  for x, y, _ in walk(key, data, i, BATCH, epochs):
    params = add(params, along(linear_loss_and_gradient(params, x, y)[1], params), -LR)
  return params
