"""PyTorch's own models as the oracle, in an environment of their own: see `.ci/parity`."""

import jax
import pytest


@pytest.fixture(scope="module", autouse=True)
def compiler():
  """The values of many small programs, in float64: least optimised."""
  jax.config.update("jax_disable_most_optimizations", True)
  with jax.enable_x64(True):
    yield
