r"""FedEvg's server: one step of stochastic gradient Langevin dynamics on the synthetic set (algorithm 4.1).

G = Σ_i w_i e_i ∇E_i(x̃) / Σ_i w_i e_i,   x̃ <- x̃ - β_t G + δ ε        (equations 4.13 and 4.14)
"""

import jax
import jax.numpy as jnp

from fedjax_het.errors import SettingError, check_flag, check_pixels, check_range, check_whole
from fedjax_het.langevin import langevin_step
from fedjax_het.parts import Message, ServerUpdate


def half_cosine(
  step: jax.Array, rounds: int, first: float | jax.Array, last: float | jax.Array
) -> float | jax.Array:
  """β_t = β_T + (β_0 - β_T)(1 + cos(π t/T))/2 from `first` to `last`, which it keeps after T rounds."""
  return last + (first - last) * 0.5 * (1.0 + jnp.cos(jnp.pi * jnp.minimum(step / rounds, 1.0)))


def mean_gradient(broadcast: Message, aggregate: Message) -> tuple[jax.Array, jax.Array | tuple[()]]:
  """(G, the next broadcast's `extra`) of Σ w e ∇E and Σ w e, the aggregate's `params` and `extra`.

  Where the broadcast has an `extra`, it keeps log Σ w e, which clients take raw energies relative to.
  """
  weight = aggregate.extra
  gradient = aggregate.params / weight.reshape(-1, *[1] * (broadcast.params.ndim - 1))
  return gradient, jax.tree.map(lambda total: total + jnp.log(weight), broadcast.extra)


def check_own_rounds(name: str, rounds: int, own: int) -> None:
  """Raises `SettingError` where a server part's step size falls over other rounds than the run's."""
  if own != rounds:
    raise SettingError(
      "server's rounds", rounds, f"the step size falls over these, and the run has rounds = {own}",
      f"Use {name}(rounds={own}).",
    )  # fmt: skip


def check_fall(step_size: float, last_step_size: float) -> None:
  """Raises `SettingError` unless 0 < β_T <= β_0, as far as both are known."""
  for name, value in (("server's step_size", step_size), ("server's last_step_size", last_step_size)):
    check_range(name, value, above=0.0, below=jnp.inf)
  known = not isinstance(step_size, jax.Array) and not isinstance(last_step_size, jax.Array)
  if known and last_step_size > step_size:
    raise SettingError(
      "server's last_step_size", last_step_size, f"above step_size = {step_size}, from which it falls",
      "Give at most that.",
    )  # fmt: skip


def sgld(
  rounds: int,
  step_size: float = 10.0,
  last_step_size: float = 0.01,
  noise: float = 0.01,
  bounded: bool = True,
) -> ServerUpdate:
  """One Langevin step a round; the state is the number of steps taken.

  Args:
    rounds: T of the run, over which β_t falls along half a cosine, see `half_cosine`.
    step_size: β_0 > 0.
    last_step_size: 0 < β_T <= β_0.
    noise: δ >= 0.
    bounded: whether x̃ is kept in [0, 1], as pixels are, and examples have to be.

  Raises:
    SettingError: a setting out of range; from `check_rounds`, of a run with another T; from `check_examples`,
      of examples beyond [0, 1] where x̃ is bounded.
  """
  check_whole("rounds", rounds, 1)
  check_flag("server's bounded", bounded)
  check_fall(step_size, last_step_size)
  check_range("server's noise", noise, 0.0, below=jnp.inf)

  def check_examples(least, largest):
    check_pixels("server's bounded", True, least, largest, "Scale them, or set the server's bounded=False.")

  def update(key, step, broadcast: Message, aggregate: Message):
    gradient, extra = mean_gradient(broadcast, aggregate)
    beta = half_cosine(step, rounds, step_size, last_step_size)
    return Message(langevin_step(key, broadcast.params, gradient, beta, noise, bounded), extra), step + 1

  return ServerUpdate(
    lambda broadcast: jnp.int32(0), update, "sgld",
    lambda own: check_own_rounds("sgld", rounds, own), check_examples if bounded else None,
    takes_models=False,
  )  # fmt: skip
