r"""Ditto: a global model by FedAvg, and a personal one kept near to it.

Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021, algorithm 1.

A client trains the received θ^g as FedAvg does and uploads the result; then it minimises, from where its own
model v_i was,

    F_i(v) + (λ/2)·‖v - θ^g‖²,      θ^g as received,

and keeps v_i, which is the model that it uses.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import optax

from fedjax_het.clients import sgd
from fedjax_het.clients.objective import Optimizer
from fedjax_het.clients.sgd import afterwards, mean_loss
from fedjax_het.clients.supervised import line, received, scheduled, supervised
from fedjax_het.data.container import ClientData
from fedjax_het.local import steps_per_epoch
from fedjax_het.models import Model
from fedjax_het.parts import ClientUpdate, LocalTraining, Message

PyTree = Any


class Pair(NamedTuple):
  """Local training of the received model, and after it of the client's own."""

  received: sgd.Local
  own: sgd.Local


def walk_both(
  key: jax.Array,
  model: Model,
  data: ClientData,
  work: Pair,
  optimizer: optax.GradientTransformation,
  epochs: tuple[int, int],
  batch_size: int,
  near: Callable[[PyTree, PyTree], PyTree],
  first: int | jax.Array = 0,
  last: int | jax.Array | None = None,
  at: Callable[[sgd.Step, PyTree], PyTree] | None = None,
) -> Pair:
  """Steps for the received model, then for the client's own, kept `near`, over `epochs`; see `sgd.walk`."""
  received = sgd.walk(
    key, model, data, work.received, optimizer, epochs[0], batch_size, None, first, last, at
  )
  first, last, key = afterwards(epochs[0] * steps_per_epoch(data, batch_size), first, last, key)
  return Pair(
    received, sgd.walk(key, model, data, work.own, optimizer, epochs[1], batch_size, near, first, last, at)
  )


def ditto(
  model: Model,
  *,
  lam: float = 1.0,
  lr: float = 0.01,
  lr_decay: float = 1.0,
  momentum: float = 0.9,
  weight_decay: float = 1e-4,
  epochs: int = 10,
  local_epochs: int | None = None,
  batch_size: int = 10,
  optimizer: Optimizer | None = None,
) -> ClientUpdate:
  """Ditto's client part. Its state is v_i, which starts at the first θ^g; the global model is FedAvg's.

  Args:
    model: the model.
    lam: λ >= 0, how near v_i is kept; 0 is local training alone.
    lr: η > 0 in round 0, for both models.
    lr_decay: factor on η each round, in (0, 1].
    momentum: momentum of local SGD, fresh each round, for each model.
    weight_decay: weight decay of local SGD.
    epochs: E, passes through a client's data for the received model each round.
    local_epochs: passes for the client's own model after that; None takes as many as `epochs`. The paper's
      experiments have 5.
    batch_size: B; a last partial batch is used.
    optimizer: in place of SGD, its momentum and weight decay: η -> an optax transformation, fresh each round.

  Raises:
    SettingError: a setting out of range.
  """
  own_epochs = epochs if local_epochs is None else local_epochs
  tx_of = scheduled(
    lam=lam, lr=lr, lr_decay=lr_decay, momentum=momentum, weight_decay=weight_decay, epochs=epochs,
    local_epochs=own_epochs, batch_size=batch_size, optimizer=optimizer,
  )  # fmt: skip

  def start(broadcast, state, context) -> Pair:
    tx = tx_of(context)
    return Pair(sgd.start(broadcast.params, broadcast.stats, tx), sgd.start(*model.split(state), tx))

  def walk(key, broadcast, state, data, context, work: Pair, first, last) -> Pair:
    near, passes = sgd.near(broadcast.params, lam), (epochs, own_epochs)
    return walk_both(key, model, data, work, tx_of(context), passes, batch_size, near, first, last)

  def finish(broadcast, state, data, context, work: Pair):
    upload = Message(work.received.params, stats=work.received.stats)
    return upload, model.joined(work.own.params, work.own.stats), mean_loss(*work)

  def steps(data):
    return (epochs + own_epochs) * steps_per_epoch(data, batch_size)

  training = LocalTraining(steps, start, walk, finish)
  return supervised(
    model, training, lambda broadcast, state, *_: state, name="ditto",
    init=lambda key, broadcast, *_: received(model)(broadcast), globalize=received(model),
    line=line(model, batch_size),
  )  # fmt: skip
