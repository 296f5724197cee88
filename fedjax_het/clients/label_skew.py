r"""FedLC, FedRS and FedNTD: FedAvg with losses for clients that lack classes.

FedLC and FedRS train on logits that are calibrated by the client's own label counts, see `calibration`.

FedNTD (Lee et al., Preservation of the Global Knowledge by Not-True Distillation in Federated Learning,
NeurIPS 2022, equations 5 and 6) adds, with the received model as teacher and all logits but the label's,

    β τ² KL(softmax(f^g_{\\y} / τ) ‖ softmax(f_{\\y} / τ)).
"""

from typing import Any, Unpack

import jax
import jax.numpy as jnp

from fedjax_het.clients.calibration import NEVER, check_method
from fedjax_het.clients.local_settings import LocalSettings
from fedjax_het.clients.one_model import one_model
from fedjax_het.clients.recipe import check_plain_labels, recipe_of
from fedjax_het.clients.supervised import received, supervised
from fedjax_het.errors import SettingError, is_one, is_zero
from fedjax_het.local import weighted_mean
from fedjax_het.models import Model
from fedjax_het.parts import ClientUpdate
from fedjax_het.settings import NonNegative, Positive, Weight, checked


def calibrated_by(given: LocalSettings, rule: str, strength: Any, name: str) -> LocalSettings:
  """Returns local settings with the calibrated loss by which a method is defined, such as FedLC's.

  A traced `calibration_strength` passes, since a run's numbers are checked before they are traced.

  Args:
    given: the local settings of the run.
    rule: the calibration, one of `LocalSettings`.
    strength: its strength.
    name: the method's name, for the errors.

  Raises:
    SettingError: `given` has another calibration, or a strength of its own.
  """
  own = given.get("calibration_strength", 1.0)
  if not isinstance(own, jax.Array) and own != 1.0:
    problem = f"{name} sets how strongly its losses are calibrated"
    raise SettingError("calibration_strength", own, problem, "Leave it out.")
  if given.get("calibration", "none") not in ("none", rule):
    problem = f"{name} calibrates its losses by {rule}"
    raise SettingError("calibration", given["calibration"], problem, "Leave it out.")
  return {**given, "calibration": rule, "calibration_strength": strength}  # type: ignore[typeddict-item]


def _fedavg(model: Model, local: LocalSettings, name: str) -> ClientUpdate:
  recipe = recipe_of(model, local)
  return supervised(recipe, one_model(recipe), name=name)


@checked
def fedlc(model: Model, *, tau: NonNegative = 1.0, **local: Unpack[LocalSettings]) -> ClientUpdate:
  """FedLC's client part: FedAvg with `calibration="fedlc"`.

  Args:
    model: the model that clients train, with a logit for each class.
    tau: τ >= 0, strength of the calibration. At 0 only classes that the client lacks are left out.
    **local: local training, see `LocalSettings`.

  Raises:
    SettingError: a setting is out of range, the labels are no classes, or `calibration` or its strength is
      given.
  """
  return _fedavg(model, calibrated_by(local, "fedlc", tau, "fedlc"), "fedlc")


@checked
def fedrs(model: Model, *, alpha: Weight = 0.5, **local: Unpack[LocalSettings]) -> ClientUpdate:
  """FedRS's client part: FedAvg with `calibration="fedrs"`.

  Args:
    model: the model that clients train, with a logit for each class.
    alpha: α in [0, 1], factor on the logits of classes that the client lacks; 1 is FedAvg.
    **local: local training, see `LocalSettings`.

  Raises:
    SettingError: a setting is out of range, the labels are no classes, or `calibration` or its strength is
      given.
  """
  own = calibrated_by(local, "fedrs", alpha, "fedrs")
  return _fedavg(model, {**own, "calibration": "none"} if is_one(alpha) else own, "fedrs")


def not_true_divergence(logits: jax.Array, teacher: jax.Array, y: jax.Array, tau: Any) -> jax.Array:
  """Computes τ² KL(softmax(t/τ) ‖ softmax(f/τ)) over the classes other than y, float32 [B].

  Args:
    logits: f, float32 [B, C].
    teacher: t, float32 [B, C].
    y: labels, int [B].
    tau: τ > 0.
  """
  label = jax.nn.one_hot(y, logits.shape[-1], dtype=bool)
  own, other = (jax.nn.log_softmax(jnp.where(label, NEVER, f / tau)) for f in (logits, teacher))
  return tau**2 * jnp.where(label, 0.0, jnp.exp(other) * (other - own)).sum(-1)


@checked
def fedntd(
  model: Model, *, beta: NonNegative = 1.0, tau: Positive = 1.0, **local: Unpack[LocalSettings]
) -> ClientUpdate:
  """FedNTD's client part.

  Args:
    model: the model that clients train, with a logit for each class.
    beta: β >= 0, weight of the distillation; 0 leaves it out and is FedAvg.
    tau: τ > 0, the temperature.
    **local: local training, see `LocalSettings`.

  Raises:
    SettingError: a setting is out of range, the labels are no classes or, with β > 0, of two classes, or
      `mixup` is given.
  """
  recipe = recipe_of(model, local)
  check_method("fedntd", model)
  if model.num_classes == 2 and not is_zero(beta):
    problem = "distils over the classes other than the label, and of two classes one alone is left"
    raise SettingError("algorithm", "fedntd", problem, "Choose another method, or beta=0, which is FedAvg.")

  def term(broadcast, state, context):
    def distil(params, seen):
      teacher = model.logits(received(model)(broadcast), seen.batch.x)
      losses = not_true_divergence(seen.outputs, teacher, seen.batch.y, tau)
      return beta * weighted_mean(losses, seen.batch.weight)

    return distil

  if is_zero(beta):
    part = supervised(recipe, one_model(recipe), name="fedntd")
    return part._replace(needs=part.needs.without_effect("beta = 0", tau=(tau, 1.0)))
  check_plain_labels(recipe, "fedntd")
  return supervised(recipe, one_model(recipe, term=term), name="fedntd")
