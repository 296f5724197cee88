r"""Speeds of clients: all alike, or log-normal, by chance or also by how much data a client has.

For client i, independent standard normal e_i and ē_i, and the normal score u_i = Φ^{-1}(r_i) of the share r_i
of clients that have fewer examples (of those with as many, half of them),

    z_i = ρ u_i + √(1 - ρ²) e_i,     seconds a gradient = m exp(-σ z_i),     bytes a second = b exp(τ ē_i).
"""

import math
from collections.abc import Callable
from typing import Annotated, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_het.errors import check_range, is_zero
from fedjax_het.parts import Needs, Speeds, System
from fedjax_het.settings import Default, Neutral, NonNegative, Positive, Range, checked, with_defaults

STEP_SECONDS, BYTES_PER_SECOND = 0.25, 7.5e5  # docs/time.md says where they come from
NO_NEEDS = Needs()
Correlation = Annotated[float, Range(low=-1.0, high=1.0)]


class Timing(TypedDict, total=False):
  """Settings of the server that every system has, see `System`.

  Attributes:
    server_seconds: seconds that the server takes in each round.
    deadline: seconds that the server waits in a round; a client takes the steps that fit, and one that cannot
      take one step is lost. Infinity for no deadline.
    over_selection: o in [1, 10], to three decimals: ⌈o S⌉ clients are asked, the S that are done first
      arrive, and the uploads of the others are dropped.
  """

  server_seconds: Annotated[NonNegative, Default(0.0)]
  deadline: Annotated[float, Range(above=0.0, on_host=True), Neutral(math.inf), Default(math.inf)]
  over_selection: Annotated[float, Range(low=1.0, high=10.0), Neutral(1.0), Default(1.0)]


def system_of(
  name: str, speeds: Callable[[jax.Array, jax.Array], Speeds], timing: Timing, needs: Needs = NO_NEEDS
) -> System:
  """Returns the system part with these speeds; raises `SettingError`, see `check_deadline`."""
  check_deadline(timing)
  return System(speeds, name=name, needs=needs, **with_defaults(Timing, timing))


def check_deadline(timing: Timing) -> None:
  """Raises `SettingError` for a deadline that float32 does not have."""
  deadline = timing.get("deadline", math.inf)
  if not isinstance(deadline, jax.Array) and deadline != math.inf:
    check_range("deadline", deadline, above=0.0)


@checked
def constant(
  step_seconds: Positive = STEP_SECONDS,
  bytes_per_second: Positive = BYTES_PER_SECOND,
  **timing: Unpack[Timing],
) -> System:
  """All clients are equally fast.

  Args:
    step_seconds: seconds in which a client computes one gradient of a mini-batch.
    bytes_per_second: bytes that a client receives or sends in a second.
    **timing: see `Timing`.
  """

  def speeds(key, sizes):
    return Speeds(*(jnp.full(len(sizes), own, jnp.float32) for own in (step_seconds, bytes_per_second)))

  return system_of("constant", speeds, timing)


@checked
def lognormal(
  sigma: NonNegative = 1.0,
  step_seconds: Positive = STEP_SECONDS,
  link_sigma: NonNegative = 1.0,
  bytes_per_second: Positive = BYTES_PER_SECOND,
  correlation: Correlation = 0.0,
  **timing: Unpack[Timing],
) -> System:
  """Log-normal speeds, drawn once for the whole run; see the module for the formula.

  Args:
    sigma: σ, the standard deviation of the logarithm of a client's seconds a gradient.
    step_seconds: m, the median of the clients' seconds a gradient of a mini-batch.
    link_sigma: τ, the standard deviation of the logarithm of a client's bytes a second.
    bytes_per_second: b, the median of the bytes that a client receives or sends in a second.
    correlation: ρ in [-1, 1], of a client's computing speed with how much data it has, both as normal scores:
      1 for clients that are the faster the more they have, -1 for the slower. Clients of one size have the
      score 0.
    **timing: see `Timing`.
  """

  def speeds(key, sizes):
    own, link = (jax.random.normal(jax.random.fold_in(key, i), sizes.shape) for i in range(2))
    rho = jnp.float32(correlation)
    parts = lax.optimization_barrier((rho * size_scores(sizes), jnp.sqrt(1.0 - rho * rho) * own))
    step = jnp.float32(step_seconds) * jnp.exp(-jnp.float32(sigma) * (parts[0] + parts[1]))
    return Speeds(step, jnp.float32(bytes_per_second) * jnp.exp(jnp.float32(link_sigma) * link))

  def remarks(data):
    if not is_zero(correlation) and len({*np.asarray(data.train.size).tolist()}) == 1:
      yield "correlation: has no effect on who is fast, as all clients have as many examples."

  return system_of("lognormal", speeds, timing, Needs(remarks=remarks))


def size_scores(sizes: jax.Array) -> jax.Array:
  """Computes the normal scores u of the clients' numbers of examples, float32 [K]; see the module."""
  ordered = jnp.sort(sizes)
  fewer, upto = (jnp.searchsorted(ordered, sizes, side=side) for side in ("left", "right"))
  return jax.scipy.special.ndtri((fewer + upto).astype(jnp.float32) / jnp.float32(2 * len(sizes)))
