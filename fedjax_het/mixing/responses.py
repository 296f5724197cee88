r"""Bounded responses computed from losses (thesis section III-4.2, equation 3.8, and section III-5.1).

    r_i = C₁ + (C₂ - C₁)·CDF(F_i / F̄),   F̄ = mean of the cohort's losses.

Responses lie in [C₁, C₂] whatever the scale of the loss, and a larger loss has a larger response.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.scipy.special import erf

from fedjax_het.errors import SettingError, check_choice

CDFS: dict[str, Callable[[jax.Array], jax.Array]] = {
  "weibull": lambda x: -jnp.expm1(-(x**2)),
  "frechet": lambda x: jnp.exp(-1.0 / jnp.where(x > 0, x, 1.0)) * (x > 0),
  "gumbel": lambda x: jnp.exp(-jnp.exp(-(x - 1.0))),
  "exponential": lambda x: -jnp.expm1(-x),
  "logistic": lambda x: jax.nn.sigmoid(x - 1.0),
  "normal": lambda x: 0.5 * (1.0 + erf((x - 1.0) / jnp.sqrt(2.0))),
}
"""Cumulative distribution functions of x = F_i / F̄ >= 0, of scale 1 (Weibull's shape 2); section III-5.1."""


SCALES = ("one", "spacing")
LEAST_SPACING = 1e-7  # about float32's precision near 1, to which smaller spacings are rounded up


def of_scale(cdf: str, x: jax.Array, scale: jax.Array | float) -> jax.Array:
  """Evaluates a distribution function at x with the parameter α that section III-5.1 calls its scale.

  Weibull and Frechet are functions of x/α, Exponential of α·x, and Gumbel, Logistic and Normal of x - α.
  """
  if cdf in ("weibull", "frechet"):
    return CDFS[cdf](x / scale)
  return CDFS[cdf](x * scale if cdf == "exponential" else x - scale + 1.0)


def spacing_scale(cdf: str, x: jax.Array) -> jax.Array:
  """Estimates the scale α of a distribution from a sample by maximum spacing, float32 scalar.

  With the sample in order, x_(1) <= ... <= x_(n), it maximises

      Σ_{i=0..n} log(CDF(x_(i+1); α) - CDF(x_(i); α)),   CDF(x_(0)) = 0,  CDF(x_(n+1)) = 1,

  over α in [1/16, 16], on three grids of 33 numbers, each around the best of the one before, which is found
  to 0.1 %. A spacing below `LEAST_SPACING` counts as this, so that equal values, which no α parts, are
  allowed.

  Args:
    cdf: a name of `CDFS`.
    x: the sample, float32 [n]; infinite values count as larger than all others.

  Source: Cheng and Amin, Estimating Parameters in Continuous Univariate Distributions with a Shifted Origin,
  Journal of the Royal Statistical Society B 45(3), 1983, which section III-5.1 names.
  """
  ordered = jnp.sort(x)
  known = jnp.isfinite(ordered)

  def total(log_scale: jax.Array) -> jax.Array:
    value = of_scale(cdf, jnp.where(known, ordered, 1.0), jnp.exp(log_scale))
    ends = jnp.concatenate([jnp.zeros(1), jnp.where(known, value, 1.0), jnp.ones(1)])
    return jnp.log(jnp.maximum(jnp.diff(ends), LEAST_SPACING)).sum()

  best, width = jnp.float32(0.0), math.log(16.0)
  for _ in range(3):
    grid = best + jnp.linspace(-width, width, 33)
    best = grid[jax.vmap(total)(grid).argmax()]
    width /= 16.0
  return jnp.exp(best)


def beyond_one(size: int, num: int) -> None:
  """Rejects cohorts of one client, whose coefficient is always 1; `Needs.check_cohort` of mixings.

  Raises:
    SettingError: the cohort has one client, with which the mixing would be FedAvg's.
  """
  if size == 1:
    problem = "a single client has the coefficient 1, and this mixing would be FedAvg's"
    raise SettingError("cohort_size", size, problem, "Use at least 2, or mixing static.")


def relative(losses: jax.Array) -> jax.Array:
  """Losses relative to their mean, x_i = F_i / F̄, float32 [S]; 1 if F̄ = 0, +∞ if F_i is not finite.

  A loss that is infinite or NaN is excluded from F̄, and counts as larger than every other.
  """
  losses = jnp.asarray(losses, jnp.float32)
  finite = jnp.isfinite(losses)
  # Losses are scaled by the largest, so that the sum of large losses stays finite; and first by a power of 2,
  # so that the largest one's reciprocal is not subnormal.
  known = jnp.where(finite, losses, 0.0)
  known = known * jnp.where(jnp.abs(known).max() > 1.0, 2.0**-8, 1.0)
  largest = jnp.abs(known).max()
  scaled = known / jnp.where(largest > 0, largest, 1.0)
  mean = scaled.sum() / jnp.maximum(finite.sum(), 1).astype(jnp.float32)
  return jnp.where(finite, jnp.where(mean > 0, scaled / jnp.where(mean > 0, mean, 1.0), 1.0), jnp.inf)


def respond(
  losses: jax.Array, cdf: str, low: float = 0.0, high: float = 1.0, scale: str = "one"
) -> jax.Array:
  """Maps the cohort's losses to responses in [C₁, C₂] by a CDF of F_i / F̄ (equation 3.8).

  Args:
    losses: F_i >= 0 of the cohort, float32 [S]. If all are 0, every client has x = 1; a loss that is infinite
      or NaN has the CDF value 1, and is excluded from the mean.
    cdf: a name of `CDFS`.
    low: C₁.
    high: C₂ >= C₁.
    scale: the scale α of the distribution: "one", or "spacing", see `spacing_scale`.

  Returns:
    float32 [S], in [C₁, C₂].

  Raises:
    SettingError: `cdf` or `scale` is unknown.
  """
  check_choice("cdf", cdf, CDFS)
  check_choice("scale", scale, SCALES)
  x = relative(losses)
  of = CDFS[cdf] if scale == "one" else lambda finite: of_scale(cdf, finite, spacing_scale(cdf, x))
  value = jnp.where(jnp.isfinite(x), of(jnp.where(jnp.isfinite(x), x, 1.0)), 1.0)
  return low + (high - low) * value


def largest_for_non_finite(losses: jax.Array) -> jax.Array:
  """Replaces infinite and NaN losses [S] by the largest finite one (by 1 if there is none)."""
  losses = jnp.asarray(losses, jnp.float32)
  finite = jnp.isfinite(losses)
  largest = jnp.where(finite.any(), jnp.where(finite, losses, -jnp.inf).max(), 1.0)
  return jnp.where(finite, losses, largest)
