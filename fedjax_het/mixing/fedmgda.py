r"""FedMGDA+: the common direction of descent nearest to static mixing.

Hu, Shaloudegi, Zhang, Yu, Federated Learning Meets Multi-objective Optimization, IEEE TNSE 9(4), 2022:

    λ = argmin ‖Σ_i λ_i d_i/‖d_i‖‖²  over  {λ in simplex : |λ_i - n_i/n| <= ε},   d_i = θ_i - θ,

the point of least norm in the hull of the clients' normalised updates. ε = 0 is static mixing; with ε = 1
the negative of that point is a descent direction of every client's loss, or 0. λ here mixes the clients' own
models θ_i, as every mixing part's coefficients do; the paper's server moves along the normalised updates.
"""

import jax
import jax.numpy as jnp

from fedjax_het.errors import check_range
from fedjax_het.federated import Mixing
from fedjax_het.mixing.simplex import minimise_on_box_simplex


def normalised_gram(uploads, broadcast) -> jax.Array:
  """The cosines between clients' updates, float32 [S, S]; 0 for a client whose update is 0.

  Args:
    uploads: the clients' parameters, each leaf [S, ...].
    broadcast: what they started from, each leaf [...].
  """

  def of_leaf(upload, base):
    update = (upload - base).astype(jnp.float32).reshape(upload.shape[0], -1)
    return jnp.dot(update, update.T, precision=jax.lax.Precision.HIGHEST)

  gram = sum(jax.tree.leaves(jax.tree.map(of_leaf, uploads, broadcast)))
  norm = jnp.sqrt(jnp.diagonal(gram))
  inverse = jnp.where(norm > 0, 1.0 / jnp.where(norm > 0, norm, 1.0), 0.0)
  return gram * inverse[:, None] * inverse[None, :]


def fedmgda(epsilon: float = 0.1) -> Mixing:
  """FedMGDA+'s mixing, without memory; computes no losses.

  Args:
    epsilon: ε in [0, 1], how far a coefficient may be from n_i / n.

  Raises:
    SettingError: an ε out of range.
  """
  if not isinstance(epsilon, jax.core.Tracer):
    check_range("epsilon", epsilon, 0.0, 1.0)

  def update(state, feedback):
    sizes = feedback.sizes.astype(jnp.float32)
    static = sizes / sizes.sum()
    gram = normalised_gram(feedback.uploads.params, feedback.broadcast.params)
    low, high = jnp.maximum(static - epsilon, 0.0), jnp.minimum(static + epsilon, 1.0)
    return minimise_on_box_simplex(gram, jnp.zeros_like(static), low, high, static), state

  return Mixing(lambda sizes: (), update, "fedmgda")
