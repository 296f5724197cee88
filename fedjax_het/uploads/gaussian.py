"""Gaussian noise that every client adds to its difference before it sends it: Δ_i <- Δ_i + N(0, σ² I)."""

import jax

from fedjax_het.errors import is_zero
from fedjax_het.parts import Upload
from fedjax_het.settings import NonNegative, checked


@checked
def gaussian(std: NonNegative = 0.01) -> Upload:
  """Adds independent noise to every number that is sent; σ = 0 is left out.

  Args:
    std: σ >= 0, the standard deviation; z·C after `clip(C)` for the noise multiplier z.
  """

  def encode(key, difference, state, way):
    keys = jax.random.split(key, len(difference))
    return [leaf + std * jax.random.normal(own, leaf.shape) for own, leaf in zip(keys, difference)], state

  return Upload(encode, "gaussian", lambda wire: wire._replace(bits=32), is_identity=is_zero(std))
