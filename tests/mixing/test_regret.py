"""Regret against an independent optimiser."""

import numpy as np
import pytest
from scipy.optimize import minimize

from benchmarks.papers import regret
from fedjax_het.studies.mixture import entropy


@pytest.mark.parametrize(("clients", "rounds", "seed"), [(2, 5, 0), (4, 40, 1), (7, 200, 2)])
def test_best_fixed_is_scipys(clients, rounds, seed):
  responses = np.random.default_rng(seed).uniform(0, 1.0, (rounds, clients)) ** 3
  found = minimize(
    lambda p: regret.decision_losses(p, responses).mean(),
    np.full(clients, 1 / clients),
    bounds=[(0, 1)] * clients,
    constraints={"type": "eq", "fun": lambda p: p.sum() - 1},
    method="SLSQP",
    options={"ftol": 1e-14, "maxiter": 500},
  )
  best = regret.best_fixed(responses)
  assert best.min() >= 0 and best.sum() == pytest.approx(1)
  assert regret.decision_losses(best, responses).mean() <= found.fun + 1e-8


def test_regret_of_the_best_fixed_mixture_is_zero():
  responses = np.random.default_rng(0).uniform(size=(30, 3))
  best = np.tile(regret.best_fixed(responses), (30, 1))
  assert regret.regret(best, responses) == pytest.approx(0.0, abs=1e-9)
  one = np.tile([1.0, 0.0, 0.0], (30, 1))
  assert regret.regret(one, responses) > 0.1
  assert regret.regret_curve(one, responses, [1, 30])[-1] == pytest.approx(regret.regret(one, responses))


def test_bounds_by_hand():
  assert regret.bound_cross_silo(4, 64) == pytest.approx(2 * (1 + np.log(2)))
  assert regret.bound_cross_device(10, 9, 0.5) == pytest.approx(3 * np.sqrt(np.log(10)))


def test_entropy():
  assert entropy([0.25] * 4) == pytest.approx(np.log(4))
  assert entropy([[1.0, 0.0], [0.5, 0.5]]) == pytest.approx([0.0, np.log(2)])
