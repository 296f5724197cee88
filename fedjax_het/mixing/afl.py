r"""AFL, agnostic federated learning: projected gradient ascent on the mixing coefficients.

Mohri, Sivek, Suresh, Agnostic Federated Learning, ICML 2019:  min_θ max_{p in simplex} Σ_i p_i F_i(θ).

    p_{t+1} = Π_simplex(p_t + γ F),   Π the Euclidean projection,   p_1 = 1/K.

The method assumes all clients in every round. For a partial cohort 𝒮, the step is taken on the coefficients
conditional on the cohort, q = p_𝒮 / m with m = Σ_{i in 𝒮} p_i:  q <- Π(q + γ F_𝒮),  p_𝒮 <- m q, with all
others unchanged, so that p stays on the simplex; the cohort is mixed by q. (A cohort with m = 0 starts from q
= 1/S, and keeps m = 0.)
"""

import jax.numpy as jnp

from fedjax_het.mixing.responses import beyond_one, largest_for_non_finite
from fedjax_het.mixing.simplex import project_simplex
from fedjax_het.parts import Mixing, Needs
from fedjax_het.settings import Positive, checked


@checked(whose="mixing's ")
def afl(lr: Positive = 0.01) -> Mixing:
  """AFL's mixing part; its state is the mixing coefficients p of all clients, float32 [K].

  A loss that is infinite or NaN counts as the largest finite one of its cohort.

  Args:
    lr: γ > 0, step size of the ascent.

  Raises:
    SettingError: γ is out of range; from `check_cohort`, the cohort has one client.
  """

  def init(sizes):
    return jnp.full(sizes.shape[0], 1.0 / sizes.shape[0], jnp.float32)

  def update(p, feedback):
    own = p[feedback.cohort]
    mass = own.sum()
    own = own / jnp.where(mass > 0, mass, 1.0)  # if mass is 0, all are 0 and the projection makes them 1/S
    losses = largest_for_non_finite(feedback.losses())
    q = project_simplex(own + lr * (losses - losses.max()))  # the projection ignores a common shift
    return q, p.at[feedback.cohort].set(mass * q)

  return Mixing(init, update, "afl", needs=Needs(check_cohort=beyond_one))
