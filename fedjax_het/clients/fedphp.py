r"""FedPHP: a client inherits its own earlier models in a moving average, which teaches the received model.

Li, Zhan, Shao, Li, Song, FedPHP: Federated Personalization with Inherited Private Models, ECML-PKDD 2021; the
rule was read in the authors' code. In its s-th participation, counted from 0, of the S T / K that it has on
average in T rounds, a client trains θ from the received model on

    (1 - λ) L_task + λ R(θ, q_i),      q_i <- μ_i q_i + (1 - μ_i) θ_i  afterwards,
    μ_i = μ min(s / (S T / K), 1),

where its private model q_i stays as it is during the round. Clients are judged by q_i. R is either the cross
entropy with q_i's softened probabilities, -mean_x Σ_c softmax(f_{q_i}(x) / τ)_c log softmax(f_θ(x))_c ("kd"),
or the discrepancy of both models' features, see `discrepancy.adaptive` ("mmd").
"""

from typing import Annotated, Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp

from fedjax_het import vectors
from fedjax_het.clients.calibration import check_classes
from fedjax_het.clients.discrepancy import adaptive
from fedjax_het.clients.local_settings import LocalSettings
from fedjax_het.clients.objective import weighted
from fedjax_het.clients.one_model import one_model
from fedjax_het.clients.recipe import recipe_of
from fedjax_het.clients.supervised import received, supervised
from fedjax_het.errors import check_same_rounds, is_zero
from fedjax_het.local import weighted_mean
from fedjax_het.models import Model
from fedjax_het.models.features import with_features
from fedjax_het.parts import ClientUpdate, Message
from fedjax_het.settings import Choice, Count, Fraction, Positive, checked

PyTree = Any


class Own(NamedTuple):
  """Client state: q_i, joined with statistics, and how often the client took part, int32."""

  private: PyTree
  times: jax.Array


def inherited(mu: float | jax.Array, times: jax.Array, expected: jax.Array) -> jax.Array:
  """Computes μ_i, float32 scalar.

  Args:
    mu: μ.
    times: s, the client's earlier participations.
    expected: S T / K.
  """
  return mu * jnp.minimum(times.astype(jnp.float32) / expected, 1.0)


@checked
def fedphp(
  model: Model,
  *,
  rounds: Count = 100,
  mu: Fraction = 0.9,
  lam: Fraction = 0.05,
  transfer: Annotated[str, Choice(("kd", "mmd"))] = "kd",
  tau: Positive = 4.0,
  **local: Unpack[LocalSettings],
) -> ClientUpdate:
  """FedPHP's client part; its state is the private model, at first that of the run's first broadcast.

  Args:
    model: the model that clients train.
    rounds: T, the run's number of rounds.
    mu: μ in [0, 1), the largest weight of the earlier private model.
    lam: λ in [0, 1), weight of what the private model teaches, in the paper 0.05 for "kd" and 0.1 for "mmd";
      0 leaves it out, and the global model is FedAvg's.
    transfer: what is taught: "kd" or "mmd".
    tau: τ > 0, the temperature of "kd".
    **local: local training, see `LocalSettings`.

  Raises:
    SettingError: a setting is out of range, or the labels are no classes and `transfer` is "kd"; when a run
      is set up, the model has no features; from `check_rounds`, the run has another T.
  """
  recipe, taught = recipe_of(model, local), not is_zero(lam)
  if taught and transfer == "kd":
    check_classes("transfer", transfer, model.task, model.num_classes, 'Use transfer="mmd".')

  def term(broadcast, state: Own, context):
    def lesson(params, seen):
      own = with_features(model).logits(state.private, seen.batch.x)
      if transfer == "mmd":
        return lam * adaptive(seen.features, own.features, seen.batch.weight)
      wanted = jax.nn.softmax(own.outputs / tau)
      losses = -(wanted * jax.nn.log_softmax(seen.outputs)).sum(-1)
      return lam * weighted_mean(losses, seen.batch.weight)

    return lesson

  def finish(broadcast, state: Own, context, local):
    expected = rounds * jnp.float32(context.cohort_size) / jnp.float32(context.num_clients)
    keep = inherited(mu, state.times, expected)
    trained = model.joined(local.params, local.stats)
    private = jax.tree.map(lambda q, w: keep * q + (1.0 - keep) * w, state.private, trained)
    private = vectors.in_kind_of(state.private, private)
    return Message(local.params, stats=local.stats), Own(private, state.times + 1)

  weaker = recipe._replace(model=model._replace(task=weighted(model.task, 1.0 - lam)))
  training = one_model(weaker, term=term, finish=finish) if taught else one_model(recipe, finish=finish)

  def check_rounds(own: int) -> None:
    why = "private models grow old over so many rounds"
    check_same_rounds("fedphp's rounds", rounds, own, why, "fedphp(..., ")

  made = supervised(
    recipe, training, lambda broadcast, state, *_: state.private, name="fedphp",
    init=lambda key, broadcast, *_: Own(received(model)(broadcast), jnp.int32(0)),
    global_model=received(model),
  )  # fmt: skip
  needs = made.needs._replace(check_rounds=check_rounds)
  if not taught:
    needs = needs.without_effect("lam = 0", transfer=(transfer, "kd"), tau=(tau, 4.0))
  elif transfer != "kd":
    needs = needs.without_effect(f"transfer = {transfer}", tau=(tau, 4.0))
  return made._replace(needs=needs)
