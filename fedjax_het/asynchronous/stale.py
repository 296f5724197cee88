r"""Servers that move by uploads as they arrive, and weights of those that are stale.

fedbuff    Nguyen et al., Federated Learning with Buffered Asynchronous Aggregation, AISTATS 2022,
           algorithm 1. The server moves by every B updates Δ_i = θ_i - θ' of clients that began at its model
           θ' of τ_i steps ago:  θ <- θ + η_g Σ_i p_i s(τ_i) Δ_i. The paper has p_i = 1/B (mixing uniform),
           s(τ) = 1/√(1 + τ), and η_g is the learning rate of the server part.
fedasync   Xie, Koyejo, Gupta, Asynchronous Federated Optimization, OPT 2020, algorithm 1. The server mixes
           each model that arrives into its own:  θ <- (1 - α s(τ)) θ + α s(τ) θ_i.  Its local proximal term
           is client part `fedprox`.

Weights of staleness τ >= 0, of FedAsync, section 5.2:

constant    s(τ) = 1
polynomial  s(τ) = (1 + τ)^-a
hinge       s(τ) = 1 if τ <= b, else 1 / (a (τ - b) + 1)

In both papers a client begins as soon as another one is done. Here B begin together when the server has
moved, so that all of them train on one broadcast in one program: with B above 1, a slot is empty from its
client's upload to the server's next step.
"""

from collections.abc import Callable
from typing import Annotated, Any, TypedDict, Unpack

import jax
import jax.numpy as jnp

from fedjax_het.errors import SettingError
from fedjax_het.parts import Asynchronous, Needs
from fedjax_het.parts.asynchronous import constant
from fedjax_het.settings import Choice, Count, Default, NonNegative, Range, Whole, checked, with_defaults

WeightFn = Callable[[jax.Array], jax.Array]
EXPONENT, SLOPE, DELAY = 0.5, 10.0, 4  # of FedBuff; of FedAsync, section 6.1
WEIGHTS = ("constant", "polynomial", "hinge")
Delay = Annotated[int, Whole(0)]
UpToOne = Annotated[float, Range(above=0.0, high=1.0)]


def polynomial(staleness: jax.Array, exponent: float | jax.Array = EXPONENT) -> jax.Array:
  """Computes s(τ) = (1 + τ)^-a, float32.

  Args:
    staleness: τ >= 0, int32, any shape.
    exponent: a >= 0.
  """
  return (1.0 + staleness.astype(jnp.float32)) ** -jnp.float32(exponent)


def hinge(
  staleness: jax.Array, slope: float | jax.Array = SLOPE, delay: int | jax.Array = DELAY
) -> jax.Array:
  """Computes s(τ) = 1 for τ <= b, and 1 / (a (τ - b) + 1) above, float32.

  Args:
    staleness: τ >= 0, int32, any shape.
    slope: a >= 0.
    delay: b >= 0.
  """
  late = jnp.maximum(staleness - delay, 0).astype(jnp.float32)
  return 1.0 / (jnp.float32(slope) * late + 1.0)


class Lateness(TypedDict, total=False):
  """Settings of the weight s(τ) of an upload that is τ steps of the server late.

  Attributes:
    staleness: which weight: "constant", "polynomial" or "hinge".
    exponent: a of "polynomial".
    slope: a of "hinge".
    delay: b of "hinge".
    max_staleness: an upload that is later than this counts 0; None for no limit.
  """

  staleness: Annotated[str, Choice(WEIGHTS), Default("polynomial")]
  exponent: Annotated[NonNegative, Default(EXPONENT)]
  slope: Annotated[NonNegative, Default(SLOPE)]
  delay: Annotated[int, Whole(0), Default(DELAY)]
  max_staleness: Annotated[Delay | None, Default(None)]


@checked
def fedbuff(buffer_size: Count = 10, concurrency: Count = 50, **lateness: Unpack[Lateness]) -> Asynchronous:
  """FedBuff: the server moves by every B updates that arrive, of M clients that train at any time.

  With B = M no upload is stale, and the rounds are those of cohorts of B clients.

  Args:
    buffer_size: B, the number of updates that the server waits for, in the place of `cohort_size`.
    concurrency: M >= B, the number of clients that train at any time.
    **lateness: how much updates count that are late, see `Lateness`.

  Raises:
    SettingError: a setting is out of range or belongs to another `staleness`, or M is below B; from
      `check_cohort`, M is above the number of clients.
  """
  if concurrency < buffer_size:
    problem = f"fewer clients train than the {buffer_size} updates that the server waits for"
    raise SettingError("concurrency", concurrency, problem, f"Use at least {buffer_size}.")
  needs = _needs(concurrency)
  return Asynchronous(buffer_size, concurrency, weight_of(lateness), name="fedbuff", needs=needs)


@checked
def fedasync(concurrency: Count = 50, alpha: UpToOne = 0.6, **lateness: Unpack[Lateness]) -> Asynchronous:
  """FedAsync: the server mixes each model that arrives into its own, of M clients that train at any time.

  Args:
    concurrency: M, the number of clients that train at any time.
    alpha: α in (0, 1], how much a model that is not stale counts.
    **lateness: how much models count that are late, see `Lateness`.

  Raises:
    SettingError: a setting is out of range or belongs to another `staleness`; from `check_cohort`, M is above
      the number of clients.
  """
  own = weight_of(lateness)
  return Asynchronous(
    1, concurrency, lambda late: jnp.float32(alpha) * own(late), True, "fedasync", _needs(concurrency)
  )


def weight_of(lateness: Lateness) -> WeightFn:
  """Returns the weight s(τ) of these settings; raises `SettingError` for one that it has no use for."""
  given: dict[str, Any] = {**with_defaults(Lateness, lateness)}
  name, limit = given["staleness"], given["max_staleness"]
  uses = {"polynomial": ("exponent",), "hinge": ("slope", "delay")}.get(name, ())
  for setting, default in (("exponent", EXPONENT), ("slope", SLOPE), ("delay", DELAY)):
    value = given[setting]
    if setting not in uses and not isinstance(value, jax.Array) and value != default:
      raise SettingError(setting, value, f"has no effect with staleness {name}", "Leave it out.")
  own: WeightFn = {
    "constant": constant,
    "polynomial": lambda late: polynomial(late, given["exponent"]),
    "hinge": lambda late: hinge(late, given["slope"], given["delay"]),
  }[name]
  if limit is None:
    return own
  return lambda late: jnp.where(late <= limit, own(late), 0.0)


def _needs(concurrency: int) -> Needs:
  def check_cohort(size: int, num: int) -> None:
    if concurrency > num:
      raise SettingError("concurrency", concurrency, f"there are {num} clients", f"Use at most {num}.")

  return Needs(check_cohort=check_cohort)
