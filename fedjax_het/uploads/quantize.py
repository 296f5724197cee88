r"""Quantisation by stochastic rounding to b bits (QSGD).

Alistarh, Grubic, Li, Tomioka, Vojnovic, QSGD: Communication-Efficient SGD via Gradient Quantization and
Encoding, NeurIPS 2017, section 3. With s = 2^{b-1} - 1 levels and the scale m of a tensor or of a block of
it, a number x is sent as its sign and one of the two levels next to s|x|/m, such that the mean is x. It is
unbiased, and its variance at most min(n/s², √n/s) ‖x‖². m is the L2 norm as in the paper, or the largest
magnitude, whose variance is smaller.
"""

from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.parts import Upload, Wire
from fedjax_het.settings import Choice, Count, Whole, checked


def rounded(key: jax.Array, rows: jax.Array, levels: int, norm: str) -> jax.Array:
  """Rounds each row of numbers, float32 [blocks, n], stochastically to multiples of its scale / levels."""
  size = jnp.abs(rows)
  scale = jnp.sqrt(jnp.square(rows).sum(1)) if norm == "l2" else size.max(1)
  some = scale > np.finfo(np.float32).tiny
  inverse = jnp.where(some, 1.0 / jnp.where(some, scale, 1.0), 0.0)
  place = jnp.minimum(size * inverse[:, None] * levels, levels)
  low = jnp.floor(place)
  level = low + (jax.random.uniform(key, rows.shape) < place - low)
  step = jnp.where(scale > 0.0, scale, 0.0 * scale) * jnp.float32(1.0 / levels)  # a NaN stays one
  return jnp.sign(rows) * level * step[:, None]


@checked
def quantize(
  bits: Annotated[int, Whole(2, 16)] = 8,
  block: Count | None = None,
  norm: Annotated[str, Choice(("max", "l2"))] = "max",
) -> Upload:
  """Sends each number in b bits, and a scale of 32 bits for each tensor or block.

  Args:
    bits: b, of which one is the sign.
    block: numbers of a tensor that have a scale of their own; None for one scale for the whole tensor.
    norm: the scale, "max" for the largest magnitude, "l2" for the L2 norm as in the paper.
  """
  levels = 2 ** (bits - 1) - 1

  def one(key: jax.Array, leaf: jax.Array) -> jax.Array:
    each = min(block or leaf.size, leaf.size)
    rows = jnp.pad(leaf.reshape(-1), (0, -leaf.size % each)).reshape(-1, each)
    return rounded(key, rows, levels, norm).reshape(-1)[: leaf.size].reshape(leaf.shape)

  def encode(key, difference, state, way):
    keys = jax.random.split(key, len(difference))
    return [one(own, leaf) for own, leaf in zip(keys, difference)], state

  def cost(wire: Wire) -> Wire:
    scales = -(-wire.size // (block or wire.size))
    return wire._replace(bits=bits, more=wire.more + 32 * scales)

  return Upload(encode, "quantize", cost, compresses=True)
