"""The quadratic program's two methods, each without the other, which would cover up its errors."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het.mixing import simplex

CLIENTS, PROGRAMS = 5, 40


def program(seed):
  """A, b, low, high of a program whose bounds matter, float32."""
  rng = np.random.default_rng(seed)
  root = rng.normal(size=(CLIENTS, CLIENTS))
  center = rng.dirichlet(np.ones(CLIENTS))
  low, high = np.maximum(center - 0.15, 0.0), np.minimum(center + 0.15, 1.0)
  A, b, scale = root @ root.T + 0.1 * np.eye(CLIENTS), rng.normal(size=CLIENTS), 10.0 ** rng.integers(-4, 5)
  return tuple(np.float32(a) for a in (scale * A, scale * b, low, high))


def enumerated(A, b, low, high):
  """The minimum over all guesses of who sits at which bound, float64."""
  A, b, low, high = (np.asarray(a, np.float64) for a in (A, b, low, high))
  best, least = None, np.inf
  for guess in itertools.product((0, 1, 2), repeat=len(b)):
    free = np.array(guess) == 2
    p = np.where(np.array(guess) == 0, low, high)
    if free.any():
      count = free.sum()
      equations = np.block(
        [[A[np.ix_(free, free)], -np.ones((count, 1))], [np.ones((1, count)), np.zeros((1, 1))]]
      )
      right = np.append(-b[free] - A[np.ix_(free, ~free)] @ p[~free], 1.0 - p[~free].sum())
      p[free] = np.linalg.solve(equations, right)[:-1]
    feasible = abs(p.sum() - 1) < 1e-6 and (p >= low - 1e-7).all() and (p <= high + 1e-7).all()
    if feasible and 0.5 * p @ A @ p + b @ p < least:
      best, least = p, 0.5 * p @ A @ p + b @ p
  return best


@pytest.mark.slow
def test_active_sets_alone_are_exact():
  """Without a single step of the other method, but for the few programs whose guesses go round in circles."""
  programs = [program(seed) for seed in range(PROGRAMS)]

  def solve(A, b, low, high):
    project = lambda v: simplex.project_box_simplex(v, low, high)  # noqa: E731
    return simplex._minimise(A, b, low, high, None, project, attempts=1, steps=0)

  found = jax.jit(jax.vmap(solve))(*map(np.stack, zip(*programs)))
  expected = [enumerated(*program) for program in programs]
  at_bounds = [
    np.sum((p <= low + 1e-6) | (p >= high - 1e-6)) for p, (_, _, low, high) in zip(expected, programs)
  ]
  assert len(set(at_bounds)) >= 4  # from nobody, or one, to nearly all
  exact = np.abs(found - np.stack(expected)).max(axis=1) < 2e-6
  assert exact.mean() >= 0.85


def test_accelerated_steps_alone_converge_as_accelerated_ones_do():
  """Curvatures from 1 to 1e-4: plain gradient steps are ten times as far off after as many."""
  size, steps = 12, 400
  rng = np.random.default_rng(0)
  rotation = np.linalg.qr(rng.normal(size=(size, size)))[0]
  A = rotation @ np.diag(np.logspace(0, -4, size)) @ rotation.T
  expected = rng.dirichlet(np.full(size, 20.0))  # inside, where the gradient is the same for all
  A, b, expected = (jnp.asarray(a, jnp.float32) for a in (A, -A @ expected, expected))

  def descend(p):
    return simplex.project_simplex(p - (jnp.dot(A, p, precision="highest") + b))

  @jax.jit
  def both(start):
    plain = jax.lax.fori_loop(0, steps, lambda _, p: descend(p), start)
    return plain, simplex._accelerated(descend, start, 1.0, 0.0, steps)

  far = [np.abs(p - expected).max() for p in both(jnp.full(size, 1 / size))]
  assert far[1] < 0.1 * far[0]
