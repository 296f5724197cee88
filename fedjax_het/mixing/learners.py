r"""Online learners on the probability simplex, usable alone, and the decision loss.

In round t a learner plays p_t, then observes the gradient g_t of a loss ℓ_t at p_t, and returns p_{t+1}.
`online_newton_step` has regret of order log T and needs K² memory; `exponentiated_gradient` has regret of
order √T and needs K (thesis sections III-4.2 and III-5.3).
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_het.errors import check_range
from fedjax_het.mixing.simplex import minimise_on_simplex

PyTree = Any


class Learner(NamedTuple):
  """An online learner of a distribution over K clients; `p` of its state is the next play.

  Attributes:
    init: () -> state, with p_1 = 1/K.
    update: (state, g_t float32 [K]) -> (p_{t+1} float32 [K], state).
  """

  init: Callable[[], PyTree]
  update: Callable[[PyTree, jax.Array], tuple[jax.Array, PyTree]]


def decision_loss(p: jax.Array, r: jax.Array) -> jax.Array:
  """Decision loss ℓ(p) = -log(1 + <p, r>) of a mixture p [K] and responses r [K]; equation 3.3."""
  return -jnp.log1p(jnp.vdot(p, r))


def decision_gradient(p: jax.Array, r: jax.Array) -> jax.Array:
  """Gradient of the decision loss, ∇ℓ(p) = -r / (1 + <p, r>), [K]."""
  return -r / (1.0 + jnp.vdot(p, r))


class NewtonState(NamedTuple):
  """State of the online Newton step: the next play and sufficient sums.

  Attributes:
    p: the next play, float32 [K].
    curvature: A = αI + β Σ_τ g_τ g_τᵀ, float32 [K, K], with each gradient less its mean.
    linear: b = Σ_τ g_τ - β Σ_τ (g_τ·p_τ) g_τ, float32 [K], with each gradient less its mean.
  """

  p: jax.Array
  curvature: jax.Array
  linear: jax.Array


def online_newton_step(
  num: int,
  lipschitz: float,
  alpha: float | None = None,
  beta: float | None = None,
) -> Learner:
  r"""Online Newton step in its follow-the-regularised-leader form (equation 3.7).

      p_{t+1} = argmin_{p in simplex} Σ_τ <g_τ, p> + (α/2)‖p‖² + (β/2) Σ_τ <g_τ, p - p_τ>²
              = argmin_{p in simplex} ½ pᵀA p + bᵀp,

  with the sums over τ = 1, ..., t, A = αI + β Σ g_τ g_τᵀ and b = Σ g_τ - β Σ (g_τ·p_τ) g_τ. Adding a constant
  to all entries of g_τ changes no argmin on the simplex, so each gradient is used less its mean, which keeps
  the sums small in float32.

  The bound 2 L K (1 + log(1 + T/(16 K))) of theorem 3.1 relies on lemma 3.10,

      ℓ(y) >= ℓ(x) + <g, y - x> + (β/2) <g, y - x>²,

  which for this 1-exp-concave loss requires β <= 1/2 in addition to β <= 1/(4L). AAggFF-S has L = 1/K and so
  β = K/4: outside that hypothesis from three clients on, and from four the inequality itself is false, as
  between 1 + <p, r> = 1 and 1.25 for K = 4: -log 1.25 = -0.2231 < -0.25 + 1/32 = -0.2188. The bound as stated
  can then be exceeded on long adversarial sequences: by 30 % for five clients, one of which alone responds
  for ten thousand rounds, then another (the tests hold all of this). With β = min(1/(4L), 1/2) the proof
  holds, and gives α/2 + K/(2β) log(1 + β T L²/α).

  Args:
    num: K, number of clients.
    lipschitz: L > 0, a bound on every |g_i|.
    alpha: α > 0; None is 4 K L.
    beta: β > 0; None is 1 / (4 L).

  Raises:
    SettingError: a setting is out of range.
  """
  alpha = 4.0 * num * lipschitz if alpha is None else alpha
  beta = 1.0 / (4.0 * lipschitz) if beta is None else beta
  for setting, value in (("lipschitz", lipschitz), ("alpha", alpha), ("beta", beta)):
    check_range(setting, value, above=0.0, below=float("inf"))

  def init():
    eye = jnp.eye(num, dtype=jnp.float32)
    return NewtonState(jnp.full(num, 1.0 / num, jnp.float32), alpha * eye, jnp.zeros(num, jnp.float32))

  def update(state, gradient):
    gradient = gradient - gradient.mean()
    curvature = state.curvature + beta * jnp.outer(gradient, gradient)
    linear = state.linear + gradient * (1.0 - beta * jnp.vdot(gradient, state.p))
    p = minimise_on_simplex(curvature, linear, state.p)
    return p, NewtonState(p, curvature, linear)

  return Learner(init, update)


class EntropyState(NamedTuple):
  """State of the exponentiated gradient: the next play and sufficient sums.

  Attributes:
    p: the next play, float32 [K].
    total: Σ_τ g_τ, float32 [K].
    steps: number of gradients observed, int32 scalar.
  """

  p: jax.Array
  total: jax.Array
  steps: jax.Array


def entropy_scores(total: jax.Array, steps: jax.Array, num: int, lipschitz: float) -> jax.Array:
  """Logits of exponentiated gradient (equation 3.12), -√(log K) Σ_τ g_τ / (L √(t + 1)), for given sums."""
  return total * (-math.sqrt(math.log(num)) / (lipschitz * jnp.sqrt(steps.astype(jnp.float32) + 1.0)))


def exponentiated_gradient(num: int, lipschitz: float) -> Learner:
  r"""Exponentiated gradient: follow the regularised leader with negative entropy (equations 3.9 and 3.12).

      p_{t+1,i} ∝ exp(-√(log K) Σ_{τ<=t} g_{τ,i} / (L √(t + 1))),

  in time and memory proportional to K. Its regret on linear losses <g_t, p>, |g_{t,i}| <= L, and so on convex
  losses, is at most 2 L √(T log K) (theorem 3.2).

  Args:
    num: K, number of clients.
    lipschitz: L > 0, a bound on every |g_i|.

  Raises:
    SettingError: a setting is out of range.
  """
  check_range("lipschitz", lipschitz, above=0.0, below=float("inf"))

  def init():
    p = jnp.full(num, 1.0 / num, jnp.float32)
    return EntropyState(p, jnp.zeros(num, jnp.float32), jnp.int32(0))

  def update(state, gradient):
    total, steps = state.total + gradient, state.steps + 1
    p = jax.nn.softmax(entropy_scores(total, steps, num, lipschitz))
    return p, EntropyState(p, total, steps)

  return Learner(init, update)
