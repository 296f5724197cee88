"""Server steps on the pseudo-gradient (Reddi et al., Adaptive Federated Optimization, ICLR 2021)."""

import jax
import jax.numpy as jnp
import optax

from fedjax_het.errors import check_range
from fedjax_het.federated import Message, ServerUpdate


def optimizer(transformation: optax.GradientTransformation, name: str = "custom") -> ServerUpdate:
  """Any optax transformation on the pseudo-gradient Δ = θ - Σ_i p_i θ_i; extras become their average.

  The transformation's state is kept over the rounds.
  """

  def init(broadcast: Message):
    return transformation.init(broadcast.params)

  def update(key, state, broadcast: Message, aggregate: Message):
    del key
    delta = jax.tree.map(jnp.subtract, broadcast.params, aggregate.params)
    updates, state = transformation.update(delta, state, broadcast.params)
    return Message(optax.apply_updates(broadcast.params, updates), aggregate.extra), state

  return ServerUpdate(init, update, name)


def sgd(lr: float = 1.0) -> ServerUpdate:
  """θ <- θ - η Δ. With η = 1 the server moves to the clients' average (FedAvg).

  Raises:
    SettingError: η <= 0.
  """
  if not isinstance(lr, jax.core.Tracer):
    check_range("server's lr", lr, above=0.0)
  return optimizer(optax.sgd(lr), "sgd")
