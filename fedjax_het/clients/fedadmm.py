r"""FedADMM: local models and dual variables of the consensus problem; the server adds what changed of them.

Gong, Li, Freris, FedADMM: A Robust Federated Deep Learning Framework with Adaptivity to System Heterogeneity,
ICDE 2022, algorithm 1. Client i keeps its model w_i and dual variable y_i, at first θ^g and 0. It minimises

    F_i(w) + <y_i, w> + (ρ/2) ‖w - θ^g‖²      from w = θ^g,

then y_i <- y_i + ρ (w_i - θ^g), and uploads the change of its augmented model w_i + y_i/ρ, by which the
server moves: θ <- θ + η mean_C (change); η is `server.lr`.
"""

from typing import Annotated, Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp

from fedjax_het import mixing
from fedjax_het.clients.local_settings import LocalSettings
from fedjax_het.clients.one_model import one_model
from fedjax_het.clients.recipe import recipe_of
from fedjax_het.clients.supervised import supervised
from fedjax_het.models import Model
from fedjax_het.parts import ClientUpdate, Message
from fedjax_het.settings import Range, checked

PyTree = Any
Penalty = Annotated[float, Range(above=0.0)]


class Own(NamedTuple):
  """Client state: its model w_i, and its dual variable divided by ρ, y_i/ρ."""

  params: PyTree
  dual: PyTree


@checked
def fedadmm(model: Model, *, rho: Penalty = 0.01, **local: Unpack[LocalSettings]) -> ClientUpdate:
  """FedADMM's client part, which brings uniform mixing.

  Args:
    model: the model that clients train.
    rho: ρ > 0, weight of the proximal term.
    **local: local training, see `LocalSettings`.

  Raises:
    SettingError: a setting is out of range.
  """
  recipe = recipe_of(model, local)

  def correct(broadcast, state, context):
    return lambda gradient, params: jax.tree.map(
      lambda g, w, dual, center: g + rho * (dual + w - center),
      gradient, params, state.dual, broadcast.params,
    )  # fmt: skip

  def finish(broadcast, state, context, local):
    away = jax.tree.map(jnp.subtract, local.params, broadcast.params)
    moved = jax.tree.map(
      lambda x, new, old, d: x + (new - old) + d, broadcast.params, local.params, state.params, away
    )
    own = Own(local.params, jax.tree.map(jnp.add, state.dual, away))
    return Message(moved, stats=local.stats), own

  part = supervised(
    recipe, one_model(recipe, correct=correct, finish=finish), name="fedadmm",
    init=lambda key, broadcast, *_: Own(broadcast.params, jax.tree.map(jnp.zeros_like, broadcast.params)),
  )  # fmt: skip
  return part._replace(needs=part.needs._replace(brings={"mixing": mixing.uniform()}))
