"""The step sizes of FedEvg's server."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_het as fh
from fedjax_het.server.sgld import sgld


@pytest.mark.parametrize(("rounds", "ends"), [(20, "after"), (20, "last"), (500, "last"), (1, "last")])
def test_the_servers_step_falls_to_its_last_size_after_the_run_or_in_its_last_round(rounds, ends):
  """β_t = 0.01 + 9.99 (1 + cos(π t/n))/2 with n = T, or n = T - 1 for which β_{T-1} = 0.01."""
  server = sgld(rounds, step_size=10.0, last_step_size=0.01, noise=0.0, bounded=False, ends=ends)
  message, total = fh.Message(jnp.zeros((1, 2)), ()), fh.Message(jnp.ones((1, 2)), jnp.ones(1))
  for t in (0, rounds // 2, rounds - 1):
    after, _ = server.update(jax.random.key(0), jnp.int32(t), message, total)
    beta = 0.01 + 9.99 * 0.5 * (1 + np.cos(np.pi * t / max(rounds if ends == "after" else rounds - 1, 1)))
    np.testing.assert_allclose(-after.params, beta, rtol=1e-4)
  last = {(20, "after"): 0.0715, (20, "last"): 0.01, (500, "last"): 0.01, (1, "last"): 10.0}
  assert beta == pytest.approx(last[rounds, ends], rel=1e-3)
