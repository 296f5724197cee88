"""Online gradient descent and the universal portfolio, AAggFF-S's learners for comparison."""

import numpy as np
import pytest
from test_mixing_learners import KINDS, on_simplex, play, responses_of

from benchmarks.papers import regret
from fedjax_het.mixing.learners import online_gradient_descent, universal_portfolio


@pytest.mark.parametrize("clients", [2, pytest.param(7, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["random", "alternating", "one"])
def test_online_gradient_descent_is_zinkevichs(clients, kind):
  """Against the projection by bisection on its threshold, in float64."""
  rounds, bound = 30, 1.0
  responses = responses_of(kind, clients, rounds)
  played, states = play(responses, online_gradient_descent, clients, bound)
  p = np.full(clients, 1.0 / clients)
  for t, r in enumerate(responses, start=1):
    np.testing.assert_allclose(played[t - 1], p, atol=2e-5)
    v = p + np.sqrt(2.0) / (bound * np.sqrt(clients * t)) * r / (1.0 + p @ r)
    low, high = v.min() - 1.0, v.max()
    for _ in range(60):
      middle = (low + high) / 2
      low, high = (middle, high) if np.maximum(v - middle, 0.0).sum() > 1.0 else (low, middle)
    p = np.maximum(v - low, 0.0)
  on_simplex(states.p)


@pytest.mark.parametrize("kind", ["random", "one", "switching"])
def test_the_universal_portfolio_of_two_is_covers_integral(kind):
  """By quadrature over q in [0, 1], with the wealth of q itself and not of its lead over p."""
  responses = responses_of(kind, 2)
  played, states = play(responses, universal_portfolio, 2)
  on_simplex(states.p)
  np.testing.assert_allclose(played[0], 0.5, rtol=1e-6)
  q = (np.arange(20_000) + 0.5) / 20_000
  wealth = np.cumsum(np.log1p(np.outer(responses[:, 0], q) + np.outer(responses[:, 1], 1 - q)), axis=0)
  weights = np.exp(wealth - wealth.max(1, keepdims=True))
  expected = (weights * q).sum(1) / weights.sum(1)
  np.testing.assert_allclose(states.p[:, 0], expected, atol=0.015)


@pytest.mark.parametrize("clients", [3, pytest.param(11, marks=pytest.mark.slow)])
def test_the_universal_portfolio_averages_its_mixtures_by_their_wealth(clients):
  responses = responses_of("random", clients)
  _, states = play(responses, universal_portfolio, clients, 500, 1)
  q = np.asarray(states.mixtures[0], np.float64)
  assert len(q) == clients * -(-500 // clients)
  np.testing.assert_allclose(q.mean(0), 1.0 / clients, rtol=1e-5)
  wealth = np.cumsum(np.log1p(responses @ q.T), axis=0)
  weights = np.exp(wealth - wealth.max(1, keepdims=True))
  expected = (weights @ q) / weights.sum(1, keepdims=True)
  np.testing.assert_allclose(states.p, expected, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("clients", [2, 7])
@pytest.mark.parametrize("kind", KINDS)
def test_regret_of_the_other_learners_is_below_their_bounds(clients, kind):
  """(3/√2) L √(K T), and (K - 1) log(T + 1) where the sample is large enough."""
  rounds = 400
  responses = responses_of(kind, clients, rounds)
  played, _ = play(responses, online_gradient_descent, clients, 1.0)
  assert regret.regret(played, responses) <= 3 / np.sqrt(2) * np.sqrt(clients * rounds)
  responses = responses / clients
  played, _ = play(responses, universal_portfolio, clients)
  assert regret.regret(played, responses) <= (clients - 1) * np.log(rounds + 1)
