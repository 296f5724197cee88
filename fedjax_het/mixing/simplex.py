r"""Projection onto the probability simplex, and quadratic programs over it, all inside `jit`.

The program is  min_p ½·pᵀAp + bᵀp  over  {p : Σ_i p_i = 1, low_i <= p_i <= high_i},  A symmetric and positive
semidefinite. Its optimality conditions are that, for one ν, (Ap + b)_i = ν if low_i < p_i < high_i, >= ν if
p_i = low_i, and <= ν if p_i = high_i. Two methods alternate (`minimise_on_box_simplex`):

- active sets: guess which clients are at which bound, solve the linear equations for the others, correct the
  guess by the signs; exact after a few steps (Hintermüller, Ito, Kunisch, SIAM J. Optimization 13(3), 2002);
- accelerated projected gradient steps with restarts, which always converge, also if the first method does not
  (Nesterov 1983; O'Donoghue and Candès, Foundations of Computational Mathematics 15, 2015).
"""

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_factor, cho_solve

_EXACT = jax.lax.Precision.HIGHEST


def project_simplex(v: jax.Array) -> jax.Array:
  """Projects v onto the probability simplex (Euclidean), float32 [K].

  It is max(v - τ, 0) with τ found by sorting (Duchi et al., Efficient Projections onto the ℓ1-Ball, ICML
  2008), in time K log K.
  """
  v = v - v.max()  # entries far below the support cannot spoil the sums of those in it
  ordered = jnp.sort(v, descending=True)
  excess = jnp.cumsum(ordered) - 1.0
  count = jnp.arange(1, v.shape[0] + 1).astype(v.dtype)
  support = jnp.sum(ordered * count > excess)
  p = jnp.maximum(v - excess[support - 1] / support.astype(v.dtype), 0.0)
  return p / p.sum()


def project_box_simplex(v: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
  """Projects v onto {p : Σp = 1, low <= p <= high} (Euclidean), float32 [S]; requires Σ low <= 1 <= Σ high.

  The projection is clip(v - τ, low, high), whose sum decreases in τ, piecewise linearly between the 2 S
  numbers v - low and v - high. The sum is evaluated at all of them (S² memory), which identifies the entries
  between the bounds, and these determine τ.
  """
  breaks = jnp.concatenate([v - high, v - low])
  sums = jnp.clip(v[None, :] - breaks[:, None], low, high).sum(axis=1)
  before = jnp.where(sums >= 1.0, breaks, -jnp.inf)
  after = jnp.where(sums <= 1.0, breaks, jnp.inf)
  i, j = before.argmax(), after.argmin()
  left = jnp.where(jnp.isfinite(before[i]), before[i], breaks.min())
  right = jnp.where(jnp.isfinite(after[j]), after[j], breaks.max())
  v = v - 0.5 * (left + right)  # now τ is about 0, with rounding errors of p's scale
  p = jnp.clip(v, low, high)
  for _ in range(2):  # the second pass removes the first one's rounding error
    free = (p > low) & (p < high)
    tau = (p.sum() - 1.0) / jnp.maximum(free.sum(), 1).astype(p.dtype)
    p = jnp.where(free, jnp.clip(p - tau, low, high), p)
  return p


def minimise_on_simplex(A: jax.Array, b: jax.Array, start: jax.Array | None = None) -> jax.Array:
  """Computes argmin_p ½·pᵀAp + bᵀp over the probability simplex, see `minimise_on_box_simplex`."""
  zeros = jnp.zeros_like(b)
  return _minimise(A, b, zeros, jnp.ones_like(b), start, project_simplex)


def minimise_on_box_simplex(
  A: jax.Array, b: jax.Array, low: jax.Array, high: jax.Array, start: jax.Array | None = None
) -> jax.Array:
  """Computes argmin_p ½·pᵀAp + bᵀp over {p : Σp = 1, low <= p <= high}.

  Args:
    A: symmetric, positive semidefinite, float32 [K, K]; for a singular A any minimiser may be returned.
    b: float32 [K].
    low: float32 [K], Σ low <= 1.
    high: float32 [K], Σ high >= 1.
    start: initial guess, float32 [K] (default: uniform, projected); its clients at a bound are the first
      active set. If it is optimal up to rounding, it is returned.

  Returns:
    float32 [K], never below low or above high, of sum 1.
  """
  return _minimise(A, b, low, high, start, lambda v: project_box_simplex(v, low, high))


def _minimise(A, b, low, high, start, project, attempts: int = 2, steps: int = 1000):
  size, eps = b.shape[0], jnp.finfo(A.dtype).eps
  magnitude = jnp.abs(A).max() + jnp.abs(b).max()
  A, b = _centred(A, b)
  # An upper bound of the largest eigenvalue: the smaller of two norms.
  lipschitz = jnp.minimum(jnp.abs(A).sum(axis=1).max(), jnp.sqrt(jnp.sum(A * A)))
  lipschitz = jnp.maximum(lipschitz, eps * magnitude + jnp.finfo(A.dtype).tiny)
  product = lambda p: jnp.dot(A, p, precision=_EXACT)  # noqa: E731

  def descend(p):
    gradient = product(p) + b
    return project(p - (gradient - gradient.mean()) / lipschitz)

  def residual(p):
    return jnp.abs(descend(p) - p).max()

  # Rounding error of the residual: of p itself, and of the gradient's terms on the scale of p.
  tolerance = 2.0 * eps * (1.0 + magnitude / lipschitz)
  point = project(jnp.full(size, 1.0 / size, A.dtype) if start is None else start)

  def turn(state):
    point, best, turns = state
    point, best = _active_sets(A, b, low, high, point, best, project, residual, tolerance)
    candidate = _accelerated(descend, point, best, tolerance, steps)
    return *_better(candidate, residual(candidate), point, best), turns + 1

  state = (point, residual(point), jnp.int32(0))
  return jax.lax.while_loop(lambda s: (s[1] > tolerance) & (s[2] < attempts), turn, state)[0]


def _better(candidate, found, point, best):
  better = found < best  # false for NaN
  return jnp.where(better, candidate, point), jnp.where(better, found, best)


def _centred(A, b):
  """Removes A's and b's parts along the vector of ones, which on the simplex are a constant.

  With 1ᵀp = 1, pᵀ(a·1ᵀ)p = aᵀp; subtracting row means leaves only the curvature between clients, which
  determines the conditioning of the problem. The curvature along ones is then arbitrary, and set to the mean
  of the others.
  """
  size = b.shape[0]
  rows = A.mean(axis=1)
  shift = rows - 0.5 * rows.mean()
  centred = A - shift[:, None] - shift[None, :]
  centred = centred + jnp.trace(centred) / size**2
  b = b + shift
  return centred, b - b.mean()


def _active_sets(A, b, low, high, point, best, project, residual, tolerance, steps: int = 25):
  """Primal-dual active-set iterations from `point`'s set; returns the best point seen and its residual."""
  eps = jnp.finfo(A.dtype).eps
  ridge = 4.0 * eps * jnp.trace(A)

  def solve(at_low, at_high):
    free = ~(at_low | at_high)
    fixed = jnp.where(at_low, low, jnp.where(at_high, high, 0.0))
    among, only_free = free[:, None] & free[None, :], free[:, None].astype(A.dtype)
    eye = jnp.eye(b.shape[0], dtype=A.dtype)
    factor = cho_factor(jnp.where(among, A, eye) + ridge * eye)
    right = jnp.stack([-b - jnp.dot(A, fixed, precision=_EXACT), jnp.ones_like(b)], axis=1) * only_free
    inside = jnp.where(among, A, 0.0)

    def refine(_, x):  # the first step, from 0, solves; the others correct for the ridge
      return x + cho_solve(factor, right - jnp.dot(inside, x, precision=_EXACT)) * only_free

    particular, direction = jax.lax.fori_loop(0, 3, refine, jnp.zeros_like(right)).T
    total = direction.sum()
    nu = (1.0 - fixed.sum() - particular.sum()) / jnp.where(total > 0, total, 1.0)
    p = particular + nu * direction + fixed
    multiplier = jnp.dot(A, p, precision=_EXACT) + b - nu
    return p, multiplier

  def step(state):
    at_low, at_high, best_point, best, count, _ = state
    p, multiplier = solve(at_low, at_high)
    free = ~(at_low | at_high)
    next_low = (free & (p < low)) | (at_low & (multiplier >= 0))
    next_high = (free & (p > high)) | (at_high & (multiplier <= 0))
    same = (next_low == at_low).all() & (next_high == at_high).all()
    candidate = project(p)
    best_point, best = _better(candidate, residual(candidate), best_point, best)
    return next_low, next_high, best_point, best, count + 1, same | (best <= tolerance)

  def unfinished(state):
    return ~state[5] & (state[4] < steps)

  at_low, at_high = point <= low, (point >= high) & (high > low)
  start = (at_low, at_high, point, best, jnp.int32(0), jnp.bool_(False))
  state = jax.lax.while_loop(unfinished, step, start)
  return state[2], state[3]


def _accelerated(descend, point, best, tolerance, steps):
  """Nesterov's accelerated steps from `point` until convergence, restarted when they oppose the descent."""

  def step(state):
    p, y, momentum, count, _ = state
    new = descend(y)
    restart = jnp.sum((y - new) * (new - p)) > 0
    moment = jnp.where(restart, 1.0, momentum)
    following = 0.5 * (1.0 + jnp.sqrt(1.0 + 4.0 * moment**2))
    y_new = new + (moment - 1.0) / following * (new - p)
    moved = jnp.abs(new - y).max()
    return new, jnp.where(restart, new, y_new), following, count + 1, moved

  def unfinished(state):
    return (state[4] > tolerance) & (state[3] < steps)

  one = jnp.ones((), point.dtype)
  return jax.lax.while_loop(unfinished, step, (point, point, one, jnp.int32(0), best))[0]
