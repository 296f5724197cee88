"""Record-level DP-SGD by hand in float64: the library's draws, and its own arithmetic."""

import jax
import jax.numpy as jnp
import numpy as np
from small_parts import float64, linear_loss_and_gradient, one_client, rows_of

from fedjax_het.clients.private import NOISE


def drawn_batches(key, data, i: int, batch_size: int, steps: int):
  """The Poisson mini-batches of client i's local training: x float64 [b, D], y [b], the step's key."""
  x, y = rows_of(data, i)
  for s in range(steps):
    draw_key, step_key = jax.random.split(jax.random.fold_in(key, s))
    draws = np.asarray(jax.random.uniform(draw_key, (one_client(data, i).limit,)))[: len(x)]
    rows = np.flatnonzero(draws < min(1.0, batch_size / len(x)))
    yield x[rows], y[rows], step_key


def noise_of(step_key, like, std: float, release: int = 0):
  """A step's noise, in float64, in the order of the tree's leaves."""
  leaves, structure = jax.tree.flatten(like)
  key = jax.random.fold_in(jax.random.fold_in(step_key, NOISE), release)
  draws = [jax.random.normal(jax.random.fold_in(key, i), jnp.shape(own)) for i, own in enumerate(leaves)]
  return jax.tree.unflatten(structure, [std * np.asarray(own, np.float64) for own in draws])


def norm(tree) -> float:
  return float(np.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(tree))))


def noised_by_hand(params, batch, clip: float, multiplier: float, expected: float, release: int = 0):
  """(Σ clipped gradients + noise) / expected of `linear`, and how many records were clipped."""
  x, y, step_key = batch
  total, cut = jax.tree.map(np.zeros_like, params), 0
  for row in range(len(x)):
    own = linear_loss_and_gradient(params, x[row : row + 1], y[row : row + 1])[1]
    factor = min(1.0, clip / norm(own))
    cut += factor < 1.0
    total = jax.tree.map(lambda a, b, f=factor: a + f * b, total, own)
  noise = noise_of(step_key, params, multiplier * clip, release)
  return jax.tree.map(lambda a, b: (a + b) / expected, total, noise), cut


def trained_by_hand(params, batches, lr, clip, multiplier, expected, correct=lambda own: own):
  """θ after plain SGD along `correct` of the noised gradients, and how many records were clipped."""
  params, cut = float64(params), 0
  for batch in batches:
    gradient, more = noised_by_hand(params, batch, clip, multiplier, expected)
    params = jax.tree.map(lambda p, g: p - lr * g, params, correct(gradient))
    cut += more
  return params, cut
