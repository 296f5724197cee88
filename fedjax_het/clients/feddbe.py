r"""FedDBE: a client keeps a vector for what is its own in its features, and the rest is alike for all.

Zhang et al., Eliminating Domain Bias for Federated Learning in Representation Space, NeurIPS 2023; the rule
was read in the authors' code. With the body's features z, float32 [d], a client's own vector b_i, at first 0,
and a mean z̄ of all clients' features, a step minimises

    L_task(head(z + b_i)) + κ/2 mean_d (m - z̄)²,      m <- (1 - μ) m + μ mean_batch(z),

where m is 0 at the beginning of a round, and only the last summand of m has a gradient. z̄ is found once:
before the first round each client of the cohort trains a copy of the model on L_task(head(z)) for as long as
in a round, and z̄ is the mean of the last m, weighted by n_i. The authors ask all clients; here the first
cohort is asked. As the last layer is z W + c, reading z + b_i is the same as adding b_i W to c.
"""

from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp

from fedjax_het.clients import sgd
from fedjax_het.clients.local_settings import LocalSettings
from fedjax_het.clients.one_model import one_model
from fedjax_het.clients.recipe import Recipe, recipe_of
from fedjax_het.clients.supervised import received, supervised
from fedjax_het.data.container import ClientData
from fedjax_het.errors import is_zero
from fedjax_het.models import Model
from fedjax_het.models.features import feature_size, with_features, with_shift
from fedjax_het.parts import ClientUpdate, LocalTraining, Message, Pooled
from fedjax_het.settings import Decay, NonNegative, checked

PyTree = Any


class Both(NamedTuple):
  """The trained parameters: the shared model's, and b_i, float32 [d], or () for none."""

  shared: PyTree
  own: Any


class Tracked(NamedTuple):
  """Running statistics: the model's, and m, float32 [d]."""

  stats: PyTree
  mean: jax.Array


class Center(NamedTuple):
  """What is broadcast beside the model: z̄, float32 [d], and 1 once it is known, float32 scalar."""

  mean: jax.Array
  known: jax.Array


def moved(mean: jax.Array, features: jax.Array, weight: jax.Array, momentum: float | jax.Array) -> jax.Array:
  """Computes (1 - μ) m + μ mean_batch(z), float32 [d], of features [B, d] of the rows with weight 1."""
  share = weight / weight.sum()
  return (1.0 - momentum) * mean + momentum * (features * share[:, None]).sum(0)


def tracking(model: Model, momentum: float | jax.Array) -> Model:
  """Returns the model with m among its running statistics, which are `Tracked`."""

  def train(params: PyTree, stats: Tracked, x: Any, real: jax.Array, key: jax.Array) -> Any:
    found, after = with_features(model).in_training(params, stats.stats, x, real, key)
    return found.outputs, Tracked(after, moved(stats.mean, found.features, real, momentum))

  return model._replace(
    apply=lambda params, x, stats: model.logits(model.joined(params, stats.stats), x), train=train,
    stats=Tracked(model.stats, jnp.zeros(feature_size(model))),
  )  # fmt: skip


@checked
def feddbe(
  model: Model,
  *,
  kappa: NonNegative = 5.0,
  momentum_mean: Decay = 1.0,
  own_vector: bool = True,
  **local: Unpack[LocalSettings],
) -> ClientUpdate:
  """FedDBE's client part; its state is the client's vector b_i. The global model reads z.

  Args:
    model: the model that clients train; its last layer is a dense one with a bias.
    kappa: κ >= 0, weight of the pull to the mean of all features; 0 leaves it out, and then nothing precedes
      the first round.
    momentum_mean: μ in (0, 1], how much a batch counts in the client's mean.
    own_vector: whether clients have b_i; without it and with κ = 0 the method is FedAvg.
    **local: local training, see `LocalSettings`, of the model and of b_i.

  Raises:
    SettingError: a setting is out of range; when a run is set up, the model has no dense head with a bias.
  """
  recipe, shift = recipe_of(model, local), with_shift(model)
  pulled = not is_zero(kappa)

  def tracked() -> Recipe:  # made where it is used: the model's shapes are not asked for before
    return recipe._replace(model=tracking(model, momentum_mean)) if pulled else recipe

  def params_of(own: Both) -> PyTree:
    return shift(own.shared, own.own) if own_vector else own.shared

  def begin(broadcast, state, context):
    stats = Tracked(broadcast.stats, jnp.zeros(feature_size(model))) if pulled else broadcast.stats
    return Both(broadcast.params, state), stats

  def term(broadcast, state, context):
    def pull(params, seen):
      mean = moved(seen.stats.mean, seen.features, seen.batch.weight, momentum_mean)
      return 0.5 * kappa * jnp.square(mean - broadcast.pooled.mean).mean()

    return pull

  def finish(broadcast, state, context, local: sgd.Local):
    stats = local.stats.stats if pulled else local.stats
    return Message(local.params.shared, stats=stats), local.params.own

  def first_pass(key, broadcast, state, data: ClientData, context) -> Pooled:
    def train() -> jax.Array:
      plain, stats = one_model(tracked()), Tracked(broadcast.stats, jnp.zeros(feature_size(model)))
      begun = Message(broadcast.params, stats=stats)
      work = plain.start(begun, (), context)
      return plain.run_steps(key, begun, (), data, context, work, 0, None).stats.mean

    new = broadcast.pooled.known == 0
    mean = jax.lax.cond(new, train, lambda: jnp.zeros(feature_size(model)))
    return Pooled(Center(mean, jnp.float32(1.0)), jnp.where(new, jnp.float32(data.length), 0.0))

  def init_broadcast(key):
    nothing = Center(jnp.zeros(feature_size(model)), jnp.float32(0.0)) if pulled else ()
    return Message(model.init(key), stats=model.stats, pooled=nothing)

  def inner() -> LocalTraining:
    return one_model(
      tracked(), begin=begin, term=term if pulled else None, finish=finish,
      at=lambda step, own: params_of(own),
    )  # fmt: skip

  training = LocalTraining(
    recipe.steps, lambda *own: inner().start(*own), lambda *own: inner().run_steps(*own),
    lambda *own: inner().finish(*own), recipe.gradients, recipe.counted,
  )  # fmt: skip
  made = supervised(
    recipe, training,
    lambda broadcast, state, *_: model.joined(params_of(Both(broadcast.params, state)), broadcast.stats),
    name="feddbe", init=lambda *_: jnp.zeros(feature_size(model)) if own_vector else (),
    init_broadcast=init_broadcast, global_model=received(model),
  )  # fmt: skip
  return made._replace(first_pass=first_pass if pulled else None)
