r"""Regret of adaptive mixing coefficients against the best fixed ones in hindsight (thesis section III-5.3).

Decision losses are  ℓ_t(p) = -log(1 + <p, r_t>)  (eq. 3.3) with responses r_t in [C₁, C₂]^K, and

    Regret(T) = Σ_t ℓ_t(p_t) - min_{p in simplex} Σ_t ℓ_t(p)            (eq. 3.5)

where p_t was chosen before r_t was seen.
"""

import math
import os
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from fedjax_het.studies.plots import save


def decision_losses(mixtures: ArrayLike, responses: ArrayLike) -> np.ndarray:
  """Decision losses -log(1 + <p_t, r_t>), float64 [T], of mixtures [T, K] or [K] and responses [T, K]."""
  r = np.asarray(responses, np.float64)
  return -np.log1p((np.asarray(mixtures, np.float64) * r).sum(axis=-1))


def best_fixed(responses: ArrayLike, tolerance: float = 1e-9, max_steps: int = 100_000) -> np.ndarray:
  """Computes the best fixed mixture, argmin_p Σ_t ℓ_t(p) over the simplex, float64 [K].

  On the simplex 1 + <p, r_t> = <p, 1 + r_t>, which makes this Cover's log-optimal portfolio; his iteration
  p_i <- p_i · mean_t (1 + r_ti) / <p, 1 + r_t>  ascends, and stops when no coordinate can gain more than
  `tolerance` per round (Cover, IEEE Trans. Information Theory 30(2), 1984).
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
  """Computes Regret(T) of the mixtures p_1, ..., p_T ([T, K]) on the responses r_1, ..., r_T ([T, K])."""
  best = best_fixed(responses)
  return float(decision_losses(mixtures, responses).sum() - decision_losses(best, responses).sum())


def regret_curve(mixtures: ArrayLike, responses: ArrayLike, at: ArrayLike) -> np.ndarray:
  """Computes Regret(t) for each t in `at`, against the best fixed mixture of the first t rounds."""
  mixtures, responses = np.asarray(mixtures), np.asarray(responses)
  return np.array([regret(mixtures[:t], responses[:t]) for t in np.asarray(at)])


def bound_cross_silo(num_clients: int, rounds: ArrayLike, lipschitz: float | None = None) -> np.ndarray:
  """Regret bound of theorem 3.1:  2 L K (1 + log(1 + T / (16 K)));  AAggFF-S has L = 1/K."""
  lipschitz = 1.0 / num_clients if lipschitz is None else lipschitz
  return 2.0 * lipschitz * num_clients * (1.0 + np.log1p(np.asarray(rounds) / (16.0 * num_clients)))


def bound_cross_device(num_clients: int, rounds: ArrayLike, lipschitz: float) -> np.ndarray:
  """Regret bound of theorem 3.2 with all clients participating:  2 L √(T log K)."""
  return 2.0 * lipschitz * np.sqrt(np.asarray(rounds) * math.log(num_clients))


def plot_regret(
  rounds: ArrayLike,
  curves: dict[str, tuple[ArrayLike, ArrayLike]],
  path: str | os.PathLike[str],
  *,
  title: str = "Regret against the best fixed mixture",
) -> Path:
  """Draws regret over rounds, median and range over sequences, with the theorem's bound.

  Args:
    rounds: t, [N].
    curves: panel title -> (regret [M, N] of M sequences, bound [N]).
    path: the PNG to write; its folder is created if missing.
    title: the figure's title.

  Returns:
    `path`.
  """
  t = np.asarray(rounds)
  figure = Figure(figsize=(3.2 * len(curves) + 1.0, 3.4), layout="constrained")
  figure.suptitle(title, fontsize=12, fontweight="bold")
  for axes, (name, (values, bound)) in zip(figure.subplots(1, len(curves), squeeze=False)[0], curves.items()):
    values = np.atleast_2d(values)
    axes.fill_between(t, values.min(axis=0), values.max(axis=0), alpha=0.25, color="#0072B2", linewidth=0)
    axes.plot(t, np.median(values, axis=0), color="#0072B2", label="measured: median, range")
    axes.plot(t, bound, color="#D55E00", linestyle="--", label="bound")
    axes.set(title=name, xlabel="round", ylabel="regret", xscale="log")
    axes.axhline(0.0, color="#555555", linewidth=0.5)
    axes.legend(frameon=False, fontsize="small", loc="upper left")
  return save(figure, path)
