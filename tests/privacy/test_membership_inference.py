"""Membership inference: its figures, confidences and ratios against scikit-learn and plain loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from fedjax_het.privacy import membership
from fedjax_het.privacy.membership import Observed, attack_figures, likelihood_ratios, lira

confidence = jax.jit(membership.confidence)


def test_the_figures_are_scikit_learns_also_with_ties():
  rng = np.random.default_rng(0)
  inside, outside = rng.integers(0, 30, 300) + 4.0, rng.integers(0, 30, 2000).astype(float)
  found = attack_figures(inside, outside)
  labels = np.r_[np.ones(300), np.zeros(2000)]
  assert found["auc"] == pytest.approx(roc_auc_score(labels, np.r_[inside, outside]), abs=1e-12)
  for name, most in (("tpr_1", 20), ("tpr_01", 2)):  # at most so many of the others are above a threshold
    best = max((inside > t).mean() for t in np.r_[outside, -np.inf] if (outside > t).sum() <= most)
    assert found[name] == best


def test_a_few_others_allow_no_false_positive_and_none_no_figure():
  assert attack_figures([3.0, 1.0], [2.0, 0.0]) == {"auc": 0.75, "tpr_1": 0.5, "tpr_01": 0.5}
  assert all(np.isnan(own) for own in attack_figures([], [1.0]).values())
  assert attack_figures([1.0, np.nan], [np.nan, 0.0])["auc"] == 1.0


def test_the_confidence_is_the_logit_of_the_label_s_probability():
  rng = np.random.default_rng(1)
  z, y = rng.normal(size=(50, 4)) * 3, rng.integers(0, 4, 50)
  p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
  own = p[np.arange(50), y]
  np.testing.assert_allclose(confidence(jnp.asarray(z), jnp.asarray(y)), np.log(own / (1 - own)), rtol=1e-4)
  one, label = rng.normal(size=(9, 1)), rng.integers(0, 2, 9)
  q = 1 / (1 + np.exp(-one[:, 0]))
  q = np.where(label == 1, q, 1 - q)
  np.testing.assert_allclose(confidence(jnp.asarray(one), jnp.asarray(label)), np.log(q / (1 - q)), rtol=1e-4)
  sure = confidence(jnp.array([[90.0, 0.0]]), jnp.array([0]))
  assert sure[0] == 90.0  # where the probability itself is 1


@pytest.mark.parametrize("enough", [2, 99])
def test_the_ratios_are_a_plain_loop_s(enough, monkeypatch):
  """With a variance for each example, and with one for all."""
  monkeypatch.setattr(membership, "ENOUGH", enough)
  rng = np.random.default_rng(2)
  inside = rng.random((9, 12)) < 0.5
  phi = rng.normal(size=(9, 12)) + inside
  phi[2, 3] = np.nan
  inside[:, 5] = [True, *[False] * 8]  # too few on one side
  found = likelihood_ratios(phi, inside)
  for r in range(9):
    groups = {
      side: [[phi[s, n] for s in range(9) if s != r and inside[s, n] == side and not np.isnan(phi[s, n])]
             for n in range(12)] for side in (True, False)
    }  # fmt: skip
    pooled = {}
    for side, own in groups.items():
      kept = [values for values in own if len(values) >= 2]
      pooled[side] = sum(np.var(v) * len(v) for v in kept) / sum(len(v) - 1 for v in kept)
    for n in range(12):
      a, b = groups[True][n], groups[False][n]
      if len(a) < 2 or len(b) < 2 or np.isnan(phi[r, n]):
        assert np.isnan(found[r, n])
        continue
      deviations = [
        np.sqrt(pooled[side]) if enough == 99 else np.std(own, ddof=1)
        for side, own in ((True, a), (False, b))
      ]
      expected = stats.norm.logpdf(phi[r, n], np.mean(a), deviations[0])
      expected -= stats.norm.logpdf(phi[r, n], np.mean(b), deviations[1])
      assert found[r, n] == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_lira_finds_members_whose_confidence_moves_and_nobody_else():
  """Examples are known by their ids, in any order; what is hard for all models is hard for LiRA alone not."""
  rng, runs, count = np.random.default_rng(3), 24, 400
  hardness = rng.normal(size=count) * 5
  found = {}
  for shift in (0.0, 2.0):
    seen = []
    for _ in range(runs):
      order, member = rng.permutation(count), rng.random(count) < 0.5
      phi = hardness + rng.normal(size=count) + shift * member
      seen.append(Observed(order.astype(np.uint64), member[order], phi[order]))
    found[shift] = lira(seen)
  assert found[0.0]["auc"] == pytest.approx(0.5, abs=0.02)
  assert found[2.0]["auc"] == pytest.approx(stats.norm.cdf(2 / np.sqrt(2)), abs=0.03)  # of two unit Gaussians
  assert found[2.0]["runs"] == runs and 0 < found[2.0]["std"] < 0.1 and found[2.0]["tpr_1"] > 0.1
