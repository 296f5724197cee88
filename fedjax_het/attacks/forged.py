r"""Attacks on uploads: what dishonest clients send instead of their update Δ_i, seeing all honest updates.

μ and σ are mean and population standard deviation of the cohort's honest updates, coordinate by coordinate,
over those whose uploads arrive.

    sign_flip   -s Δ_i                its own update, reversed
    gaussian    N(0, σ² I)            noise
    alie        μ - z σ               Baruch, Baruch, Goldberg, A Little Is Enough, NeurIPS 2019, algorithm 3
    ipm         -ε μ                  Xie, Koyejo, Gupta, Fall of Empires, UAI 2020
    mimic       Δ_j, j the cohort's   Karimireddy, He, Jaggi, Byzantine-Robust Learning on Heterogeneous
                first honest client   Datasets via Bucketing, ICLR 2022

ALIE's z is given, or the largest that hides among S clients that arrive, m of them dishonest, and takes
⌊S/2⌋ + 1 - m honest supporters: Φ(z) = (S - ⌊S/2⌋ - 1) / (S - m).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_het.parts import Attack, Needs
from fedjax_het.settings import NonNegative, Positive, Share, checked

PyTree = Any
NEEDS = Needs(covers=("params", "extra", "stats", "even", "wire"))  # `pooled` has weights of its own


def mean(
  updates: PyTree, chosen: jax.Array, of: Callable[[PyTree], PyTree] = lambda update: update
) -> PyTree:
  """Computes the mean of a function of the chosen clients' updates, bool [S]; 0 if nobody is chosen.

  It is a loop in the clients' order, so that its bits do not depend on the devices.
  """

  def add(total: PyTree, one: tuple[PyTree, jax.Array]) -> tuple[PyTree, None]:
    update, counts = one
    return jax.tree.map(lambda t, own: t + jnp.where(counts, own, 0.0), total, of(update)), None

  zeros = jax.tree.map(lambda leaf: jnp.zeros_like(leaf[0]), updates)
  total, _ = jax.lax.scan(add, zeros, (updates, chosen))
  factor = 1.0 / jnp.maximum(chosen.sum(), 1).astype(jnp.float32)
  return jax.tree.map(lambda leaf: leaf * factor, total)


def for_all(updates: PyTree, one: PyTree) -> PyTree:
  """Repeats one update for every client of the cohort."""
  return jax.tree.map(lambda leaf, own: jnp.broadcast_to(own, leaf.shape), updates, one)


def hidden(dishonest: jax.Array, present: jax.Array) -> jax.Array:
  """Computes ALIE's z for the clients, bool [S], that are dishonest and that are present; 0 to 4."""
  size, honest = present.sum(), (present & ~dishonest).sum()
  share = (size - size // 2 - 1).astype(jnp.float32) / jnp.maximum(honest, 1)
  return jax.scipy.special.ndtri(jnp.clip(share, 0.5, 0.9999))


@checked
def sign_flip(share: Share = 0.2, scale: NonNegative = 10.0) -> Attack:
  """Dishonest clients send θ - s Δ_i.

  Args:
    share: the share of dishonest clients.
    scale: s >= 0.
  """

  def forge(key, updates, dishonest, present):
    return jax.tree.map(lambda leaf: -scale * leaf, updates)

  return Attack(share, forge=forge, needs=NEEDS, name="sign_flip")


@checked
def gaussian(share: Share = 0.2, std: NonNegative = 1.0) -> Attack:
  """Dishonest clients send θ + N(0, σ² I).

  Args:
    share: the share of dishonest clients.
    std: σ >= 0.
  """

  def forge(key, updates, dishonest, present):
    leaves, structure = jax.tree.flatten(updates)
    keys = jax.random.split(key, len(leaves))
    drawn = [std * jax.random.normal(own, leaf.shape) for own, leaf in zip(keys, leaves)]
    return jax.tree.unflatten(structure, drawn)

  return Attack(share, forge=forge, needs=NEEDS, name="gaussian")


@checked
def alie(share: Share = 0.2, z: NonNegative | None = 1.5) -> Attack:
  """Dishonest clients send θ + μ - z σ.

  Args:
    share: the share of dishonest clients.
    z: z >= 0; None for the largest that hides, which depends on how many of the cohort are dishonest.
  """

  def forge(key, updates, dishonest, present):
    away = hidden(dishonest, present) if z is None else z
    center = mean(updates, present & ~dishonest)

    def square(update: PyTree) -> PyTree:
      return jax.tree.map(lambda leaf, own: jnp.square(leaf - own), update, center)

    spread = jax.tree.map(jnp.sqrt, mean(updates, present & ~dishonest, square))
    return for_all(updates, jax.tree.map(lambda m, s: m - away * s, center, spread))

  return Attack(share, forge=forge, needs=NEEDS, name="alie")


@checked
def ipm(share: Share = 0.2, scale: Positive = 0.5) -> Attack:
  """Dishonest clients send θ - ε μ, whose inner product with the honest mean is negative.

  Args:
    share: the share of dishonest clients.
    scale: ε > 0.
  """

  def forge(key, updates, dishonest, present):
    return for_all(updates, jax.tree.map(lambda m: -scale * m, mean(updates, present & ~dishonest)))

  return Attack(share, forge=forge, needs=NEEDS, name="ipm")


@checked
def mimic(share: Share = 0.2) -> Attack:
  """Dishonest clients send what the cohort's first honest client sends, so that it counts too much.

  Args:
    share: the share of dishonest clients.
  """

  def forge(key, updates, dishonest, present):
    first = jnp.argmax(present & ~dishonest)
    return for_all(updates, jax.tree.map(lambda leaf: leaf[first], updates))

  return Attack(share, forge=forge, needs=NEEDS, name="mimic")
