"""What aggregations make of a cohort without any finite upload."""

import jax
import jax.numpy as jnp
import liars
import numpy as np
import pytest

import fedjax_het as fh


@pytest.mark.parametrize("count", [1, 11])
def test_where_no_upload_is_finite_the_geometric_median_is_not_either(count):
  """So that the run is seen to diverge, rather than its model being set to zeros."""
  uploads, broadcast = liars.cohort(count, liars=0)
  uploads = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), uploads)
  p, present = jnp.full(count, 1 / count), jnp.ones(count, bool)
  found, _ = fh.aggregation.geometric_median().combine(jax.random.key(0), (), p, uploads, broadcast, present)
  assert np.isnan(liars.one(found)).all()
