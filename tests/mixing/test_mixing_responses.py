"""Responses: the thesis's table 3.3, SciPy's distributions, and losses that are no numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from fedjax_het.errors import SettingError
from fedjax_het.mixing.responses import CDFS, largest_for_non_finite, of_scale, respond, spacing_scale

TABLE_3_3 = {  # of the losses 0.01, 0.10, 0.02
  "weibull": (0.05, 1.00, 0.19),
  "frechet": (0.01, 0.65, 0.11),
  "gumbel": (0.12, 0.76, 0.18),
  "exponential": (0.21, 0.90, 0.37),
  "logistic": (0.32, 0.79, 0.37),
  "normal": (0.22, 0.90, 0.29),
}
SCIPY = {
  "weibull": stats.weibull_min(2.0),
  "frechet": stats.invweibull(1.0),
  "gumbel": stats.gumbel_r(1.0),
  "exponential": stats.expon(),
  "logistic": stats.logistic(1.0),
  "normal": stats.norm(1.0),
}
EVERY_CDF = pytest.mark.parametrize("cdf", sorted(CDFS))


@EVERY_CDF
def test_table_3_3(cdf):
  """Exactly from the x that the thesis prints, .23, 2.31, .46; from the losses Normal's .29 is .295."""
  of_x = np.asarray(CDFS[cdf](jnp.array([0.23, 2.31, 0.46])), np.float64)
  np.testing.assert_array_equal(np.round(of_x, 2), TABLE_3_3[cdf])
  responses = respond(jnp.array([0.01, 0.10, 0.02]), cdf, 0.0, 1.0)
  np.testing.assert_allclose(responses, TABLE_3_3[cdf], atol=0.0053)


@EVERY_CDF
def test_scipys_distributions(cdf):
  losses = np.random.default_rng(0).gamma(1.0, size=50)
  low, high = 0.3, 0.7
  expected = low + (high - low) * SCIPY[cdf].cdf(losses / losses.mean())
  found = respond(jnp.asarray(losses, jnp.float32), cdf, low, high)
  np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-7)


def test_all_six_are_there():
  assert set(CDFS) == set(TABLE_3_3)


@pytest.mark.slow
@EVERY_CDF
@settings(max_examples=50, deadline=None)
@given(
  st.lists(st.floats(0.0, 2.0**120, width=32), min_size=1, max_size=8),
  st.floats(1e-3, 1e3),
)
def test_bounded_increasing_and_without_a_scale(cdf, losses, scale):
  losses = np.asarray(losses, np.float32)
  r = np.asarray(respond(losses, cdf, 0.25, 0.5))
  assert np.isfinite(r).all() and (r >= 0.25).all() and (r <= 0.5).all()
  assert (np.diff(r[np.argsort(losses)]) >= 0).all()
  if 1e-20 < losses.max() < 1e30:
    np.testing.assert_allclose(respond(losses * np.float32(scale), cdf, 0.25, 0.5), r, atol=1e-5)


@EVERY_CDF
@pytest.mark.parametrize("loss", [0.0, 0.3, 1e-30, 3e38])
def test_equal_losses_are_at_one(cdf, loss):
  responses = jax.jit(respond, static_argnums=1)(jnp.full(4, loss), cdf, 0.0, 2.0)
  np.testing.assert_allclose(responses, 2.0 * SCIPY[cdf].cdf(1.0), rtol=1e-6)


@EVERY_CDF
@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_a_loss_that_is_no_number_is_the_largest_and_leaves_the_others_alone(cdf, bad):
  others = np.array([0.1, 0.2, 0.6], np.float32)
  responses = respond(jnp.array([0.1, bad, 0.2, 0.6]), cdf, 0.0, 0.25)
  assert responses[1] == 0.25
  np.testing.assert_allclose(np.delete(responses, 1), respond(others, cdf, 0.0, 0.25), rtol=1e-6)
  np.testing.assert_array_equal(respond(jnp.full(3, bad), cdf, 0.0, 0.25), 0.25)


def test_largest_for_non_finite():
  found = largest_for_non_finite(jnp.array([1.0, jnp.nan, 3.0, jnp.inf]))
  np.testing.assert_array_equal(found, [1.0, 3.0, 3.0, 3.0])
  np.testing.assert_array_equal(largest_for_non_finite(jnp.full(2, jnp.nan)), 1.0)


def test_an_unknown_cdf_is_named():
  with pytest.raises(SettingError, match="Did you mean 'weibull'"):
    respond(jnp.ones(2), "weibul")


SCIPY_OF_SCALE = {  # section III-5.1 with its α
  "weibull": lambda a: stats.weibull_min(2.0, scale=a),
  "frechet": lambda a: stats.invweibull(1.0, scale=a),
  "gumbel": lambda a: stats.gumbel_r(a),
  "exponential": lambda a: stats.expon(scale=1 / a),
  "logistic": lambda a: stats.logistic(a),
  "normal": lambda a: stats.norm(a),
}


@EVERY_CDF
def test_the_scale_is_where_the_spacings_product_is_largest(cdf):
  """Against SciPy's distributions and its bounded search, in float64; the sample has equal values."""
  x = np.random.default_rng(3).gamma(2.0, size=12)
  x[4] = x[7]
  x /= x.mean()

  def total(a):
    ends = np.concatenate([[0.0], SCIPY_OF_SCALE[cdf](a).cdf(np.sort(x)), [1.0]])
    return -np.log(np.maximum(np.diff(ends), 1e-7)).sum()

  grid = np.geomspace(1 / 16, 16, 200)
  near = grid[np.argmin([total(a) for a in grid])]
  best = optimize.minimize_scalar(total, bounds=(0.95 * near, 1.05 * near), method="bounded")
  found = float(spacing_scale(cdf, jnp.asarray(x, jnp.float32)))
  assert found == pytest.approx(best.x, rel=3e-3)
  expected = SCIPY_OF_SCALE[cdf](found).cdf(x)
  np.testing.assert_allclose(
    of_scale(cdf, jnp.asarray(x, jnp.float32), found), expected, rtol=1e-4, atol=1e-6
  )
  responses = respond(jnp.asarray(5.0 * x, jnp.float32), cdf, 0.1, 0.9, "spacing")
  np.testing.assert_allclose(responses, 0.1 + 0.8 * expected, rtol=3e-3)


@pytest.mark.parametrize("cdf", ["frechet", "normal"])
def test_the_scale_of_losses_that_are_no_numbers_is_finite(cdf):
  odd = [[0, 0, 0], [1, 1, 1], [np.inf, 0.3, np.nan], [1e30, 0, 0], [np.nan] * 3]
  found = jax.vmap(lambda losses: respond(losses, cdf, 0.0, 0.5, "spacing"))(jnp.array(odd))
  assert ((found >= 0) & (found <= 0.5)).all()
