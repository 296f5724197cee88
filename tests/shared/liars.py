"""Uploads with some dishonest ones, and the robust rules in NumPy, float64, on vectors [S, D]."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.parts import Message


def cohort(count=11, liars=2, seed=0, size=30.0):
  """(uploads, broadcast) of honest clients with updates alike, and of `liars`, the last ones."""
  rng = np.random.default_rng(seed)
  shapes = {"params": {"w": (2, 3), "b": (4,)}, "extra": (3,), "stats": {"mean": (2,)}, "even": (2, 2)}
  is_shape = lambda node: isinstance(node, tuple)  # noqa: E731
  base = jax.tree.map(lambda shape: rng.normal(size=shape), shapes, is_leaf=is_shape)

  def sent(leaf):
    honest = leaf + 1.0 + 0.3 * rng.normal(size=(count, *leaf.shape))
    honest[count - liars :] += size * rng.normal(size=(liars, *leaf.shape))
    return honest

  as_message = lambda tree: Message(**jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), tree))  # noqa: E731
  return as_message(jax.tree.map(sent, base)), as_message(base)


def flat(stacked) -> np.ndarray:
  """The vectors [S, D] of a tree of leaves [S, ...], float64."""
  return np.concatenate(
    [np.asarray(leaf, np.float64).reshape(len(leaf), -1) for leaf in jax.tree.leaves(stacked)], axis=1
  )


def one(message) -> np.ndarray:
  """The vector [D] of one message."""
  return flat(jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], message))[0]


def trimmed_mean(u, f):
  return np.sort(u, axis=0)[f : len(u) - f].mean(0)


def geometric_median(u, p, iterations, smoothing):
  z = p @ u
  for _ in range(iterations):
    weights = p / np.maximum(smoothing, np.linalg.norm(u - z, axis=1))
    z = weights @ u / weights.sum()
  return z


def centered_clipping(u, p, v, radius, iterations):
  for _ in range(iterations):
    away = u - v
    v = v + p @ (away * np.minimum(1.0, radius / np.linalg.norm(away, axis=1))[:, None])
  return v


def krum_scores(u, neighbours):
  """Each row's sum of squared distances to its nearest other rows."""
  squares = ((u[:, None] - u[None]) ** 2).sum(-1)
  return np.array([np.sort(np.delete(row, i))[:neighbours].sum() for i, row in enumerate(squares)])


def bulyan(u, f):
  left, chosen = list(range(len(u))), []
  for _ in range(len(u) - 2 * f):
    scores = krum_scores(u[left], max(len(left) - f - 2, 1))
    chosen.append(left.pop(int(scores.argmin())))
  kept, middle = u[chosen], np.median(u[chosen], axis=0)
  nearest = np.argsort(np.abs(kept - middle), axis=0)[: len(chosen) - 2 * f]
  return np.take_along_axis(kept, nearest, axis=0).mean(0)
