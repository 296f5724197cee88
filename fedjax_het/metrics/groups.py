"""Multiple comparisons with the best: which methods cannot be told apart from the best, over paired seeds.

Hsu, Multiple Comparisons: Theory and Methods, 1996, chapter 4, for a randomised complete block design, whose
blocks are the seeds: y_ms = μ_m + b_s + e_ms. With k methods, n seeds and the residual variance s² on ν
degrees of freedom, method m is worse than the best if ȳ_best - ȳ_m > d s √(2/n), where d is Dunnett's
one-sided critical value for k - 1 comparisons, P(max_i T_i ≤ d) = 1 - α with T of a multivariate t
distribution with correlations 1/2. If the e_ms have one variance, the true best method is then declared worse
with a probability of at most α, whichever it is, however the others are.

They do not have one variance here. With a best method that varies up to three times as much as the others,
pooling alone leaves it out of the first group in 19 of 100 simulated boards at α = 0.05. So a pair's own
variance of differences counts where it is larger than 2 s², and α is `LEVEL`, with which fewer than 5 of 100
do in all situations that were simulated (tests/metrics/test_groups.py).

Methods whose spread over the seeds is another than the best one's are compared with it by Welch's test. From
five seeds a variance is known so badly that, corrected for 70 comparisons, a method of 83 ± 6 is not told
apart from one of 97.5 ± 0.5. So variances are moderated, as in Smyth, Linear Models and Empirical Bayes
Methods for Assessing Differential Expression in Microarray Experiments, 2004, section 6: if the methods'
variances σ² are draws of an inverse χ² with d₀ degrees of freedom and scale s₀², then

    s̃² = (d₀ s₀² + ν s²) / (d₀ + ν),    on d₀ + ν degrees of freedom, ν = n - 1,

with d₀ and s₀² from the mean and the variance of log s² over the methods. d₀ is at most ν, so that one method
that varies far more than all others is not taken for one of them.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import gammaincinv, ndtr, polygamma, psi, stdtr, stdtrit

LEVEL = 0.0125  # α, which keeps the true best in the first group of 95 of 100 boards, see above
POOLED = 3.0  # most ratio of two standard deviations over seeds whose variances are pooled
_POINTS = 96


class Groups(NamedTuple):
  """The methods that cannot be told apart from the best one, and the others.

  Attributes:
    best: the method of the best mean.
    first: those that cannot be told apart from it, itself included, in alphabetical order.
    others: those that are worse, from the best mean on.
    margin: the smallest difference of means that tells a pooled method apart from the best, d s √(2/n), or
      more where a pair's own differences vary more; None if nothing is pooled with the best.
    pooled: the methods with a common variance, in alphabetical order; the others are compared by Welch's
      test.
    degrees: ν, the degrees of freedom of the common variance.
    seeds: n.
  """

  best: str
  first: Sequence[str]
  others: Sequence[str]
  margin: float | None
  pooled: Sequence[str]
  degrees: int
  seeds: int


def with_the_best(
  values: Mapping[str, Mapping[int, float]], higher_is_better: bool = True, alpha: float = LEVEL
) -> Groups:
  """Returns which methods cannot be told apart from the best one.

  The variance is pooled over the methods whose standard deviation over the seeds is within a factor of three
  of the best one's; these are compared by Hsu's procedure on the paired differences, with the value of d for
  all k - 1 comparisons and max(2 s², the variance of the pair's differences). Each other method is
  compared with the best by Welch's one-sided test with moderated variances, see above. Its p-values are
  corrected by Holm's method over all k - 1 comparisons with the best: the j-th smallest is multiplied by
  k - j.

  Args:
    values: method -> seed -> figure; all methods have the same seeds.
    higher_is_better: whether the best method has the highest mean.
    alpha: α, see above.

  Raises:
    ValueError: there is no method, fewer than two seeds, or methods have different seeds.
  """
  names = sorted(values)
  seeds = sorted(values[names[0]]) if names else []
  if len(seeds) < 2 or any(sorted(own) != seeds for own in values.values()):
    raise ValueError("Methods are compared over two seeds or more, which all of them have.")
  sign = 1.0 if higher_is_better else -1.0
  y = sign * np.array([[values[name][seed] for seed in seeds] for name in names], np.float64)
  k, n = y.shape
  means, stds = y.mean(axis=1), y.std(axis=1, ddof=1)
  top = int(np.argmax(means))
  near = (stds <= POOLED * stds[top]) & (stds[top] <= POOLED * stds)
  pool, apart = np.flatnonzero(near), np.flatnonzero(~near)
  degrees, margin = (len(pool) - 1) * (n - 1), None
  worse: set[int] = set()
  if len(pool) > 1:
    own = y[pool]
    rest = own - own.mean(axis=1, keepdims=True) - own.mean(axis=0) + own.mean()
    d, twice = critical(k - 1, degrees, alpha), 2.0 * float((rest**2).sum()) / degrees
    margin = d * math.sqrt(twice / n)
    for m in map(int, pool):
      own_twice = max(twice, float((y[top] - y[m]).var(ddof=1)))
      if means[top] - means[m] > d * math.sqrt(own_twice / n):
        worse.add(m)
  prior = prior_of(stds**2, n - 1)
  p = {int(m): welch(y[top], y[m], prior) for m in apart}
  for rank, m in enumerate(sorted(p, key=lambda m: p[m])):
    if p[m] * (k - 1 - rank) > alpha:
      break
    worse.add(m)
  order = sorted(worse, key=lambda m: (-means[m], names[m]))
  return Groups(
    names[top], [names[m] for m in range(k) if m not in worse], [names[m] for m in order], margin,
    [names[m] for m in pool], degrees, n,
  )  # fmt: skip


class Prior(NamedTuple):
  """What the variances of all methods say of one: d₀ degrees of freedom and the scale s₀²."""

  degrees: float = 0.0
  scale: float = 0.0


NO_PRIOR = Prior()


def prior_of(variances: np.ndarray, degrees: int) -> Prior:
  """Returns the prior of variances, each of ν degrees of freedom, by the moments of their logarithms.

  With e = log s² - ψ(ν/2) + log(ν/2), E e = log s₀² - ψ(d₀/2) + log(d₀/2) and Var e = ψ'(ν/2) + ψ'(d₀/2).
  d₀ is at most ν. Variances of 0 are left out; of fewer than three others no prior is made, d₀ = 0.

  Args:
    variances: s² of each method.
    degrees: ν.
  """
  known = variances[variances > 0]
  if len(known) < 3:
    return NO_PRIOR
  e = np.log(known) - psi(degrees / 2.0) + math.log(degrees / 2.0)
  rest = float(e.var(ddof=1) - polygamma(1, degrees / 2.0))
  own = float(degrees)
  if rest > polygamma(1, own / 2.0):
    own = 2.0 * float(brentq(lambda half: polygamma(1, half) - rest, 1e-6, own / 2.0))
  return Prior(own, math.exp(float(e.mean()) + float(psi(own / 2.0)) - math.log(own / 2.0)))


def welch(better: np.ndarray, other: np.ndarray, prior: Prior = NO_PRIOR) -> float:
  """Returns the one-sided p-value of Welch's test that the first sample's mean is not the larger one.

  Args:
    better: the sample of the larger mean, [n].
    other: the other one, [m]. If neither varies, the p-value is 0 or, for equal means, 1.
    prior: by which variances are moderated; by default they are the samples' own.
  """
  own = np.array([len(better), len(other)]) - 1
  degrees = prior.degrees + own
  squares = prior.degrees * prior.scale + own * np.array([better.var(ddof=1), other.var(ddof=1)])
  terms = squares / degrees / (own + 1)
  difference = float(better.mean() - other.mean())
  if not terms.sum():
    return 0.0 if difference > 0 else 1.0
  nu = terms.sum() ** 2 / float((terms**2 / degrees).sum())
  return float(stdtr(nu, -difference / math.sqrt(terms.sum())))


@functools.lru_cache(maxsize=1024)
def critical(comparisons: int, degrees: int, alpha: float) -> float:
  """Returns Dunnett's one-sided critical value d for equal sample sizes, P(max_i T_i ≤ d) = 1 - α.

  Args:
    comparisons: the number of T_i = (Z_i - Z_0) / (√2 S), with Z standard normal and ν S² of a χ²_ν.
    degrees: ν >= 1.
    alpha: α.
  """
  most = 1.0 + float(stdtrit(degrees, 1.0 - alpha / comparisons))  # above Bonferroni's value, which is larger
  return float(brentq(lambda d: below(d, comparisons, degrees) - (1.0 - alpha), 0.0, most, xtol=1e-9))


def below(d: float, comparisons: int, degrees: int) -> float:
  """Returns P(max_i T_i ≤ d) = E_S E_Z Φ(Z + √2 d S)^m, see `critical`, by Gaussian quadrature.

  The outer mean is over the quantiles of S, the inner one over Z on [-9, 9].
  """
  x, weights = np.polynomial.legendre.leggauss(_POINTS)
  s = np.sqrt(2.0 * gammaincinv(degrees / 2.0, (x + 1.0) / 2.0) / degrees)
  z = 9.0 * x
  normal = 9.0 * weights * np.exp(-(z**2) / 2.0) / math.sqrt(2.0 * math.pi)
  inner = ndtr(z[None, :] + math.sqrt(2.0) * d * s[:, None]) ** comparisons @ normal
  return float(inner @ weights / 2.0)
