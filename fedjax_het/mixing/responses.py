r"""From losses to bounded responses (thesis section III-4.2, equation 3.8, and section III-5.1).

    r_i = C₁ + (C₂ - C₁)·CDF(F_i / F̄),   F̄ = mean of the cohort's losses,

so that responses lie in [C₁, C₂] whatever the scale of the loss, and a larger loss has a larger response.
"""

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
"""The six distribution functions, scale 1 (Weibull's shape 2), of x = F_i / F̄ >= 0; section III-5.1."""


def beyond_one(size: int, num: int) -> None:
  """`Mixing.check_cohort` of fair mixings: one client alone counts 1 whatever it sends, as in FedAvg.

  Raises:
    SettingError: a cohort of one.
  """
  if size == 1:
    problem = "one client alone counts 1, and fair mixing would be FedAvg"
    raise SettingError("cohort_size", size, problem, "Use at least 2, or mixing static.")


def relative(losses: jax.Array) -> jax.Array:
  """x_i = F_i / F̄, float32 [S]: 1 in the mean over finite losses, 1 where F̄ = 0, +∞ where F_i is not finite.

  A loss that is infinite or NaN is left out of F̄, and counts as larger than every other.
  """
  losses = jnp.asarray(losses, jnp.float32)
  finite = jnp.isfinite(losses)
  # Scaled by the largest loss, so that the sum of large losses stays finite; and before by a power of 2, so
  # that the largest one's reciprocal is no denormal.
  known = jnp.where(finite, losses, 0.0)
  known = known * jnp.where(jnp.abs(known).max() > 1.0, 2.0**-8, 1.0)
  largest = jnp.abs(known).max()
  scaled = known / jnp.where(largest > 0, largest, 1.0)
  mean = scaled.sum() / jnp.maximum(finite.sum(), 1).astype(jnp.float32)
  return jnp.where(finite, jnp.where(mean > 0, scaled / jnp.where(mean > 0, mean, 1.0), 1.0), jnp.inf)


def respond(losses: jax.Array, cdf: str, low: float = 0.0, high: float = 1.0) -> jax.Array:
  """The responses of equation 3.8.

  Args:
    losses: F_i >= 0 of the cohort, float32 [S]. Where all are 0 every client has x = 1; a loss that is
      infinite or NaN has the distribution function's value 1, and is left out of the mean.
    cdf: a name of `CDFS`.
    low: C₁.
    high: C₂ >= C₁.

  Returns:
    float32 [S], in [C₁, C₂].

  Raises:
    SettingError: an unknown cdf.
  """
  check_choice("cdf", cdf, CDFS)
  x = relative(losses)
  value = jnp.where(jnp.isfinite(x), CDFS[cdf](jnp.where(jnp.isfinite(x), x, 1.0)), 1.0)
  return low + (high - low) * value


def largest_for_non_finite(losses: jax.Array) -> jax.Array:
  """Losses [S] with the largest finite one (1 where there is none) in place of each infinite or NaN one."""
  losses = jnp.asarray(losses, jnp.float32)
  finite = jnp.isfinite(losses)
  largest = jnp.where(finite.any(), jnp.where(finite, losses, -jnp.inf).max(), 1.0)
  return jnp.where(finite, losses, largest)
