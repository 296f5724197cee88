r"""SCAFFOLD: local SGD along gradients corrected by control variates.

Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020, algorithm 1,
option II.

The server keeps a control variate c, an estimate of ∇F; client i keeps c_i, an estimate of ∇F_i. From x = θ^g
a client steps along g - c_i + c, and after n steps, at y,

    c_i⁺ = c_i - c + (x - y) / (η a_n),      c <- c + (S/K) · mean_i (c_i⁺ - c_i).

a_n is the total weight of the gradients in x - y: n for plain SGD. With momentum β the steps' gradients have
the weights (1 - β^k)/(1 - β), k = 1, ..., n, and a_n = (n - β (1 - βⁿ)/(1 - β)) / (1 - β): then (x - y) / (η
a_n) still is a weighted mean of g - c_i + c, as option II requires. Weight decay is a part of g. If η has
decayed so far that 1/(η a_n) overflows float32, c_i stays unchanged.

With record-level privacy (`dp_clip`) g is noised, and with it c_i⁺, its mean: DP-SCAFFOLD (Noble, Bellet,
Dieuleveut, Differentially Private Federated Learning on Heterogeneous Data, AISTATS 2022).

The models are averaged by the mixing coefficients (n_i in the thesis), the control variates uniformly
(`Message.even`).
"""

from typing import Unpack

import jax
import jax.numpy as jnp

from fedjax_het.clients.local_settings import LocalSettings
from fedjax_het.clients.one_model import one_model
from fedjax_het.clients.recipe import recipe_of
from fedjax_het.clients.supervised import supervised
from fedjax_het.models import Model
from fedjax_het.parts import ClientUpdate, Message
from fedjax_het.settings import checked


@checked
def scaffold(model: Model, **local: Unpack[LocalSettings]) -> ClientUpdate:
  """SCAFFOLD's client part; its state is the control variate c_i, and all control variates start at 0.

  The global model is also the personalised one.

  Args:
    model: the model that clients train.
    **local: local training, see `LocalSettings`, without `optimizer`; the paper's momentum is 0.

  Raises:
    SettingError: a setting is out of range, or `optimizer` is given.
  """
  recipe = recipe_of(model, local, reader="SCAFFOLD")

  def correct(broadcast, state, context):
    return lambda gradient, params: jax.tree.map(
      lambda g, own, c: g - own + c, gradient, state, broadcast.even
    )

  def finish(broadcast, state, context, local):
    scale = recipe.per_gradient(local.steps, context.round)
    share = context.cohort_size / context.num_clients
    moved = jax.tree.map(
      lambda own, c, x, y: jnp.where(jnp.isinf(scale), own, own - c + scale * (x - y)),
      state, broadcast.even, broadcast.params, local.params,
    )  # fmt: skip
    even = jax.tree.map(lambda c, new, own: c + share * (new - own), broadcast.even, moved, state)
    return Message(local.params, stats=local.stats, even=even), moved

  def init_broadcast(key):
    params = model.init(key)
    return Message(params, stats=model.stats, even=jax.tree.map(jnp.zeros_like, params))

  training = one_model(recipe, correct=correct, finish=finish)._replace(counted=None)
  return supervised(
    recipe, training, name="scaffold", init_broadcast=init_broadcast,
    init=lambda key, broadcast, *_: jax.tree.map(jnp.zeros_like, broadcast.params),
  )  # fmt: skip
