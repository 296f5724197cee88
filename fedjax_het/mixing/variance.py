r"""Variance of a cohort's updates: SosicFL, eq. 10.

With Δ_k = θ_k - θ of client k, restricted to some layers, S clients and Δ̄ = Σ_k Δ_k / S,

    σ² = Σ_k ‖Δ_k - Δ̄‖²,      and without a scale      σ² / Σ_k ‖Δ_k‖²,

which is 0 if all clients send the same and 1 if their updates cancel.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

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
    apart, length = total([own - own.mean(0) for own in updates]), total(updates)
    return {"variance": apart, "disagreement": apart / jnp.maximum(length, jnp.finfo(jnp.float32).tiny)}

  earlier = mixing.figures
  return mixing._replace(figures=figures if earlier is None else lambda f: {**earlier(f), **figures(f)})
