r"""FedDyn and FedSpeed: a local penalty that makes the clients' optima meet in the global one.

Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021, algorithm 1, in the form of the
authors' code: h_i is -1/α times the paper's stored gradient. From the received θ^g a client minimises

    F_i(θ) + α <h_i, θ> + (α/2) ‖θ - θ^g‖²      with steps along  ∇F_i(θ) + α (θ - θ^g + h_i),

then h_i <- h_i + θ_i - θ^g. `server.drift` moves the server. Where all clients' gradients vanish in sum, and
θ_i = θ^g, the method stands still: at the optimum of the plain mean of F_i, for which mixing is uniform. The
authors' code scales α by mean(n)/n_i; here it is the same for all clients, as in the paper.

FedSpeed (Sun et al., ICLR 2023) is the same rule along sharpness-aware gradients; with its λ and ρ, α = λ =
1/λ', where λ' is the paper's. So does the code of the authors' FL-Simulator compute it.

Other libraries have the squared norm unsquared, the linear term with the opposite sign, or no quadratic term.
"""

from typing import Any, Unpack

import jax
import jax.numpy as jnp

from fedjax_het import mixing, server
from fedjax_het.clients.local_settings import LocalSettings
from fedjax_het.clients.one_model import one_model
from fedjax_het.clients.recipe import Recipe, recipe_of, sharpened
from fedjax_het.clients.supervised import supervised
from fedjax_het.errors import is_zero
from fedjax_het.models import Model
from fedjax_het.parts import ClientUpdate, Message
from fedjax_het.settings import NonNegative, checked

PyTree = Any


@checked
def feddyn(model: Model, *, alpha: NonNegative = 0.01, **local: Unpack[LocalSettings]) -> ClientUpdate:
  """FedDyn's client part, which brings uniform mixing and `server.drift`; its state is the drift h_i.

  Args:
    model: the model that clients train.
    alpha: α >= 0, weight of the penalty; 0 leaves penalty and drift out and is FedAvg with uniform mixing.
    **local: local training, see `LocalSettings`; the paper clips gradients, `clip_norm=10`.

  Raises:
    SettingError: a setting is out of range.
  """
  return dynamic(recipe_of(model, local), alpha, "feddyn")


@checked
def fedspeed(
  model: Model, *, lam: NonNegative = 0.1, rho: NonNegative = 0.1, **local: Unpack[LocalSettings]
) -> ClientUpdate:
  """FedSpeed's client part: `feddyn` along sharpness-aware gradients.

  Args:
    model: the model that clients train.
    lam: λ >= 0, weight of the penalty, FedDyn's α.
    rho: ρ >= 0, radius of the sharpness-aware steps, in the place of `sam_radius`; 0 is FedDyn.
    **local: local training, see `LocalSettings`.

  Raises:
    SettingError: a setting is out of range, or `sam_radius` is given.
  """
  return dynamic(recipe_of(model, sharpened(local, rho, "fedspeed")), lam, "fedspeed")


def dynamic(recipe: Recipe, alpha: float | jax.Array, name: str) -> ClientUpdate:
  """Returns FedDyn's client part with local training by `recipe`."""
  model, plain = recipe.model, is_zero(alpha)

  def correct(broadcast, state, context):
    def along(gradient, params):
      return jax.tree.map(
        lambda g, w, center, h: g + alpha * (w - center + h), gradient, params, broadcast.params, state
      )

    return along

  def finish(broadcast, state, context, local):
    drift = jax.tree.map(lambda h, new, old: h + (new - old), state, local.params, broadcast.params)
    return Message(local.params, stats=local.stats), drift

  training = one_model(recipe) if plain else one_model(recipe, correct=correct, finish=finish)
  part = supervised(
    recipe, training, name=name,
    init_broadcast=lambda key: Message(model.init(key), stats=model.stats),
    init=lambda key, broadcast, *_: () if plain else jax.tree.map(jnp.zeros_like, broadcast.params),
  )  # fmt: skip
  own: dict[str, Any] = {"mixing": mixing.uniform()} | ({} if plain else {"server": server.drift()})
  return part._replace(needs=part.needs._replace(brings=own, transformed=("params",)))
