r"""FedEvg's server part: one Langevin step per round on the synthetic set (algorithm 4.1).

Stochastic gradient Langevin dynamics (SGLD) on the clients' energies:

G = Σ_i w_i e_i ∇E_i(x̃) / Σ_i w_i e_i,   x̃ <- x̃ - β_t G + δ ε        (equations 4.13 and 4.14)
"""

from typing import Annotated

import jax
import jax.numpy as jnp

from fedjax_het.errors import SettingError, check_pixels, check_same_rounds
from fedjax_het.langevin import langevin_step
from fedjax_het.parts import Message, Needs, ServerUpdate
from fedjax_het.settings import Choice, Count, NonNegative, Positive, checked
from fedjax_het.vectors import over


def half_cosine(
  step: jax.Array, rounds: int, first: float | jax.Array, last: float | jax.Array
) -> float | jax.Array:
  """Half-cosine schedule β_t = β_T + (β_0 - β_T)(1 + cos(π t/T))/2, from `first` to `last`.

  It stays at `last` = β_T after T = `rounds` rounds.
  """
  return last + (first - last) * 0.5 * (1.0 + jnp.cos(jnp.pi * jnp.minimum(step / rounds, 1.0)))


def mean_gradient(broadcast: Message, aggregate: Message) -> tuple[jax.Array, jax.Array | tuple[()]]:
  """Computes FedEvg's mean gradient G = Σ w e ∇E / Σ w e and the next broadcast's `extra`.

  The aggregate holds Σ w e ∇E in `params` and Σ w e in `extra`.
  If the broadcast has an `extra`, log Σ w e is accumulated in it; clients take raw energies relative to it.
  """
  weight = aggregate.extra
  gradient = aggregate.params / over(weight, broadcast.params)
  return gradient, jax.tree.map(lambda total: total + jnp.log(weight), broadcast.extra)


def check_own_rounds(name: str, rounds: int, own: int) -> None:
  """Raises `SettingError` if a server part's step-size schedule has another number of rounds than the run."""
  check_same_rounds("server's rounds", rounds, own, "the step size falls over so many rounds", f"{name}(")


def check_fall(step_size: float, last_step_size: float) -> None:
  """Raises `SettingError` unless last_step_size <= step_size, as far as their values are concrete."""
  known = not isinstance(step_size, jax.Array) and not isinstance(last_step_size, jax.Array)
  if known and last_step_size > step_size:
    raise SettingError(
      "server's last_step_size", last_step_size, f"above step_size = {step_size}, from which it falls",
      "Give at most that.",
    )  # fmt: skip


@checked(whose="server's ")
def sgld(
  rounds: Count,
  step_size: Positive = 10.0,
  last_step_size: Positive = 0.01,
  noise: NonNegative = 0.01,
  bounded: bool = True,
  ends: Annotated[str, Choice(("after", "last"))] = "after",
) -> ServerUpdate:
  """Server part with one Langevin step per round; its state is the number of steps taken.

  Args:
    rounds: T of the run, over which β_t falls along half a cosine, see `half_cosine`.
    step_size: β_0 > 0.
    last_step_size: 0 < β_T <= β_0.
    noise: δ >= 0, noise scale of a step.
    bounded: whether x̃ is clipped to [0, 1], as pixels are; examples must then lie there.
    ends: when β_t reaches `last_step_size`: "after" the run, at t = T, where half a cosine over T rounds ends
      (the last round has 0.0101 for T = 500, 0.071 for T = 20); or in its "last" round, t = T - 1, as the
      thesis prints it (section IV-4.1).

  Raises:
    SettingError: a setting is out of range; from `check_rounds`, the run has another T; from
      `check_examples`, examples lie outside [0, 1] although x̃ is bounded.
  """
  check_fall(step_size, last_step_size)

  def check_examples(least, largest):
    check_pixels("server's bounded", True, least, largest, "Scale them, or set the server's bounded=False.")

  span = rounds if ends == "after" else max(rounds - 1, 1)

  def update(key, step, broadcast: Message, aggregate: Message):
    gradient, extra = mean_gradient(broadcast, aggregate)
    beta = half_cosine(step, span, step_size, last_step_size)
    params = langevin_step(key, broadcast.params, gradient, beta, noise, bounded)
    return aggregate._replace(params=params, extra=extra), step + 1

  return ServerUpdate(
    lambda broadcast: jnp.int32(0), update, "sgld", takes_models=False,
    needs=Needs(
      check_rounds=lambda own: check_own_rounds("sgld", rounds, own),
      check_examples=check_examples if bounded else None,
    ),
  )  # fmt: skip
