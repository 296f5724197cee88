r"""The maximum mean discrepancy between two sets of features, with Gaussian kernels.

Gretton et al., A Kernel Two-Sample Test, JMLR 2012, equation 5, the biased estimate: for a kernel k and sets
z, z' of the same examples,

    MMD² = mean_{a,b} ( k(z_a, z_b) + k(z'_a, z'_b) - 2 k(z_a, z'_b) ).

The kernels are sums over bandwidths, k(u, v) = Σ_s exp(-‖u - v‖² / s).
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp


def distances(a: jax.Array, b: jax.Array) -> jax.Array:
  """Computes ‖a_i - b_j‖², float32 [B, B], of rows [B, d]."""
  return jnp.square(a[:, None] - b).sum(-1)


def mmd(a: jax.Array, b: jax.Array, weight: jax.Array, bandwidths: Sequence[float | jax.Array]) -> jax.Array:
  """Computes MMD² of features a and b, float32 [B, d], over the rows of weight 1, float32 scalar.

  Args:
    a: features of a batch.
    b: other features of the same batch.
    weight: 1 for real examples and 0 for padding, float32 [B].
    bandwidths: the s of the kernels.
  """
  share = weight / weight.sum()

  def mean(squares: jax.Array) -> jax.Array:
    kernel = sum(jnp.exp(-squares / s) for s in bandwidths)
    return share @ kernel @ share

  return mean(distances(a, a)) + mean(distances(b, b)) - 2.0 * mean(distances(a, b))


def adaptive(a: jax.Array, b: jax.Array, weight: jax.Array) -> jax.Array:
  """Computes `mmd` with five bandwidths, the mean distance of two different rows times 1/4, 1/2, 1, 2, 4.

  The mean is over all rows of a and b together, and has no gradient.
  """
  both, there = jax.lax.stop_gradient(jnp.concatenate([a, b])), jnp.concatenate([weight, weight])
  count = there.sum()
  middle = there @ distances(both, both) @ there / (count * (count - 1.0)) + 1e-8
  return mmd(a, b, weight, [middle * 2.0**i for i in range(-2, 3)])
