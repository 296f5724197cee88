r"""Server optimisers on the pseudo-gradient  Δ = θ - Σ_i p_i θ_i.

Reddi et al., Adaptive Federated Optimization, ICLR 2021, algorithm 2. Their Δ_t is the average update, the
negative of the Δ here, so that θ <- θ - η m / (√v + τ) is a descent step in optax's convention. Moments
persist over the rounds, without bias correction, from m = 0 and v = v₀:

    m <- β₁ m + (1 - β₁) Δ
    FedAdagrad   v <- v + Δ²
    FedYogi      v <- v - (1 - β₂) Δ² sign(v - Δ²)
    FedAdam      v <- β₂ v + (1 - β₂) Δ²
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_het.errors import SettingError, check_transformation, is_zero
from fedjax_het.modes import promoting
from fedjax_het.parts import Message, ServerUpdate
from fedjax_het.settings import Fraction, Positive, checked


def optimizer(transformation: optax.GradientTransformation, name: str = "custom") -> ServerUpdate:
  """Applies an optax transformation to the pseudo-gradient Δ = θ - Σ_i p_i θ_i.

  Everything but the parameters, such as running statistics, becomes its average. The transformation's state
  is kept over the rounds.

  Args:
    transformation: the optax transformation.
    name: name of the server part in tables.

  Raises:
    SettingError: it is not a transformation, such as `optax.adam` instead of `optax.adam(0.01)`, or it needs
      more than gradient, state and parameters.
  """
  if not isinstance(transformation, optax.GradientTransformation):
    found = getattr(transformation, "__name__", type(transformation).__name__)
    remedy = "Call it with a learning rate, such as optax.adam(0.01)."
    raise SettingError("transformation", found, "no optax transformation", remedy)
  check_transformation("transformation", name, transformation)
  transformation = promoting(transformation)

  def init(broadcast: Message):
    return transformation.init(broadcast.params)

  def update(key, state, broadcast: Message, aggregate: Message):
    del key
    delta = jax.tree.map(jnp.subtract, broadcast.params, aggregate.params)
    updates, state = transformation.update(delta, state, broadcast.params)
    return aggregate._replace(params=optax.apply_updates(broadcast.params, updates)), state

  return ServerUpdate(init, update, name)


@checked(whose="server's ")
def sgd(lr: Positive = 1.0) -> ServerUpdate:
  """Server SGD, θ <- θ - η Δ; with η = 1 the server moves to the clients' average (FedAvg).

  Args:
    lr: the server's learning rate η > 0.

  Raises:
    SettingError: η <= 0, or infinite.
  """
  return optimizer(optax.sgd(lr), "sgd")


@checked(whose="server's ")
def avgm(lr: Positive = 1.0, momentum: Fraction = 0.9, nesterov: bool = False) -> ServerUpdate:
  """FedAvgM's server part, v <- β v + Δ and θ <- θ - η v, from v = 0.

  Hsu, Qi, Brown, Measuring the Effects of Non-Identical Data Distribution for Federated Visual
  Classification, 2019, section 4.3.

  Args:
    lr: the server's learning rate η > 0. A constant Δ moves the server by η/(1 - β) a round in the end.
    momentum: β in [0, 1); 0 is `sgd`.
    nesterov: whether the step is θ <- θ - η (Δ + β v).

  Raises:
    SettingError: a setting is out of range.
  """
  if not is_zero(momentum):
    return optimizer(optax.sgd(lr, momentum, nesterov), "avgm")
  part = optimizer(optax.sgd(lr), "avgm")
  return part._replace(needs=part.needs.without_effect("momentum = 0", nesterov=(nesterov, False)))


class Moments(NamedTuple):
  """First and second moment of the pseudo-gradient, trees like the parameters."""

  first: optax.Params
  second: optax.Params


@checked(whose="server's ")
def adam(lr: Positive = 0.01, b1: Fraction = 0.9, b2: Fraction = 0.99, tau: Positive = 1e-3) -> ServerUpdate:
  """FedAdam's server part: v <- β₂ v + (1 - β₂) Δ².

  Args:
    lr: the server's learning rate η > 0.
    b1: β₁ in [0, 1), decay of the first moment.
    b2: β₂ in [0, 1), decay of the second moment.
    tau: τ > 0, degree of adaptivity; v starts at τ².

  Raises:
    SettingError: a setting is out of range.
  """
  return _adaptive("adam", lambda v, square, b2: b2 * v + (1.0 - b2) * square, lr, b1, b2, tau)


@checked(whose="server's ")
def yogi(lr: Positive = 0.01, b1: Fraction = 0.9, b2: Fraction = 0.99, tau: Positive = 1e-3) -> ServerUpdate:
  """FedYogi's server part: v <- v - (1 - β₂) Δ² sign(v - Δ²).

  Args:
    lr: the server's learning rate η > 0.
    b1: β₁ in [0, 1), decay of the first moment.
    b2: β₂ in [0, 1), decay of the second moment.
    tau: τ > 0, degree of adaptivity; v starts at τ².

  Raises:
    SettingError: a setting is out of range.
  """

  def moment(v, square, b2):
    return v - (1.0 - b2) * square * jnp.sign(v - square)

  return _adaptive("yogi", moment, lr, b1, b2, tau)


@checked(whose="server's ")
def adagrad(lr: Positive = 0.01, b1: Fraction = 0.0, tau: Positive = 1e-3) -> ServerUpdate:
  """FedAdagrad's server part: v <- v + Δ².

  Args:
    lr: the server's learning rate η > 0.
    b1: β₁ in [0, 1), decay of the first moment.
    tau: τ > 0, degree of adaptivity; v starts at τ².

  Raises:
    SettingError: a setting is out of range.
  """
  return _adaptive("adagrad", lambda v, square, b2: v + square, lr, b1, 0.0, tau)


def _adaptive(name: str, moment: Callable, lr: float, b1: float, b2: float, tau: float) -> ServerUpdate:
  def init(params):
    zeros = jax.tree.map(jnp.zeros_like, params)
    return Moments(zeros, jax.tree.map(lambda leaf: jnp.full_like(leaf, tau**2), params))

  def update(delta, moments, params=None):
    del params
    first = jax.tree.map(lambda m, d: b1 * m + (1.0 - b1) * d, moments.first, delta)
    second = jax.tree.map(lambda v, d: moment(v, d * d, b2), moments.second, delta)
    step = jax.tree.map(lambda m, v: -lr * m / (jnp.sqrt(v) + tau), first, second)
    return step, Moments(first, second)

  return optimizer(optax.GradientTransformation(init, update), name)
