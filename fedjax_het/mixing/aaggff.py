r"""AAggFF: adaptive aggregation for fair federated learning (thesis chapter III, algorithms 3.1 and 3.2).

Mixing is sequential decision making. In round t the losses F_i of the received model become responses r_i in
[C₁, C₂] (`responses.respond`, equation 3.8); the server suffers ℓ_t(p_t) = -log(1 + <p_t, r>) (equation 3.3),
an online learner turns its gradient into p_{t+1}, and this round's models are averaged by p_{t+1}.

- `aaggff_s`, cross-silo, all clients in every round: online Newton step, C₁ = 0, C₂ = 1/K (section III-5.2).
- `aaggff_d`, cross-device, a cohort 𝒮 of S of K clients: exponentiated gradient in time and memory linear in
  K, on an estimate of the gradient, C₁ = 0, C₂ = C, where C = P(i in 𝒮).
"""

from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_het.errors import SettingError
from fedjax_het.mixing.learners import (
  LEARNERS,
  EntropyState,
  Learner,
  decision_gradient,
  entropy_scores,
  exponentiated_gradient,
)
from fedjax_het.mixing.responses import CDFS, SCALES, beyond_one, respond
from fedjax_het.parts import Mixing, Needs
from fedjax_het.settings import Choice, Range, checked


@checked
def aaggff_s(
  cdf: Annotated[str, Choice(CDFS)] = "normal",
  scale: Annotated[str, Choice(SCALES)] = "one",
  learner: Annotated[str, Choice(LEARNERS)] = "newton",
) -> Mixing:
  """AAggFF-S's mixing part, for federations whose clients all participate in every round.

  The state is the learner's (`learners.NewtonState`); its p is the round's p_{t+1} over all clients.

  Args:
    cdf: a name of `responses.CDFS`.
    scale: scale α of the distribution: "one", as in the thesis's experiments, or "spacing", estimated from
      each round's losses, see `responses.spacing_scale`.
    learner: a name of `learners.LEARNERS`: "newton" is the thesis's, whose regret is the smallest of those
      that take polynomial time; the others are for comparison.

  Raises:
    SettingError: `cdf`, `scale` or `learner` is unknown; from `check_cohort`, and when a round is traced, the
      cohort is not all clients; from `check_cohort`, there is one client only.
  """

  def learner_of(num: int) -> Learner:
    return LEARNERS[learner](num, 1.0 / num)

  def check_everybody(size: int, num: int) -> None:
    if size != num:
      raise SettingError(
        "cohort_size", size, f"AAggFF-S needs all {num} clients in every round",
        f"Use aaggff_d, which takes any cohort, or cohort_size={num}.",
      )  # fmt: skip

  def check_cohort(size: int, num: int) -> None:
    check_everybody(size, num)
    beyond_one(size, num)

  def update(state, feedback):
    num, cohort = state.p.shape[0], feedback.cohort
    check_everybody(cohort.shape[0], num)
    responses = jnp.zeros(num).at[cohort].set(respond(feedback.losses(), cdf, 0.0, 1.0 / num, scale))
    p, state = learner_of(num).update(state, decision_gradient(state.p, responses))
    return p[cohort], state

  needs = Needs(check_cohort=check_cohort)
  return Mixing(lambda sizes: learner_of(sizes.shape[0]).init(), update, "aaggff_s", needs=needs)


class DrawnState(NamedTuple):
  """State of AAggFF-D: the learner's, `learners.EntropyState`, and the largest bound on its gradients so far.

  Attributes:
    p: the next play, float32 [K].
    total: Σ_τ g_τ, float32 [K].
    steps: number of gradients observed, int32 scalar.
    bound: the largest L̆∞ of a cohort so far, float32 scalar; 0 where no client may be absent: it is known.
  """

  p: jax.Array
  total: jax.Array
  steps: jax.Array
  bound: jax.Array


@checked
def aaggff_d(
  cdf: Annotated[str, Choice(CDFS)] = "normal",
  sampling_probability: Annotated[float, Range(above=0.0, high=1.0)] | None = None,
  scale: Annotated[str, Choice(SCALES)] = "one",
) -> Mixing:
  """AAggFF-D's mixing part, for federations in which a cohort of clients participates in each round.

  The state is `DrawnState`, with p_{t+1} over all clients; the cohort's coefficients are p_{t+1} renormalised
  over it. Where clients may be absent, L̆∞ is that of the least probability of a client that was present so
  far: equation 3.12 has one number for all gradients, and of the others' probabilities nothing is known.

  Args:
    cdf: a name of `responses.CDFS`.
    sampling_probability: C in (0, 1], the probability that a client is in a cohort; None is S / K, its value
      for cohorts drawn uniformly without replacement, or where clients may be absent `Draw.probability`. As
      C₂, which bounds responses, S / K stays, with the rows that a program has for a cohort as S.
    scale: see `aaggff_s`; estimated from the cohort's losses.

  Raises:
    SettingError: `cdf` or `scale` is unknown, or the sampling probability is out of range; from
      `check_cohort`, the cohort has one client.
  """

  def init(sizes):
    start = exponentiated_gradient(sizes.shape[0], lipschitz=1.0).init()  # L does not affect the start
    return DrawnState(start.p, start.total, start.steps, jnp.float32(0.0))

  def update(state, feedback):
    num, cohort = state.p.shape[0], feedback.cohort
    rate = cohort.shape[0] / num if sampling_probability is None else sampling_probability
    observed = respond(feedback.losses(), cdf, 0.0, rate, scale)
    present, drawn = feedback.present, rate
    if present is not None and sampling_probability is None:
      drawn = jnp.where(present, jnp.maximum(feedback.probability, 1e-6), 1.0)
    reference = mean_over(observed, present)
    response = doubly_robust(observed, cohort, num, drawn, present=present)
    gradient = linearised_gradient(state.p, response, reference)
    bound = state.bound
    if present is None:
      lipschitz = estimate_bound(0.0, rate, drawn)
    else:
      lipschitz = bound = jnp.maximum(bound, estimate_bound(0.0, rate, jnp.min(drawn)))
    _, after = exponentiated_gradient(num, lipschitz).update(
      EntropyState(state.p, state.total, state.steps), gradient
    )
    state = DrawnState(after.p, after.total, after.steps, bound)
    # Computed from the exponents, which still differ if all of the cohort's p_i underflow.
    coefficients = jax.nn.softmax(entropy_scores(state.total[cohort], state.steps, num, lipschitz))
    return coefficients, state

  needs = Needs(check_cohort=beyond_one, probability=sampling_probability is None)
  return Mixing(init, update, "aaggff_d", needs=needs, takes_absent=scale == "one")


def mean_over(values: jax.Array, present: jax.Array | None) -> jax.Array:
  """Returns the mean of values [S] over those that are present, bool [S]; None for all. 0 over nobody."""
  if present is None:
    return values.mean()
  return jnp.where(present, values, 0.0).sum() / jnp.maximum(present.sum(), 1)


def doubly_robust(
  observed: jax.Array,
  cohort: jax.Array,
  num: int,
  sampling_probability: float | jax.Array,
  imputed: jax.Array | None = None,
  present: jax.Array | None = None,
) -> jax.Array:
  """Estimates all clients' responses from a cohort's, doubly robust (equation 3.10).

      r̆_i = (1 - I_i/C) r̄ + (I_i/C) r_i,   I_i = 1 for i in the cohort, else 0.

  It is unbiased, E[r̆] = r (lemma 3.2), for an r̄ that does not depend on which cohort was drawn. The mean of
  the observed responses does: it includes a client's response whenever the cohort includes the client. With
  that r̄, and cohorts of S clients drawn uniformly without replacement, the estimate shrinks towards the mean
  μ of all K responses,

      E[r̆_i] = μ + (r_i - μ)·K (S - 1) / (S (K - 1)),

  by the same factor for every client: 1 for S = K, about 1 - 1/S for many clients, and 0 for S = 1, where
  nothing is learnt. (This is for given r; by F̄ of equation 3.8 responses depend on the cohort, too.)

  Args:
    observed: r_i of the cohort, float32 [S].
    cohort: indices of the cohort's clients, int32 [S].
    num: K, number of clients.
    sampling_probability: C, or one for each client of the cohort, [S].
    imputed: r̄, float32 scalar; None is the mean of `observed`, as in the thesis.
    present: whose response is observed, bool [S]; None for all. The others' are r̄.

  Returns:
    r̆, float32 [K].
  """
  imputed = mean_over(observed, present) if imputed is None else imputed
  estimate = imputed + (observed - imputed) / sampling_probability
  if present is not None:
    estimate = jnp.where(present, estimate, imputed)
  return jnp.full(num, imputed, observed.dtype).at[cohort].set(estimate)


def linearised_gradient(p: jax.Array, response: jax.Array, reference: jax.Array) -> jax.Array:
  """Linearises ∇ℓ(p) in the response, around equal responses r̄ of all clients (equation 3.11); float32 [K].

      g̃ = -r / (1 + r̄) + r̄ <p, r - r̄·1> / (1 + r̄)² · 1

  with <p, 1> = 1. Since it is linear, it is unbiased if r is and r̄ does not depend on the cohort (lemma
  3.3). It equals ∇ℓ if r = r̄·1. Its second term is equal for all clients and does not affect exponentiated
  gradient.

  With the mean of the observed responses as r̄, as in the thesis, it is biased beyond the shrinkage of
  `doubly_robust`, since 1/(1 + r̄) and r̆ are computed from the same cohort: for cohorts of S drawn uniformly

      E[r̆_i / (1 + r̄)] = (1 + r_i) h_i - h,   h = E[1 / (1 + r̄)],   h_i = E[1 / (1 + r̄) | i in the cohort],

  where h_i is the smaller the larger r_i is. Without correlation it would be E[r̆_i] h. The difference, the
  covariance of r̆_i and 1/(1 + r̄), is no common factor of the clients; it is 0 for S = K.

  Args:
    p: a mixture, float32 [K].
    response: r, or an estimate of it, float32 [K].
    reference: r̄, float32 scalar.
  """
  spread = jnp.vdot(p, response - reference)
  inverse = 1.0 / (1.0 + reference)
  return (reference * spread * inverse - response) * inverse


def estimate_bound(low: float, high: float, sampling_probability: float | jax.Array) -> Any:
  """Bound on AAggFF-D's gradient estimates, L̆∞ = C₂/(1 + C₁) + 2 (C₂ - C₁)/(C (1 + C₁)) >= |ğ_i|.

  Source: lemma 3.5. For responses in [0, C] it is C + 2.
  """
  return high / (1.0 + low) + 2.0 * (high - low) / (sampling_probability * (1.0 + low))
