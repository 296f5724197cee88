r"""Norm bounds: no client moves the model further than a given distance.

Sun, Kairouz, Suresh, McMahan, Can You Really Backdoor Federated Learning?, 2019, section 5. The update
θ_i - θ of a client is shortened to the length min(‖θ_i - θ‖, M); p_i = n_i / n. A client whose update is not
finite has p_i = 0, and is not read; where no update that arrives is finite, the aggregate is not either.
"""

import jax
import jax.numpy as jnp

from fedjax_het import vectors
from fedjax_het.parts import Feedback, Mixing, Needs
from fedjax_het.settings import Positive, checked


@checked
def norm_bound(bound: Positive = 1.0) -> Mixing:
  """Static mixing of updates no longer than M.

  Args:
    bound: M > 0, the largest length of an update, in the L2 norm over all parameters.
  """

  def lengths(feedback: Feedback) -> jax.Array:
    updates = vectors.differences(feedback.uploads().params, feedback.broadcast.params)
    return jnp.sqrt(vectors.squared_norms(updates))

  def update(state, feedback):
    sizes = jnp.where(jnp.isfinite(lengths(feedback)), feedback.sizes, 0).astype(jnp.float32)
    return sizes / sizes.sum(), state

  def scale(feedback):
    return jnp.minimum(1.0, bound * (1.0 / jnp.maximum(lengths(feedback), 1e-30)))

  return Mixing(
    lambda sizes: (), update, "norm_bound", scale, needs=Needs(covers=("params",)), takes_absent=True
  )
