r"""Per-FedAvg: a start from which one gradient step on a client's data gives a good model of its own.

Fallah, Mokhtari, Ozdaglar, Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
Meta-Learning Approach, NeurIPS 2020, algorithm 1. The objective is Σ_i p_i F_i(θ - α ∇F_i(θ)). A local step
has three batches D, D', D'':

    θ̃ = θ - α ∇f(θ; D),      g = (I - α ∇²f(θ; D'')) ∇f(θ̃; D').

FO leaves the Hessian out (`hessian="none"`); HF takes ∇²f·v as (∇f(θ + δ v) - ∇f(θ - δ v)) / (2δ)
("difference"); "exact" is the product itself. D is the epoch's mini-batch; D' and D'' are as many examples of
the client, drawn anew with replacement. A client is evaluated with θ - α ∇F_i(θ), of all its training
examples.
"""

from typing import Annotated, Any, Unpack

import jax
import jax.numpy as jnp

from fedjax_het.clients import sgd
from fedjax_het.clients.local_settings import LocalSettings
from fedjax_het.clients.objective import loss_gradient, training_loss
from fedjax_het.clients.one_model import one_model
from fedjax_het.clients.recipe import Recipe, recipe_of
from fedjax_het.clients.supervised import supervised
from fedjax_het.data.container import ClientData
from fedjax_het.errors import SettingError, is_zero
from fedjax_het.local import Batch
from fedjax_het.models import Model
from fedjax_het.parts import ClientUpdate, Context, Message
from fedjax_het.settings import Choice, NonNegative, Positive, checked

PyTree = Any
HESSIANS = ("none", "difference", "exact")
REFUSED = ("sam_radius", "decorrelate", "mixup", "crop", "flip", "cutout")


def redrawn(key: jax.Array, batch: Batch, data: ClientData) -> Batch:
  """Returns a batch of as many rows of the client, drawn evenly with replacement."""
  rows = jax.random.randint(key, batch.weight.shape, 0, jnp.maximum(data.length, 1))
  x, y = data.take(rows)
  return Batch(x, y, batch.weight, key)


def meta_gradient(
  gradient: Any, params: PyTree, batches: tuple[Batch, Batch, Batch], alpha: Any, hessian: str, delta: Any
) -> PyTree:
  """Computes g of the module's docstring.

  Args:
    gradient: (θ, batch) -> ∇f(θ; batch).
    params: θ.
    batches: D, D' and D''.
    alpha: α.
    hessian: one of `HESSIANS`.
    delta: δ of the difference.
  """
  first, second, third = batches
  ahead = jax.tree.map(lambda w, g: w - alpha * g, params, gradient(params, first))
  outer = gradient(ahead, second)
  if hessian == "none":
    return outer
  if hessian == "exact":
    product = jax.jvp(lambda w: gradient(w, third), (params,), (outer,))[1]
  else:
    sides = (
      gradient(jax.tree.map(lambda w, v, s=sign: w + s * delta * v, params, outer), third) for sign in (1, -1)
    )
    product = jax.tree.map(lambda up, down: (up - down) / (2.0 * delta), *sides)
  return jax.tree.map(lambda g, h: g - alpha * h, outer, product)


@checked
def per_fedavg(
  model: Model,
  *,
  alpha: NonNegative = 0.01,
  hessian: Annotated[str, Choice(HESSIANS)] = "none",
  delta: Positive = 1e-3,
  **local: Unpack[LocalSettings],
) -> ClientUpdate:
  """Per-FedAvg's client part.

  The loss that a mixing asks for, and the global model, are those before the client's own step.

  Args:
    model: the model that clients train, without running statistics.
    alpha: α >= 0, rate of the client's own step; 0 is FedAvg.
    hessian: "none" (FO), "difference" (HF) or "exact".
    delta: δ > 0 of the difference, without effect for other Hessians.
    **local: local training, see `LocalSettings`; its rate is the paper's β.

  Raises:
    SettingError: a setting is out of range, the model has running statistics, or a setting of local training
      changes the gradient (`sam_radius`, `decorrelate`) or the batches (augmentation).
  """
  recipe: Recipe = recipe_of(model, local)
  if model.stateful:
    problem = "has running statistics, which a step away from θ would change"
    raise SettingError("model", model.name, problem, "Use a model without batch norm.")
  for name in REFUSED:
    if not is_zero(value := recipe.settings[name]):  # type: ignore[literal-required]
      raise SettingError(name, value, "changes the gradient that per_fedavg takes three of", "Leave it out.")
  plain = one_model(recipe)._replace(counted=None)
  if is_zero(alpha):
    part = supervised(recipe, plain, name="per_fedavg")
    given = {"hessian": (hessian, "none"), "delta": (delta, 1e-3)}
    return part._replace(needs=part.needs.without_effect("alpha = 0", **given))

  def run_steps(key, broadcast, state, data, context, local, first, last):
    tx, own = recipe.optimizer(context), recipe.fitted(data).trained

    def gradient(params: PyTree, batch: Batch) -> PyTree:
      return loss_gradient(own, params, (), batch)[1]

    def step(local: sgd.Local, batch: Batch) -> sgd.Local:
      other, third = (redrawn(jax.random.fold_in(batch.key, i), batch, data) for i in (2, 3))
      loss = loss_gradient(own, local.params, (), batch)[0]
      found = meta_gradient(gradient, local.params, (batch, other, third), alpha, hessian, delta)
      return sgd.stepped(local, tx, found, loss, local.stats)

    return recipe.for_each_batch(key, data, step, local, first, last)

  def personalize(broadcast: Message, state: PyTree, data: Any, context: Context, lam: jax.Array) -> PyTree:
    slope = jax.grad(lambda own: training_loss(model, own, data))(broadcast.params)
    return jax.tree.map(lambda w, g: w - alpha * g, broadcast.params, slope)

  gradients = {"none": 2, "exact": 4, "difference": 4}[hessian]
  part = supervised(recipe, plain._replace(run_steps=run_steps, gradients=gradients), name="per_fedavg")
  needs = part.needs._replace(sees_data=("personalize",))
  if hessian != "difference":
    needs = needs.without_effect(f"hessian = {hessian}", delta=(delta, 1e-3))
  return part._replace(personalize=personalize, needs=needs)
