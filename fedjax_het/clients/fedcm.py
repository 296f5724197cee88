r"""FedCM and MoFedSAM: local steps along the client's gradient and the last round's mean gradient.

Xu, Wang, Wang, Yao, FedCM: Federated Learning with Client-level Momentum, arXiv:2106.10874, 2021, algorithm
2. Qu et al., Generalized Federated Learning via Sharpness Aware Minimization, ICML 2022, algorithm 3.

A client steps along α ∇F_i(θ) + (1 - α) m. m is the average over the last cohort of what its clients stepped
along, which is read out of their updates after n_i steps at the rate η:

    m <- Σ_i p_i (θ^g - θ_i) / (η a_{n_i}),      m = 0 in the first round,

with a_n as in SCAFFOLD, n without momentum. m is broadcast with the model and uploaded as `Message.extra`.
MoFedSAM takes ∇F_i at the sharpness-aware point.
"""

from typing import Annotated, Unpack

import jax
import jax.numpy as jnp

from fedjax_het.clients.local_settings import LocalSettings
from fedjax_het.clients.one_model import one_model
from fedjax_het.clients.recipe import recipe_of, sharpened
from fedjax_het.clients.supervised import supervised
from fedjax_het.errors import is_one
from fedjax_het.models import Model
from fedjax_het.parts import ClientUpdate, Message
from fedjax_het.settings import Neutral, NonNegative, Range, checked

Own = Annotated[float, Range(above=0.0, high=1.0), Neutral(1.0)]


@checked
def fedcm(
  model: Model, *, alpha: Own = 0.1, name: str = "fedcm", **local: Unpack[LocalSettings]
) -> ClientUpdate:
  """FedCM's client part; the personalised model is the global one.

  Args:
    model: the model that clients train.
    alpha: α in (0, 1], the weight of the client's own gradient; 1 leaves m out and is FedAvg.
    name: name of the method in tables.
    **local: local training, see `LocalSettings`, without `optimizer`; the paper's momentum is 0.

  Raises:
    SettingError: a setting is out of range, or `optimizer` is given.
  """
  recipe = recipe_of(model, local, reader=name)
  plain = is_one(alpha)

  def correct(broadcast, state, context):
    return lambda gradient, params: jax.tree.map(
      lambda g, m: alpha * g + (1.0 - alpha) * m, gradient, broadcast.extra
    )

  def finish(broadcast, state, context, local):
    scale = recipe.per_gradient(local.steps, context.round)
    mean = jax.tree.map(
      lambda m, x, y: jnp.where(jnp.isinf(scale), m, scale * (x - y)),
      broadcast.extra, broadcast.params, local.params,
    )  # fmt: skip
    return Message(local.params, extra=mean, stats=local.stats), state

  def init_broadcast(key):
    params = model.init(key)
    return Message(params, () if plain else jax.tree.map(jnp.zeros_like, params), model.stats)

  training = one_model(recipe) if plain else one_model(recipe, correct=correct, finish=finish)
  part = supervised(recipe, training, name=name, init_broadcast=init_broadcast)
  return part._replace(needs=part.needs._replace(replaces=("extra", "stats")))


@checked
def mofedsam(
  model: Model, *, alpha: Own = 0.1, rho: NonNegative = 0.1, **local: Unpack[LocalSettings]
) -> ClientUpdate:
  """MoFedSAM's client part: `fedcm` along sharpness-aware gradients.

  Args:
    model: the model that clients train.
    alpha: α in (0, 1], the weight of the client's own gradient.
    rho: ρ >= 0, radius of the sharpness-aware steps, in the place of `sam_radius`; 0 is FedCM.
    **local: local training, see `LocalSettings`, without `optimizer`.

  Raises:
    SettingError: a setting is out of range, or `optimizer` or `sam_radius` is given.
  """
  return fedcm(model, alpha=alpha, name="mofedsam", **sharpened(local, rho, "mofedsam"))
