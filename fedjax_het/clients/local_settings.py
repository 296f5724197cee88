"""The settings of local training that client parts share, declared and documented once.

A client part takes them as `**local: Unpack[LocalSettings]`, so that a call stays flat:
`fh.superfed(model, nu=1.0, lr=0.05)`.
"""

from collections.abc import Callable
from typing import Annotated, TypedDict

import optax

from fedjax_het.clients import objective
from fedjax_het.modes import promoting
from fedjax_het.parts import Context
from fedjax_het.settings import Count, Decay, Default, Fraction, NonNegative, Positive, with_defaults

OptimizerOf = Callable[[Context], optax.GradientTransformation]


class LocalSettings(TypedDict, total=False):
  """Local training by mini-batch SGD. In round t, counted from 0, a step on the mini-batch loss L is

      m <- momentum·m + ∇L(θ) + weight_decay·θ,    θ <- θ - lr·lr_decay^t·m,    m = 0 before the first step.

  Attributes:
    lr: local learning rate η > 0 in round 0.
    lr_decay: factor on η per round, in (0, 1].
    momentum: momentum of local SGD, in [0, 1); its buffer starts at 0 in each round.
    weight_decay: L2 weight decay of local SGD, >= 0.
    epochs: E, passes over a client's training examples per round.
    batch_size: B, mini-batch size in examples; a last partial batch is used.
    optimizer: function η -> optax transformation that replaces SGD, its momentum and weight decay; its state
      is new in each round.
  """

  lr: Annotated[Positive, Default(0.01)]
  lr_decay: Annotated[Decay, Default(1.0)]
  momentum: Annotated[Fraction, Default(objective.MOMENTUM)]
  weight_decay: Annotated[NonNegative, Default(objective.WEIGHT_DECAY)]
  epochs: Annotated[Count, Default(10)]
  batch_size: Annotated[Count, Default(10)]
  optimizer: Annotated[objective.Optimizer | None, Default(None)]


class AdamSettings(TypedDict, total=False):
  """Local training by Adam, as the generative methods use it.

  Attributes:
    lr: Adam's learning rate in round 0, > 0.
    b1: Adam's β₁ in [0, 1), decay of the first moment.
    b2: Adam's β₂ in [0, 1), decay of the second moment.
    weight_decay: L2 coefficient >= 0, added to the gradient before Adam.
    epochs: E, passes over a client's training examples per round.
    steps: maximum number of local steps per round; None for no limit.
    batch_size: B, mini-batch size in examples.
  """

  lr: Annotated[Positive, Default(1e-3)]
  b1: Annotated[Fraction, Default(0.5)]
  b2: Annotated[Fraction, Default(0.999)]
  weight_decay: Annotated[NonNegative, Default(1e-4)]
  epochs: Annotated[Count, Default(1)]
  steps: Annotated[Count | None, Default(None)]
  batch_size: Annotated[Count, Default(64)]


def local_training(given: LocalSettings) -> tuple[LocalSettings, OptimizerOf]:
  """Returns (the settings with their defaults, context -> the optimiser at that round's learning rate).

  Raises:
    SettingError: `optimizer` cannot be used, or settings of SGD are given beside it.
  """
  local = with_defaults(LocalSettings, given)
  lr, lr_decay, own = local["lr"], local["lr_decay"], local["optimizer"]
  momentum, weight_decay = local["momentum"], local["weight_decay"]
  if own is not None:
    objective.check_optimizer(own, lr, momentum=momentum, weight_decay=weight_decay)
  make = own or objective.momentum_sgd(momentum, weight_decay)
  return local, lambda context: promoting(make(objective.decayed(lr, lr_decay, context.round)))


def adam_training(given: AdamSettings, lr_decay: float) -> tuple[AdamSettings, OptimizerOf]:
  """Returns (the settings with their defaults, context -> Adam at that round's learning rate)."""
  local = with_defaults(AdamSettings, given)
  make = objective.adam(local["b1"], local["b2"], local["weight_decay"])
  return local, lambda context: make(objective.decayed(local["lr"], lr_decay, context.round))
