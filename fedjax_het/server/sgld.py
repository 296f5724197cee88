r"""FedEvg's server: one step of stochastic gradient Langevin dynamics on the synthetic set (algorithm 4.1).

G = Σ_i w_i e_i ∇E_i(x̃) / Σ_i w_i e_i,   x̃ <- x̃ - β_t G + δ ε        (equations 4.13 and 4.14)
"""

import jax
import jax.numpy as jnp

from fedjax_het.errors import SettingError, check_range
from fedjax_het.langevin import langevin_step
from fedjax_het.parts import Message, ServerUpdate


def sgld(
  rounds: int,
  step_size: float = 10.0,
  last_step_size: float = 0.01,
  noise: float = 0.01,
  bounded: bool = True,
) -> ServerUpdate:
  """One Langevin step a round; the state is the number of steps taken.

  The aggregate's `params` are Σ w e ∇E, its `extra` is Σ w e. Where the broadcast has an `extra`, it keeps
  log Σ w e, which raw energies are relative to.

  Args:
    rounds: T of the run, over which β_t falls along half a cosine,
      β_t = β_T + (β_0 - β_T)(1 + cos(π t/T))/2.
    step_size: β_0 > 0.
    last_step_size: β_T > 0.
    noise: δ >= 0.
    bounded: whether x̃ is kept in [0, 1], as pixels are.

  Raises:
    SettingError: a setting out of range; from `check_rounds`, of a run with another T.
  """
  check_range("rounds", rounds, 1)
  for name, value in (("server's step_size", step_size), ("server's last_step_size", last_step_size)):
    check_range(name, value, above=0.0)
  check_range("server's noise", noise, 0.0)

  def update(key, step, broadcast: Message, aggregate: Message):
    x, weight = broadcast.params, aggregate.extra
    gradient = aggregate.params / weight.reshape(-1, *[1] * (x.ndim - 1))
    fall = 0.5 * (1.0 + jnp.cos(jnp.pi * jnp.minimum(step / rounds, 1.0)))
    beta = last_step_size + (step_size - last_step_size) * fall
    x = langevin_step(key, x, gradient, beta, noise, bounded)
    extra = jax.tree.map(lambda total: total + jnp.log(weight), broadcast.extra)
    return Message(x, extra), step + 1

  def check_rounds(own: int) -> None:
    if own != rounds:
      raise SettingError(
        "server's rounds", rounds, f"the step size falls over these, and the run has rounds = {own}",
        f"Use sgld(rounds={own}).",
      )  # fmt: skip

  return ServerUpdate(lambda broadcast: jnp.int32(0), update, "sgld", check_rounds, takes_models=False)
