r"""The Gaussian mechanism on a cohort's updates: user-level differential privacy, as in DP-FedAvg.

McMahan, Ramage, Talwar, Zhang, Learning Differentially Private Recurrent Language Models, ICLR 2018,
algorithm 1 with the estimator f̃_f. With Δ_i the difference between upload and broadcast, all fields together
as one vector, the aggregate is

    θ + (1/E) (Σ_i Δ_i min(1, C/‖Δ_i‖) + z C N(0, I)),        the sum over those that arrive,

E the number of clients that a round is expected to have: q K under Poisson sampling, S for a whole cohort. A
round in which nobody arrives is noise alone.

With a quantile γ the bound follows the γ-quantile of the lengths (Andrew, Thakkar, McMahan, Ramaswamy,
Differentially Private Learning with Adaptive Clipping, NeurIPS 2021, algorithm 1):

    b̄ = (Σ_i (b_i - 1/2) + σ_b N(0, 1)) / E + 1/2,  b_i = 1[‖Δ_i‖ <= C],    C <- C exp(-η (b̄ - γ)),

and the sum then has the noise z_Δ C, z_Δ = (z⁻² - (2σ_b)⁻²)^(-1/2), so that both together are the mechanism
of multiplier z (theorem 1 there).

Correlated noise is that of `privacy.correlated`: σ (C⁻¹ N)_t with σ = z C in the place of z C N(0, I).
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_het import vectors
from fedjax_het.errors import SettingError, check_range, check_same_rounds, is_zero
from fedjax_het.parts import Aggregation, Mechanism, Message, Needs, PyTree, Sampling
from fedjax_het.privacy import accounting, correlated
from fedjax_het.settings import Choice, Count, Neutral, NonNegative, Positive, Range, Share, checked

Bound = Annotated[float, Range(above=0.0, on_host=True), Neutral(math.inf)]
Delta = Annotated[float, Range(above=0.0, below=1.0)]
COVERED = ("params", "extra", "even")  # running statistics with noise could have variances below 0
RATE = 0.2
BANDS = {"banded": 4, "blt": 3}
LARGEST_SHARE = 1.0 / 20.0  # σ_b / E in the paper's experiments


class Noised(NamedTuple):
  """State of the part.

  Attributes:
    bound: C of the next round, float32 scalar; () if it is fixed.
    past: what correlated noise keeps of earlier rounds', in the form of the broadcast; () for fresh noise.
  """

  bound: PyTree = ()
  past: PyTree = ()


def corrected(multiplier: Any, count_noise: Any) -> jax.Array:
  """Computes z_Δ = (z⁻² - (2σ_b)⁻²)^(-1/2), float32, as z / √(1 - (z / 2σ_b)²), which is 0 for z = 0."""
  ratio = multiplier * (0.5 / jnp.maximum(jnp.float32(count_noise), 1e-30))
  return multiplier * jax.lax.rsqrt(jnp.maximum(1.0 - ratio**2, 1e-12))


def normal_like(key: jax.Array, tree: PyTree) -> PyTree:
  """Draws standard normal numbers in the form of a tree, float32."""
  leaves, structure = jax.tree.flatten(tree)
  keys = jax.random.split(key, max(len(leaves), 1))
  return jax.tree.unflatten(
    structure, [jax.random.normal(own, leaf.shape) for own, leaf in zip(keys, leaves)]
  )


@checked(whose="aggregation's ")
def gaussian(
  clip: Bound = 1.0,
  noise_multiplier: NonNegative | None = None,
  epsilon: Positive | None = None,
  delta: Delta | None = None,
  quantile: Share | None = None,
  rate: Positive = RATE,
  count_noise: Positive | None = None,
  correlation: Annotated[str, Choice(correlated.KINDS)] = "none",
  bands: Count | None = None,
  rounds: Count | None = None,
) -> Aggregation:
  """Clipped updates in a sum with Gaussian noise, for user-level differential privacy.

  Every update counts alike, so that the mixing must be `uniform`; an infinite fixed clip without noise is
  then left out where a whole cohort arrives. All that clients send is under the clip, or the composition is
  refused. What is guaranteed, and to whom, is in docs/privacy.md. Noise from JAX's generator is for
  simulation: a deployment needs one that is cryptographically secure.

  Args:
    clip: C > 0, the largest L2 norm of an update over all fields; with a quantile its first value.
    noise_multiplier: z >= 0, the noise's standard deviation in a coordinate of the sum over C; None for 1, or
      for the one that `epsilon` asks for.
    epsilon: ε > 0 that the run's rounds may have at `delta`, from which z is found before anything is
      compiled, by the accountant of the participation; None to give z.
    delta: δ in (0, 1), at which ε is told; None for K^-1.1.
    quantile: γ in [0, 1], the quantile of the clients' lengths that C follows; None for a fixed C.
    rate: η > 0, how fast C follows.
    count_noise: σ_b > z/2, the noise's standard deviation on the number of clients within C; None for the
      larger of E/20 (the paper's) and z.
    correlation: "none" for fresh noise in each round; "banded" or "blt" for noise that later rounds take
      back, see `privacy.correlated`, for participations with rounds in between, such as `cyclic`.
    bands: bands of "banded", 4 by default and T at most, for which a client takes part in every so many
      rounds at most; of "blt" its buffers, 3 by default.
    rounds: T of the run, for `epsilon` and correlated noise; a configuration gives it.

  Raises:
    SettingError: a setting is out of range or has no effect; settings contradict one another; from
      `check_rounds`, the run has another T; from `check_sampling`, a client may take part again too early for
      correlated noise; from `Mechanism.multiplier`, `count_noise` is not above z/2 for the z of `epsilon`.
  """
  adaptive, known = quantile is not None, not isinstance(clip, jax.Array)
  given, chain = noise_multiplier, correlation != "none"
  if epsilon is None:
    given = 1.0 if given is None else given
  _check(clip, given, epsilon, quantile, rate, count_noise, correlation, bands, rounds)
  width = bands or BANDS.get(correlation, 1)
  if correlation == "banded":
    width = min(width, rounds or width)

  def of_rounds(sampling: Sampling) -> Any:
    return None if not chain else correlated.strategy(correlation, rounds or 1, width, sampling)

  def multiplier(sampling: Sampling) -> Any:
    """Returns z of a run."""
    if epsilon is None:
      return given
    if isinstance(epsilon, jax.Array) or isinstance(delta, jax.Array):
      raise SettingError(
        "aggregation's epsilon", "a traced number", "noise is found for it before a program is traced",
        "Vary noise_multiplier, which fh.privacy.noise_multiplier finds for an epsilon.",
      )  # fmt: skip
    own = accounting.Rounds(sampling, 1.0, strategy=of_rounds(sampling))
    at = delta or accounting.default_delta(sampling.num_clients)
    found = accounting.calibrated(own, epsilon, rounds or 1, at)
    _check_count_noise(count_noise, found)
    return found

  def init(broadcast: Message) -> Noised:
    past: PyTree = ()
    if chain:
      past = jax.tree.map(
        lambda leaf: jnp.zeros((width - (correlation == "banded"), *leaf.shape), jnp.float32), broadcast
      )
    return Noised(jnp.float32(clip) if adaptive else (), past)

  def combine(key, state, p, uploads, broadcast, present, sampling):
    updates = vectors.differences(uploads, broadcast)
    norms = jnp.sqrt(vectors.squared_norms(updates))
    bound = state.bound if adaptive else jnp.float32(clip)
    each = 1.0 / jnp.float32(sampling.expected)
    share = jnp.minimum(1.0, bound * (1.0 / jnp.maximum(norms, 1e-30)))
    total = vectors.weighted_sum(jnp.where(present & jnp.isfinite(norms), share, 0.0), updates)
    z, after = multiplier(sampling), state
    if adaptive:
      usual = jnp.maximum(LARGEST_SHARE * jnp.float32(sampling.expected), z)
      of_count = jnp.where(z > 0, usual if count_noise is None else count_noise, 0.0)
      inside = jnp.where(present, (norms <= bound).astype(jnp.float32) - 0.5, 0.0).sum()
      blur = of_count * jax.random.normal(jax.random.fold_in(key, 1))
      found = (inside + blur) * each + 0.5
      after = after._replace(bound=bound * jnp.exp(-rate * (found - quantile)))
      z = corrected(z, of_count)
    if not is_zero(z):
      deviation = jnp.where(z > 0, z * bound, 0.0)
      noise = jax.tree.map(lambda leaf: deviation * leaf, normal_like(key, total))
      if chain:
        matrix = correlated.factor(correlation, rounds or 1, width, sampling.separation).inverse()
        noise, past = matrix.multiply_next(noise, state.past)
        after = after._replace(past=past)
      total = jax.tree.map(jnp.add, total, noise)
    aggregate = jax.tree.map(lambda base, own: base.astype(jnp.float32) + each * own, broadcast, total)
    return vectors.in_kind_of(uploads, aggregate), after

  def check_rounds(own: int) -> None:
    if epsilon is not None or chain:
      why = "the noise is found for so many rounds"
      check_same_rounds("aggregation's rounds", rounds, own, why, "gaussian(")

  def check_sampling(sampling: Sampling) -> None:
    least = width if correlation == "banded" else 2
    if chain and sampling.separation < least:
      raise SettingError(
        "participation", sampling.name, f"lets a client take part again after {sampling.separation} of "
        f"{least} rounds, by which {correlation} noise is bounded",
        f"Use cyclic with blocks={least} or more and period=1, or correlation='none'.",
      )  # fmt: skip

  plain = not adaptive and known and clip == math.inf
  nothing = plain and given is not None and is_zero(given)
  return Aggregation(
    init, combine, "gaussian", Needs(covers=COVERED, check_rounds=check_rounds), uses_mixing=False,
    of_updates=True, is_mean=lambda mixing: nothing and mixing.even, by_expected=True,
    figures=(lambda state: {"clip": state.bound}) if adaptive else None,
    mechanism=Mechanism(multiplier, delta, strategy=of_rounds if chain else None),
    check_sampling=check_sampling,
  )  # fmt: skip


def _check_count_noise(count_noise: Any, multiplier: Any) -> None:
  """Raises `SettingError` if σ_b is not above z/2; numbers of a traced program are not looked at."""
  if any(value is None or isinstance(value, jax.Array) for value in (count_noise, multiplier)):
    return
  if 2.0 * count_noise <= multiplier:
    problem = f"is not above half the noise multiplier {multiplier:g}, which it is a part of"
    raise SettingError(
      "aggregation's count_noise", count_noise, problem, f"Use more than {0.5 * multiplier:g}."
    )


def _check(clip, given, epsilon, quantile, rate, count_noise, correlation, bands, rounds) -> None:
  """Raises `SettingError` for settings that contradict one another or have no effect."""

  def refuse(name: str, value: Any, problem: str, remedy: str) -> None:
    raise SettingError(f"aggregation's {name}", value, problem, remedy)

  concrete = lambda value: value is not None and not isinstance(value, jax.Array)  # noqa: E731
  if concrete(clip) and clip != math.inf:  # also in float32, as in the program
    check_range("aggregation's clip", clip, above=0.0)
  if epsilon is not None and given is not None:
    refuse("noise_multiplier", given, f"given beside epsilon = {epsilon}, from which it is found",
           "Give one of them.")  # fmt: skip
  if concrete(clip) and clip == math.inf:
    if quantile is not None:
      refuse("clip", clip, "never comes down to a quantile", "Start at a number, such as 1.0.")
    if epsilon is not None or (concrete(given) and given > 0):
      refuse("clip", clip, "no noise hides updates of any length", "Use a number, such as 1.0.")
  if quantile is None:
    if concrete(rate) and rate != RATE:
      refuse("rate", rate, "has no effect without a quantile", "Leave it out, or set quantile.")
    if count_noise is not None:
      refuse("count_noise", count_noise, "has no effect without a quantile", "Leave it out, or set quantile.")
  _check_count_noise(count_noise, given)
  if correlation == "none" and bands is not None:
    refuse("bands", bands, "has no effect on fresh noise", "Leave it out, or set correlation.")
  if correlation != "none" and quantile is not None:
    refuse("quantile", quantile, "a clip that moves has no bound over rounds whose noise is correlated",
           "Use a fixed clip, or correlation='none'.")  # fmt: skip
  if rounds is None and (epsilon is not None or correlation != "none"):
    problem = "are not known, for which the noise is found"
    refuse("rounds", rounds, problem, "Write gaussian(rounds=T), with T the rounds of the run.")


def multiplier_of(settings: Mapping[str, Any], sampling: Sampling, rounds: int) -> float:
  """Returns z of `gaussian` with these settings in a run of T rounds."""
  mechanism = gaussian(**{**settings, "rounds": rounds}).mechanism
  assert mechanism is not None
  return mechanism.multiplier(sampling)
