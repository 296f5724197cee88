r"""Static mixing tilted by the losses, a common form of several fair mixings (thesis remark 3.1).

One step of online mirror descent with negative entropy from static mixing,

    p = argmax_{p in simplex} <p, r> - ζ KL(p ‖ n_i/n),   p_i ∝ n_i exp(r_i / ζ),

is FedAvg, q-FedAvg, TERM or PropFair, depending on the response r (table 3.2, with ζ = 1):

=========  ==============  ==================
FedAvg     0               p_i ∝ n_i
q-FedAvg   q log F_i       p_i ∝ n_i F_i^q
TERM       λ F_i           p_i ∝ n_i exp(λ F_i)
PropFair   -log(M - F_i)   p_i ∝ n_i / (M - F_i)
=========  ==============  ==================

All are stateless. F_i is the training loss of the received model before local training; an infinite or NaN
loss counts as the largest finite one of its cohort.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedjax_het.errors import check_range
from fedjax_het.mixing.fedmgda import normalised
from fedjax_het.mixing.responses import beyond_one, largest_for_non_finite
from fedjax_het.parts import Mixing, Needs
from fedjax_het.settings import NonNegative, Number, Positive, checked


@checked
def tilted(
  response: Callable[[jax.Array], jax.Array] | None, zeta: Positive = 1.0, name: str = "tilted"
) -> Mixing:
  """Tilted mixing p_i ∝ n_i exp(r_i / ζ) over the cohort, computed in log space (equation 3.2).

  Args:
    response: losses, float32 [S] -> r, float32 [S]; None is r = 0, for which no loss is computed.
    zeta: ζ > 0, temperature of the tilt.
    name: name of the method in tables.

  Raises:
    SettingError: ζ is out of range; from `check_cohort`, the cohort has one client although there is a
      response.
  """

  def update(state, feedback):
    scores = jnp.log(feedback.sizes.astype(jnp.float32))
    if response is not None:
      r = jnp.nan_to_num(response(largest_for_non_finite(feedback.losses())))
      scores = scores + (r - r.max()) / zeta
    return jax.nn.softmax(scores), state

  needs = Needs(check_cohort=None if response is None else beyond_one)
  return Mixing(lambda sizes: (), update, name, needs=needs, takes_absent=True)


@checked
def qffl(q: NonNegative = 1.0, lipschitz: Positive | None = None) -> Mixing:
  """q-FedAvg's mixing part: p_i ∝ n_i F_i^q (equation 3.18).

  Li et al., Fair Resource Allocation in Federated Learning, ICLR 2020. Their step is

      θ <- θ - Σ_i n_i F_i^q Δ_i / Σ_i n_i h_i,   h_i = q F_i^(q-1) ‖Δ_i‖² + L F_i^q,   Δ_i = L (θ - θ_i).

  By default the coefficients sum to 1, which is its direction without the first term of h, that shortens
  the step; it would be FedAvg's for equal losses. With `lipschitz` = L the updates are multiplied by
  1 / (1 + q L Σ_i p_i ‖θ - θ_i‖² / F_i), with the p of those that arrive, which makes it this step. A loss of
  0 counts as float32's smallest normal number, 1.2e-38, so that q = 0, and losses that are all 0, give FedAvg
  by default.

  Args:
    q: q >= 0; 0 is FedAvg, and in the limit of large q the largest loss alone counts.
    lipschitz: L > 0, the Lipschitz constant of the clients' gradients in the normaliser; Li et al. take 1/lr
      of the local training. None leaves the normaliser out.

  Raises:
    SettingError: q is out of range; from `check_cohort`, the cohort has one client.
  """
  tiny = jnp.finfo(jnp.float32).tiny
  mixing = tilted(lambda losses: q * jnp.log(jnp.maximum(losses, tiny)), name="qffl")
  if lipschitz is None:
    return mixing

  def scale(feedback):
    p, _ = mixing.update((), feedback)
    if feedback.present is not None:  # uploads of absent clients are zeros, and no updates
      p = jnp.where(feedback.present, p, 0.0)
      p = p * (1.0 / jnp.maximum(p.sum(), tiny))
    _, length = normalised(feedback.uploads().params, feedback.broadcast.params)
    losses = jnp.maximum(largest_for_non_finite(feedback.losses()), tiny)
    shorter = 1.0 / (1.0 + q * lipschitz * jnp.sum(p * length / losses * length))
    return jnp.full_like(p, shorter)

  return mixing._replace(scale=scale)


@checked
def term(lam: Number = 0.1) -> Mixing:
  """TERM's mixing part: p_i ∝ n_i exp(λ F_i) (equation 3.20).

  Li et al., Tilted Empirical Risk Minimization, ICLR 2021.

  Args:
    lam: λ, any number; 0 is FedAvg, above 0 favours large losses, below 0 small ones.

  Raises:
    SettingError: λ is not finite; from `check_cohort`, the cohort has one client.
  """
  return tilted(lambda losses: lam * losses, name="term")


@checked
def propfair(baseline: Number = 3.0, margin: Positive = 0.2) -> Mixing:
  """PropFair's mixing part: p_i ∝ n_i / (M - F_i) (equation 3.22).

  Zhang et al., Proportional Fairness in Federated Learning, TMLR 2023. If M - F_i is below the margin, -log(M
  - F_i) is continued by its tangent there, as in that paper; the weight, its derivative, then stays n_i /
  margin:  p_i ∝ n_i / max(M - F_i, margin).

  Args:
    baseline: M > margin, a loss above all expected ones.
    margin: > 0, the least value that M - F_i counts as.

  Raises:
    SettingError: a setting is out of range; from `check_cohort`, the cohort has one client.
  """
  if not isinstance(margin, jax.core.Tracer):
    check_range("baseline", baseline, above=margin, below=float("inf"))
  return tilted(lambda losses: -jnp.log(jnp.maximum(baseline - losses, margin)), name="propfair")
