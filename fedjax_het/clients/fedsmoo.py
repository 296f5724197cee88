r"""FedSMOO: FedDyn along sharpness-aware gradients whose ascents are made to agree between clients.

Sun et al., Dynamic Regularized Sharpness Aware Minimization in Federated Learning: Approaching Global
Consistency and Smooth Landscape, ICML 2023, in the form of the authors' FL-Simulator, which was read. Beside
FedDyn's drift h_i, client i keeps the dual variable μ_i of its ascents, at first 0, and the server broadcasts
the mean μ̄ of the last cohort's. With s = ρ μ̄ / (‖μ̄‖ + 1e-7), every local step is

    d = ∇F_i(w) - μ_i - s,      e = ρ d / (‖d‖ + 1e-7),      μ_i <- μ_i + e - s,
    w <- w - η (∇F_i(w + e) + λ (w - θ + h_i)).

h_i and the server are FedDyn's, see `feddyn`. The paper's s also has the last ascents, which the authors'
code leaves out, as does this one.
"""

from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import optax

from fedjax_het import mixing, server
from fedjax_het.clients import sgd
from fedjax_het.clients.feddyn import dynamic
from fedjax_het.clients.local_settings import LocalSettings
from fedjax_het.clients.recipe import recipe_of, sharpened
from fedjax_het.clients.supervised import supervised
from fedjax_het.errors import is_zero
from fedjax_het.local import Batch
from fedjax_het.models import Model
from fedjax_het.parts import ClientUpdate, Info, LocalTraining, Message
from fedjax_het.settings import NonNegative, checked

PyTree = Any


class Own(NamedTuple):
  """Client state: the drift h_i and the dual variable μ_i, trees like the model."""

  drift: PyTree
  dual: PyTree


class Work(NamedTuple):
  """Local training: its SGD, and μ_i."""

  local: sgd.Local
  dual: PyTree


def of_length(tree: PyTree, rho: float | jax.Array) -> PyTree:
  """Returns ρ v / (‖v‖ + 1e-7) for a tree v."""
  factor = rho / (optax.tree.norm(tree) + 1e-7)
  return jax.tree.map(lambda leaf: factor * leaf, tree)


@checked
def fedsmoo(
  model: Model, *, lam: NonNegative = 0.1, rho: NonNegative = 0.1, **local: Unpack[LocalSettings]
) -> ClientUpdate:
  """FedSMOO's client part, which brings uniform mixing and `server.drift`; its state is h_i and μ_i.

  Args:
    model: the model that clients train.
    lam: λ >= 0, weight of FedDyn's penalty; 0 leaves it out, and with it `server.drift`.
    rho: ρ >= 0, length of the ascents, in the place of `sam_radius`; 0 leaves them out and is FedDyn.
    **local: local training, see `LocalSettings`; the authors clip gradients, `clip_norm=10`.

  Raises:
    SettingError: a setting is out of range, or `sam_radius` is given.
  """
  recipe = recipe_of(model, sharpened(local, 0.0, "fedsmoo"))
  if is_zero(rho):
    return dynamic(recipe, lam, "fedsmoo")

  def start(broadcast, state: Own, context) -> Work:
    return Work(sgd.start(broadcast.params, broadcast.stats, recipe.optimizer(context)), state.dual)

  def run_steps(key, broadcast, state: Own, data, context, work: Work, first, last) -> Work:
    tx, own = recipe.optimizer(context), recipe.fitted(data)
    shared = of_length(broadcast.even, rho)

    def step(work: Work, batch: Batch) -> Work:
      local, dual = work
      loss, slope, stats = own.gradient(local.params, local.stats, batch)
      ascent = of_length(jax.tree.map(lambda g, m, s: g - m - s, slope, dual, shared), rho)
      dual = jax.tree.map(lambda m, e, s: m + e - s, dual, ascent, shared)
      there = jax.tree.map(jnp.add, local.params, ascent)
      higher = own.gradient(there, local.stats, batch, release=1)[1]
      along = jax.tree.map(
        lambda g, w, center, h: g + lam * (w - center + h),
        higher, local.params, broadcast.params, state.drift,
      )  # fmt: skip
      return Work(sgd.stepped(local, tx, along, loss, stats), dual)

    return recipe.for_each_batch(key, data, step, work, first, last)

  def finish(broadcast, state: Own, data, context, work: Work):
    local, dual = work
    drift = jax.tree.map(lambda h, new, old: h + (new - old), state.drift, local.params, broadcast.params)
    upload = Message(local.params, stats=local.stats, even=dual)
    return upload, Own(drift, dual), Info.of_sum(local.loss, local.steps)

  def zeros(params: PyTree) -> PyTree:
    return jax.tree.map(jnp.zeros_like, params)

  def init_broadcast(key):
    params = model.init(key)
    return Message(params, stats=model.stats, even=zeros(params))

  part = supervised(
    recipe, LocalTraining(recipe.steps, start, run_steps, finish, 2), name="fedsmoo",
    init_broadcast=init_broadcast,
    init=lambda key, broadcast, *_: Own(zeros(broadcast.params), zeros(broadcast.params)),
  )  # fmt: skip
  drift: dict[str, Any] = {} if is_zero(lam) else {"server": server.drift()}
  brings = {"mixing": mixing.uniform(), **drift}
  needs = part.needs._replace(brings=brings, transformed=("params",), replaces=("even", "stats"))
  return part._replace(needs=needs)
