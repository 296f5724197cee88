r"""FedExP: the server's step is extrapolated where the clients' updates point apart.

Jhunjhunwala, Wang, Joshi, FedExP: Speeding Up Federated Averaging via Extrapolation, ICLR 2023, equation 6,
with the coefficients p_i = n_i / n in the place of 1/S. With Δ_i = θ_i - θ and Δ = Σ_i p_i Δ_i,

    θ <- θ + η_g Δ,      η_g = max(1, Σ_i p_i ‖Δ_i‖² / (2 (‖Δ‖² + ε))).

The paper evaluates the mean of the last two models, because the last one alone swings; here the last one is
evaluated.
"""

import jax
import jax.numpy as jnp

from fedjax_het import vectors
from fedjax_het.mixing.responses import beyond_one
from fedjax_het.mixing.static import shares_of_examples
from fedjax_het.parts import Feedback, Mixing, Needs
from fedjax_het.settings import Positive, checked


def extrapolation(p: jax.Array, squares: jax.Array, of_mean: jax.Array, eps: float | jax.Array) -> jax.Array:
  """Computes η_g, float32 scalar, from p [S], ‖Δ_i‖² [S] and ‖Δ‖²."""
  return jnp.maximum(1.0, (p * squares).sum() / (2.0 * (of_mean + eps)))


@checked
def fedexp(eps: Positive = 1e-3) -> Mixing:
  """FedExP's mixing part.

  Args:
    eps: ε > 0, in squared parameters.

  Raises:
    SettingError: ε is out of range; from `check_cohort`, the cohort has one client.
  """

  def length(feedback: Feedback) -> jax.Array:
    p = shares_of_examples(feedback)
    updates = vectors.differences(feedback.uploads().params, feedback.broadcast.params)
    mean = vectors.weighted_sum(p, updates)
    of_mean = sum(jnp.square(leaf).sum() for leaf in jax.tree.leaves(mean))
    return extrapolation(p, vectors.squared_norms(updates), jnp.asarray(of_mean), eps)

  return Mixing(
    lambda sizes: (), lambda state, feedback: (shares_of_examples(feedback), state), "fedexp",
    lambda feedback: jnp.full(feedback.sizes.shape, length(feedback)),
    figures=lambda feedback: {"server_step": length(feedback)}, needs=Needs(check_cohort=beyond_one),
    takes_absent=True,
  )  # fmt: skip
