r"""How much an adaptive mixing loses to the best fixed one, chosen in hindsight (thesis section III-5.3).

Decision losses are  ℓ_t(p) = -log(1 + <p, r_t>)  (eq. 3.3) with responses r_t in [C₁, C₂]^K, and

    Regret(T) = Σ_t ℓ_t(p_t) - min_{p in simplex} Σ_t ℓ_t(p)            (eq. 3.5)

where p_t was chosen before r_t was seen.
"""

import math

import numpy as np
from numpy.typing import ArrayLike


def decision_losses(mixtures: ArrayLike, responses: ArrayLike) -> np.ndarray:
  """ℓ_t(p_t), float64 [T], of mixtures [T, K] (or one, [K]) and responses [T, K]."""
  r = np.asarray(responses, np.float64)
  return -np.log1p((np.asarray(mixtures, np.float64) * r).sum(axis=-1))


def best_fixed(responses: ArrayLike, tolerance: float = 1e-9, max_steps: int = 100_000) -> np.ndarray:
  """argmin_p Σ_t ℓ_t(p) over the simplex, float64 [K].

  On the simplex 1 + <p, r_t> = <p, 1 + r_t>, which makes this Cover's log-optimal portfolio; his iteration
  p_i <- p_i · mean_t (1 + r_ti) / <p, 1 + r_t>  ascends, and stops where no coordinate can gain more than
  `tolerance` a round (Cover, IEEE Trans. Information Theory 30(2), 1984).
  """
  prices = 1.0 + np.asarray(responses, np.float64)
  p = np.full(prices.shape[1], 1.0 / prices.shape[1])
  for _ in range(max_steps):
    gain = (prices / (prices @ p)[:, None]).mean(axis=0)
    if gain.max() - 1.0 <= tolerance:
      break
    p = p * gain
    p /= p.sum()
  return p


def regret(mixtures: ArrayLike, responses: ArrayLike) -> float:
  """Regret(T) of the mixtures p_1, ..., p_T ([T, K]) on the responses r_1, ..., r_T ([T, K])."""
  best = best_fixed(responses)
  return float(decision_losses(mixtures, responses).sum() - decision_losses(best, responses).sum())


def regret_curve(mixtures: ArrayLike, responses: ArrayLike, at: ArrayLike) -> np.ndarray:
  """Regret(t) for each t of `at`, each against the best fixed mixture of its own first t rounds."""
  mixtures, responses = np.asarray(mixtures), np.asarray(responses)
  return np.array([regret(mixtures[:t], responses[:t]) for t in np.asarray(at)])


def bound_cross_silo(num_clients: int, rounds: ArrayLike, lipschitz: float | None = None) -> np.ndarray:
  """Theorem 3.1:  2 L K (1 + log(1 + T / (16 K)));  AAggFF-S has L = 1/K."""
  lipschitz = 1.0 / num_clients if lipschitz is None else lipschitz
  return 2.0 * lipschitz * num_clients * (1.0 + np.log1p(np.asarray(rounds) / (16.0 * num_clients)))


def bound_cross_device(num_clients: int, rounds: ArrayLike, lipschitz: float) -> np.ndarray:
  """Theorem 3.2, all clients participating:  2 L √(T log K)."""
  return 2.0 * lipschitz * np.sqrt(np.asarray(rounds) * math.log(num_clients))


def entropy(mixture: ArrayLike) -> np.ndarray:
  """-Σ_i p_i log p_i over the last axis, in nats; log K where all count the same, 0 where one counts."""
  p = np.asarray(mixture, np.float64)
  return -np.sum(np.where(p == 0, 0.0, p * np.log(np.where(p == 0, 1.0, p))), axis=-1)


def cumulative_objective(mixtures: ArrayLike, losses: ArrayLike) -> np.ndarray:
  """Σ_{τ <= t} Σ_i p_{τ,i} F_{τ,i}, float64 [T], of mixtures and losses [T, S] (figure 3.1)."""
  return np.cumsum((np.asarray(mixtures, np.float64) * np.asarray(losses, np.float64)).sum(axis=-1))
