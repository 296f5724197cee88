"""The score of a candidate against NumPy, and that it tells what an upload points to."""

import jax.numpy as jnp
import numpy as np

from benchmarks.papers.membership import pull_towards


def test_the_pull_is_a_sum_over_the_class():
  rng = np.random.default_rng(0)
  x, synthetic, signal = (rng.normal(size=(n, 2, 3)) for n in (5, 6, 6))
  y, labels = np.array([0, 1, 2, 1, 0]), np.array([0, 0, 1, 1, 1, 3])
  x[0] = synthetic[0]  # where there is no way to go, and none of class 2
  wanted = np.zeros(5)
  for i in range(5):
    for j in np.flatnonzero(labels == y[i]):
      way = (x[i] - synthetic[j]).ravel()
      length = np.linalg.norm(way)
      wanted[i] -= signal[j].ravel() @ way / length if length else 0.0
  found = pull_towards(*map(jnp.asarray, (x, y, synthetic, labels, signal)))
  np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
  assert found[2] == 0
