r"""pFedMe: personalised models by Moreau envelopes.

Dinh, Tran, Nguyen, Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020, algorithm 1.

The federated model minimises Σ_i p_i f_i^λ(w),  f_i^λ(w) = min_θ F_i(θ) + (λ/2)·‖θ - w‖².  On each mini-batch
a client first approaches the minimiser θ of that batch's loss plus the proximal term by R steps of SGD from
its previous θ, then moves its copy w of the received model along the envelope's gradient λ (w - θ):

    θ <- θ - η [∇f(θ) + λ (θ - w)],  R times;      w <- w - η_w λ (w - θ).

w is uploaded; θ, the personalised model, stays. The paper's server step, w <- (1 - β) w + β Σ_i p_i w_i, is
`server.sgd(lr=β)`.
"""

from typing import Annotated, Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_het.clients import sgd
from fedjax_het.clients.local_settings import LocalSettings
from fedjax_het.clients.objective import updates_barrier
from fedjax_het.clients.recipe import recipe_of
from fedjax_het.clients.supervised import line, received, supervised
from fedjax_het.errors import check_range
from fedjax_het.local import Batch
from fedjax_het.models import Model
from fedjax_het.parts import ClientUpdate, Info, LocalTraining, Message
from fedjax_het.settings import Count, Range, checked

PyTree = Any


class Work(NamedTuple):
  """State of local training: w (`federated`), θ (`own`) with running statistics, and sums for `Info`."""

  federated: PyTree
  own: PyTree
  stats: PyTree
  loss: jax.Array
  steps: jax.Array


@checked
def pfedme(
  model: Model,
  *,
  lam: Annotated[float, Range(above=0.0)] = 15.0,
  inner_steps: Count = 5,
  outer_lr: Annotated[float, Range(above=0.0)] | None = None,
  **local: Unpack[LocalSettings],
) -> ClientUpdate:
  """pFedMe's client part; its state is the personalised model θ, initialised to the first w.

  Running statistics are θ's; they are uploaded and averaged for the global model as well.

  Args:
    model: the model that clients train.
    lam: λ > 0, coefficient of the envelope. At 0, w would never move: no setting of pFedMe is FedAvg.
    inner_steps: R >= 1, SGD steps on θ per mini-batch.
    outer_lr: η_w in round 0; None takes η.
    **local: local training, see `LocalSettings`: the inner steps on θ, whose optimiser state is new for each
      mini-batch; `lr_decay` acts on both rates.

  Raises:
    SettingError: a setting is out of range, or η_w λ >= 2, with which w would diverge.
  """
  recipe = recipe_of(model, local)
  outer = recipe.settings["lr"] if outer_lr is None else outer_lr
  of_outer = recipe._replace(settings={**recipe.settings, "lr": outer})
  check_range("outer_lr · lam", outer * lam, below=2.0)

  def start(broadcast, state, context) -> Work:
    own = model.split(state)
    return Work(broadcast.params, own.params, own.stats, jnp.float32(0.0), jnp.int32(0))

  def run_steps(key, broadcast, state, data, context, work: Work, first, last) -> Work:
    tx, rate, fitted = recipe.optimizer(context), of_outer.rate(context.round), recipe.fitted(data)

    def step(work: Work, batch: Batch) -> Work:
      near = sgd.proximal_gradient(work.federated, lam)

      def inner(r, carry):
        own, state, stats, total = carry
        again = batch._replace(key=jax.random.fold_in(batch.key, r))
        loss, gradient, stats = fitted.gradient(own, stats, again)
        updates, state = tx.update(near(gradient, own), state, own)
        return optax.apply_updates(own, updates_barrier(updates)), state, stats, total + loss

      carry = work.own, tx.init(work.own), work.stats, work.loss
      own, _, stats, loss = lax.fori_loop(0, inner_steps, inner, carry)
      federated = jax.tree.map(lambda w, o: w - rate * lam * (w - o), work.federated, own)
      return Work(federated, own, stats, loss, work.steps + inner_steps)

    return recipe.for_each_batch(key, data, step, work, first, last)

  def finish(broadcast, state, data, context, work: Work):
    info = Info.of_sum(work.loss, work.steps)
    return Message(work.federated, stats=work.stats), model.joined(work.own, work.stats), info

  training = LocalTraining(recipe.steps, start, run_steps, finish, inner_steps * recipe.gradients)
  return supervised(
    recipe, training, lambda broadcast, state, *_: state, name="pfedme",
    init=lambda key, broadcast, *_: received(model)(broadcast), global_model=received(model),
    line=line(model, recipe.settings["batch_size"]),
  )  # fmt: skip
