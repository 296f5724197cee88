r"""FedDC: a learned drift between the client's and the global model, and corrected gradients.

Gao et al., FedDC: Federated Learning with Non-IID Data via Local Drift Decoupling and Correction, CVPR 2022,
equations 3 to 6, in the form of the authors' code. Client i keeps its drift h_i and its gradient s_i, both 0
at first; the server broadcasts θ^g and s. A client steps along

    ∇F_i(θ) + α (θ - θ^g + h_i) + s - s_i,

and after n steps at the rate η, with its update Δ_i = θ_i - θ^g,

    h_i <- h_i + Δ_i,      s_i⁺ = s_i - s - Δ_i / (η a_n),      s <- s + (S/K) mean_C (s_i⁺ - s_i).

The server moves as in FedDyn (`server.drift`). The authors scale α and s by mean(n)/n_i; here clients count
alike, and η is the round's rate where their code has the rate of round 0.
"""

from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp

from fedjax_het import mixing, server
from fedjax_het.clients.local_settings import LocalSettings
from fedjax_het.clients.one_model import one_model
from fedjax_het.clients.recipe import recipe_of
from fedjax_het.clients.supervised import supervised
from fedjax_het.models import Model
from fedjax_het.parts import ClientUpdate, Message
from fedjax_het.settings import NonNegative, checked

PyTree = Any


class Own(NamedTuple):
  """Client state: the drift h_i and the gradient s_i, trees like the model."""

  drift: PyTree
  gradient: PyTree


@checked
def feddc(model: Model, *, alpha: NonNegative = 0.01, **local: Unpack[LocalSettings]) -> ClientUpdate:
  """FedDC's client part, which brings uniform mixing and `server.drift`.

  Args:
    model: the model that clients train.
    alpha: α >= 0, weight of the penalty on the drift; the paper has 0.01 for CIFAR-10 and 0.1 for MNIST. With
      0 the gradients are corrected still.
    **local: local training, see `LocalSettings`, without `optimizer`.

  Raises:
    SettingError: a setting is out of range, or `optimizer` is given.
  """
  recipe = recipe_of(model, local, reader="FedDC")

  def correct(broadcast, state, context):
    def along(gradient, params):
      return jax.tree.map(
        lambda g, w, center, h, s, own: g + alpha * (w - center + h) + s - own,
        gradient, params, broadcast.params, state.drift, broadcast.even, state.gradient,
      )  # fmt: skip

    return along

  def finish(broadcast, state, context, local):
    scale = recipe.per_gradient(local.steps, context.round)
    share = jnp.float32(context.cohort_size) / jnp.float32(context.num_clients)
    update = jax.tree.map(jnp.subtract, local.params, broadcast.params)
    gradient = jax.tree.map(
      lambda own, s, d: jnp.where(jnp.isinf(scale), own, own - s - scale * d),
      state.gradient, broadcast.even, update,
    )  # fmt: skip
    shared = jax.tree.map(
      lambda s, new, old: s + share * (new - old), broadcast.even, gradient, state.gradient
    )
    upload = Message(local.params, stats=local.stats, even=shared)
    return upload, Own(jax.tree.map(jnp.add, state.drift, update), gradient)

  def zeros(params):
    return jax.tree.map(jnp.zeros_like, params)

  def init_broadcast(key):
    params = model.init(key)
    return Message(params, stats=model.stats, even=zeros(params))

  part = supervised(
    recipe, one_model(recipe, correct=correct, finish=finish), name="feddc", init_broadcast=init_broadcast,
    init=lambda key, broadcast, *_: Own(zeros(broadcast.params), zeros(broadcast.params)),
  )  # fmt: skip
  brings = {"mixing": mixing.uniform(), "server": server.drift()}
  return part._replace(needs=part.needs._replace(brings=brings, transformed=("params",)))
