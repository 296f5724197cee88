r"""Clipping of a client's difference Δ_i to a length, fixed or following a quantile of the clients' lengths.

    Δ_i <- Δ_i min(1, C / ‖Δ_i‖),        the L2 norm over all tensors together.

With a quantile γ (Andrew, Thakkar, McMahan, Ramaswamy, Differentially Private Learning with Adaptive
Clipping, NeurIPS 2021, algorithm 1, without noise) the bound follows the γ-quantile of the lengths,

    C <- C exp(-η_C (b̄ - γ)),        b̄ the share of the cohort with ‖Δ_i‖ <= C.

Clients share log C, and client i sends log C - η_C (b_i - γ), whose mean is the next log C.
"""

import math
from typing import Annotated

import jax
import jax.numpy as jnp

from fedjax_het.errors import SettingError, check_range
from fedjax_het.parts import Upload, Wire
from fedjax_het.settings import Neutral, Positive, Range, Share, checked

Bound = Annotated[float, Range(above=0.0, on_host=True), Neutral(math.inf)]
RATE = 0.2


def length(difference: list[jax.Array]) -> jax.Array:
  """Computes ‖Δ‖ over all tensors, float32 scalar."""
  squares = jnp.stack([jnp.square(leaf).sum() for leaf in difference])
  return jnp.sqrt(squares.sum())


def cost(wire: Wire) -> Wire:
  """Adds the factor to numbers that are not sent as floats any more."""
  return wire if wire.bits == 32 else wire._replace(more=wire.more + 32)


@checked
def clip(norm: Bound = 1.0, quantile: Share | None = None, rate: Positive = RATE) -> Upload:
  """Clips a client's difference to the length C; an infinite fixed C is left out.

  Args:
    norm: C > 0, the largest L2 norm over all tensors; with a quantile its first value.
    quantile: γ in [0, 1], the quantile of the clients' lengths that C follows; None for a fixed C.
    rate: η_C > 0, how fast C follows.

  Raises:
    SettingError: a setting is out of range, `rate` is given without a quantile, or C is infinite with one.
  """
  adaptive, known = quantile is not None, not isinstance(norm, jax.Array)
  if known and norm != math.inf:
    check_range("norm", norm, above=0.0)
  if not adaptive and not isinstance(rate, jax.Array) and rate != RATE:
    raise SettingError("rate", rate, "has no effect without a quantile", "Leave it out, or set quantile.")
  if adaptive and known and norm == math.inf:
    raise SettingError("norm", norm, "never comes down to a quantile", "Start at a number, such as 1.0.")

  def encode(key, difference, state, way):
    bound = jnp.exp(way.shared) if adaptive else norm
    share = jnp.minimum(1.0, bound * (1.0 / jnp.maximum(length(difference), 1e-30)))
    return [share * leaf for leaf in difference], state

  def report(difference, shared):
    inside = (length(difference) <= jnp.exp(shared)).astype(jnp.float32)
    return shared - rate * (inside - jnp.float32(quantile))

  if adaptive:
    return Upload(encode, "clip", cost, shared=jnp.log(jnp.float32(norm)), report=report)
  return Upload(encode, "clip", cost, is_identity=known and norm == math.inf)
