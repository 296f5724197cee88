r"""Variance of a cohort's updates: SosicFL, eq. 10.

With Δ_k = θ_k - θ of client k, restricted to some layers, S clients whose uploads arrive and Δ̄ = Σ_k Δ_k / S,

    σ² = Σ_k ‖Δ_k - Δ̄‖²,      and without a scale      σ² / Σ_k ‖Δ_k‖²,

which is 0 if all clients send the same and 1 if their updates cancel. Both are 0 where nobody arrives.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_het import vectors
from fedjax_het.errors import SettingError
from fedjax_het.mixing.static import check_mixing
from fedjax_het.parts import Feedback, Mixing

PyTree = Any


def total(leaves: list[jax.Array]) -> jax.Array:
  """Sums the squares of all entries of all leaves."""
  return jnp.stack([jnp.square(leaf).sum() for leaf in leaves]).sum()


def with_variance(mixing: Mixing, of: Callable[[PyTree], PyTree]) -> Mixing:
  """Returns a mixing part that also reports `variance`, σ², and `disagreement`, σ² / Σ_k ‖Δ_k‖², every round.

  It requests the uploads, which gathers them on every device.

  Args:
    mixing: any mixing part.
    of: params of a message -> the parameters to include, such as the last layer's.
  """

  check_mixing(mixing)
  if not callable(of):
    raise SettingError(
      "of", of, "not a function of the parameters", "Give one, such as lambda params: params."
    )

  def figures(feedback: Feedback) -> dict[str, jax.Array]:
    sent = jax.tree.leaves(of(feedback.uploads().params))
    updates = [own - base for own, base in zip(sent, jax.tree.leaves(of(feedback.broadcast.params)))]
    if (present := feedback.present) is None:
      apart = [own - own.mean(0) for own in updates]
    else:  # uploads of absent clients are zeros, and no updates
      here = lambda own: jnp.where(vectors.over(present, own), own, 0.0)  # noqa: E731
      share, updates = 1.0 / jnp.maximum(present.sum(), 1), [here(own) for own in updates]
      apart = [here(own - share * own.sum(0)) for own in updates]
    length = total(updates)
    variance = total(apart)
    return {"variance": variance, "disagreement": variance / jnp.maximum(length, jnp.finfo(jnp.float32).tiny)}

  earlier = mixing.figures
  return mixing._replace(figures=figures if earlier is None else lambda f: {**earlier(f), **figures(f)})
