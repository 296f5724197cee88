"""The settings of local training that client parts share, declared and documented once.

A client part takes them as `**local: Unpack[LocalSettings]`, so that a call stays flat:
`fh.superfed(model, nu=1.0, lr=0.05)`. `recipe.recipe_of` makes local training of them.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypedDict

import optax

from fedjax_het.clients import objective
from fedjax_het.clients.calibration import RULES
from fedjax_het.clients.private import SAMPLINGS
from fedjax_het.errors import SettingError, check_choice
from fedjax_het.parts import Context
from fedjax_het.settings import (
  Choice,
  Count,
  Decay,
  Default,
  Fraction,
  NonNegative,
  Positive,
  Whole,
  with_defaults,
)

Pixels = Annotated[int, Whole(0)]
OptimizerOf = Callable[[Context], optax.GradientTransformation]

OPTIMIZERS: Mapping[str, Callable[[Mapping[str, Any]], objective.Optimizer]] = {
  "sgd": lambda own: objective.momentum_sgd(own["momentum"], own["weight_decay"]),
  "nesterov": lambda own: objective.momentum_sgd(own["momentum"], own["weight_decay"], nesterov=True),
  "adam": lambda own: objective.adam(own["b1"], own["b2"], own["weight_decay"], own["eps"]),
  "adamw": lambda own: objective.adam(own["b1"], own["b2"], own["weight_decay"], own["eps"], decoupled=True),
}
SUMMING = (
  "sgd",
)  # optimisers of whose update the mean gradient is read, see `gradient_weights.times_counted`
USED_BY = {  # settings that only some optimisers use -> those
  **dict.fromkeys(("momentum",), ("sgd", "nesterov")),
  **dict.fromkeys(("b1", "b2", "eps"), ("adam", "adamw")),
}


OURS = ("weight_decay", *USED_BY)  # settings of the optimisers above, which any other one replaces
OF_RATE = ("lr_decay", "schedule", "schedule_rounds", "warmup")  # the rate's way over the rounds
BY_ROUND = (*OF_RATE, "epochs", "steps", "min_epochs")
OF_PRIVACY = ("dp_clip", "dp_noise_multiplier", "dp_sampling", "dp_capacity", "dp_block")
OF_OPTAX, RATE = "optax.", "learning_rate"


def optimizer_of(chosen: Any) -> Any:
  """Returns Optax's function for a name such as "optax.lion", "sgd" for None, and other values unchanged."""
  if isinstance(chosen, str) and chosen.startswith(OF_OPTAX):
    return getattr(optax, chosen.removeprefix(OF_OPTAX))
  return "sgd" if chosen is None else chosen


def unused_settings(chosen: Any) -> dict[str, str]:
  """Returns setting -> the optimiser's name, for each setting that the chosen optimiser does not use."""
  made = optimizer_of(chosen)
  if isinstance(made, str) and made in OPTIMIZERS:
    return {setting: made for setting, users in USED_BY.items() if made not in users}
  return dict.fromkeys(OURS, str(chosen))


class OptimizerName(Choice):
  """The name of an optimiser; a function is checked where the optimiser is made, see `recipe.recipe_of`."""

  def check(self, setting: str, value: Any) -> None:
    """See `Rule.check`."""
    if isinstance(value, str) and value.startswith(OF_OPTAX):
      functions = {name: own for name, own in vars(optax).items() if inspect.isfunction(own)}
      takes_rate = [n for n, own in functions.items() if [*inspect.signature(own).parameters][:1] == [RATE]]
      check_choice(setting, value, [f"{OF_OPTAX}{name}" for name in takes_rate])
    elif isinstance(value, str) and "." in value:
      remedy = "Start the run from that file."
      raise SettingError(
        setting, value, "a function of a configuration file, of which this is the name", remedy
      )
    elif isinstance(value, str):
      super().check(setting, value)


class LocalSettings(TypedDict, total=False):
  """Local training in mini-batch steps. In round t, counted from 0, a step of `sgd` on the loss L is

      m <- momentum·m + ∇L(θ) + weight_decay·θ,    θ <- θ - η_t·m,    m = 0 before the first step,
      η_t = lr · lr_decay^t · s(t/T) · min(1, (t + 1)/warmup),

  where s is the schedule. The optimiser's state is new in each round.

  Attributes:
    lr: local learning rate η > 0 in round 0.
    lr_decay: factor on η per round, in (0, 1].
    momentum: momentum of `sgd` and `nesterov`, in [0, 1); its buffer starts at 0 in each round.
    weight_decay: L2 weight decay >= 0, added to the gradient; with `adamw` decoupled from it.
    epochs: E, passes over a client's training examples per round.
    batch_size: B, mini-batch size in examples; a last partial batch is used.
    optimizer: "sgd", "nesterov", "adam" or "adamw"; or one that replaces SGD, its momentum and weight decay:
      "optax.lion" and the like, or in Python a function η -> optax transformation. None is "sgd".
    steps: mini-batch steps per round in the place of `epochs`, the same for every client: a client goes on
      with a further epoch where its examples are used up. None goes by `epochs`.
    min_epochs: the fewest epochs: each client draws its number in each round evenly from `min_epochs` to
      `epochs`. None: always `epochs`. A system part's clock and deadline count `epochs`.
    clip_norm: largest L2 norm of a step's gradient over all trained parameters, after a method's own terms
      and before weight decay, > 0; None for no bound.
    schedule: s(u): "constant" is 1, "linear" 1 - u, "cosine" (1 + cos πu)/2.
    schedule_rounds: T of the schedule, rounds; configurations give the run's.
    warmup: rounds in which the rate rises linearly from lr/warmup to its value, >= 0.
    b1: decay of Adam's first moment, in [0, 1).
    b2: decay of Adam's second moment, in [0, 1).
    eps: the number added to the square root in Adam's step, > 0.
    label_smoothing: share a in [0, 1) of an even distribution over the classes in the labels that training
      sees: (1 - a)·L(y) + a/C·Σ_c L(c); with a `calibration` in which classes that a client lacks have no
      part, over its own classes. Metrics and the losses that mixings use have the plain labels.
    sam_radius: ρ >= 0 of sharpness-aware steps, whose gradient is taken at θ + ρ g/‖g‖, g = ∇L(θ) (Foret et
      al., ICLR 2021, equations 2 and 3); 0 for plain steps.
    sam_adaptive: whether the point is θ + ρ θ² g/‖θ g‖ (ASAM; Kwon et al., ICML 2021, equation 9, with the
      absolute parameters as T and no η).
    crop: pixels of the margin of zeros out of which each training image is cut at random; 0 for none.
    flip: whether each training image is mirrored from left to right with probability 1/2.
    cutout: side in pixels of a square that is set to 0 around a random pixel of each training image; 0 for
      none.
    mixup: α >= 0: each training example, and its loss, is mixed with another one of the batch by
      λ ~ Beta(α, α); 0 for plain examples.
    calibration: cross entropy calibrated by the client's label counts: "none", "logit_adjustment", "fedlc" or
      "fedrs", see `calibration`. Metrics and the losses that mixings use are of the plain logits.
    calibration_strength: τ >= 0 of `calibration`; for "fedrs" at most 1, which is plain cross entropy.
    decorrelate: β >= 0, weight of FedDecorr's penalty on correlated features, see `calibration.correlation`.
    dp_clip: C > 0, the largest L2 norm of one record's gradient with record-level differential privacy
      (DP-SGD), see `private`; None for none. Every gradient is then noised.
    dp_noise_multiplier: z >= 0: the noise on a mini-batch's sum of gradients has the deviation z·C.
    dp_sampling: "poisson": each step draws each record with probability min(1, B/n); or "shuffle": the
      batches of shuffled epochs, for which the ledger counts on no sampling.
    dp_capacity: the most records of a drawn mini-batch, of which larger ones keep as many by chance; None is
      the least that a batch exceeds with a probability below 1e-9.
    dp_block: the most records whose gradients are in memory at once.
  """

  lr: Annotated[Positive, Default(0.01)]
  lr_decay: Annotated[Decay, Default(1.0)]
  momentum: Annotated[Fraction, Default(objective.MOMENTUM)]
  weight_decay: Annotated[NonNegative, Default(objective.WEIGHT_DECAY)]
  epochs: Annotated[Count, Default(10)]
  batch_size: Annotated[Count, Default(10)]
  optimizer: Annotated[Annotated[str, OptimizerName(OPTIMIZERS)] | objective.Optimizer | None, Default("sgd")]
  steps: Annotated[Count | None, Default(None)]
  min_epochs: Annotated[Count | None, Default(None)]
  clip_norm: Annotated[Positive | None, Default(None)]
  schedule: Annotated[Annotated[str, Choice(objective.SCHEDULES)], Default("constant")]
  schedule_rounds: Annotated[Count | None, Default(None)]
  warmup: Annotated[NonNegative, Default(0.0)]
  b1: Annotated[Fraction, Default(0.9)]
  b2: Annotated[Fraction, Default(0.999)]
  eps: Annotated[Positive, Default(1e-8)]
  label_smoothing: Annotated[Fraction, Default(0.0)]
  sam_radius: Annotated[NonNegative, Default(0.0)]
  sam_adaptive: Annotated[bool, Default(False)]
  crop: Annotated[Pixels, Default(0)]
  flip: Annotated[bool, Default(False)]
  cutout: Annotated[Pixels, Default(0)]
  mixup: Annotated[NonNegative, Default(0.0)]
  calibration: Annotated[Annotated[str, Choice(("none", *RULES))], Default("none")]
  calibration_strength: Annotated[NonNegative, Default(1.0)]
  decorrelate: Annotated[NonNegative, Default(0.0)]
  dp_clip: Annotated[Positive | None, Default(None)]
  dp_noise_multiplier: Annotated[NonNegative, Default(1.0)]
  dp_sampling: Annotated[Annotated[str, Choice(SAMPLINGS)], Default("poisson")]
  dp_capacity: Annotated[Count | None, Default(None)]
  dp_block: Annotated[Count, Default(16)]


def at_evaluations(given: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the settings of local training that training at an evaluation takes over from the rounds'.

  Record-level privacy is none of them: what an evaluation trains stays at its client.
  """
  here = {*LocalSettings.__annotations__} - {*BY_ROUND, *OF_PRIVACY}
  return {name: own for name, own in given.items() if name in here}


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


def adam_training(given: AdamSettings, lr_decay: float) -> tuple[AdamSettings, OptimizerOf]:
  """Returns (the settings with their defaults, context -> Adam at that round's learning rate)."""
  local = with_defaults(AdamSettings, given)
  make = objective.adam(local["b1"], local["b2"], local["weight_decay"])
  return local, lambda context: make(objective.decayed(local["lr"], lr_decay, context.round))
