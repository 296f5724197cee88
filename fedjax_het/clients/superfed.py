r"""SuPerFed: a federated and a local model joined by a low-loss line in weight space.

Hahn, Jeong, Lee: Connecting Low-Loss Subspace for Personalized Federated Learning, KDD 2022; chapter II of
the thesis: algorithms 2.3 and 2.4, equations 2.1 to 2.6.

Each client keeps a local model θ^l that never leaves it and is initialised independently of all others. In
every mini-batch step it mixes θ^l with its copy θ^f of the federated model, which starts the round at θ^g,

    θ(λ) = (1 - λ)·θ^f + λ·θ^l,   λ ~ U(0, 1) from round L on, λ = 0 before,

and minimises  F_i(θ(λ)) + (μ/2)·‖θ^f - θ^g‖² + ν·cos²(θ^f, θ^l)  over both endpoints with one backward pass.
MM draws one λ for the model; LM draws one for each layer.

A model on the line has running statistics that are no mixture of the endpoints' statistics. For a model that
has some, a client re-estimates them from its training examples: those of θ^f after local training, which are
averaged, and those of θ(λ) when it is evaluated (`statistics.own_statistics`). Before round L they are
FedAvg's.
"""

import functools
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_het.clients import sgd
from fedjax_het.clients.local_settings import LocalSettings
from fedjax_het.clients.objective import updates_barrier
from fedjax_het.clients.recipe import recipe_of
from fedjax_het.clients.statistics import own_statistics
from fedjax_het.clients.supervised import line, received, starts_within, supervised
from fedjax_het.clients.variant import variant_of
from fedjax_het.data.container import FederatedData
from fedjax_het.errors import is_zero
from fedjax_het.local import Batch
from fedjax_het.models import Model
from fedjax_het.parts import ClientUpdate, Info, LocalTraining, Message
from fedjax_het.settings import Choice, NonNegative, Round, checked

PyTree = Any

LAMBDAS = tuple(round(0.1 * i, 1) for i in range(11))


def mix(federated: PyTree, local: PyTree, lam: PyTree) -> PyTree:
  """Returns θ(λ) = (1 - λ)·θ^f + λ·θ^l, where `lam` has a scalar per leaf."""
  return jax.tree.map(lambda f, l, t: (1.0 - t) * f + t * l, federated, local, lam)


def draw_lambda(key: jax.Array, params: PyTree, granularity: str) -> PyTree:
  """Draws λ ~ U(0, 1) for each leaf, shared by the whole model ("model") or by a layer's leaves ("layer").

  A layer is the set of leaves whose paths agree but for the last part, such as a kernel and its bias.
  """
  paths, structure = jax.tree_util.tree_flatten_with_path(params)
  layers = [jax.tree_util.keystr(path[:-1]) if granularity == "layer" else "" for path, _ in paths]
  names = list(dict.fromkeys(layers))
  draws = jax.random.uniform(key, (len(names),))
  return jax.tree.unflatten(structure, [draws[names.index(layer)] for layer in layers])


def dot(a: PyTree, b: PyTree) -> jax.Array:
  """Inner product <a, b> over the whole parameter vectors, scalar."""
  return jax.tree.reduce(jnp.add, jax.tree.map(lambda u, v: jnp.sum(u * v), a, b))


def cosine(federated: PyTree, local: PyTree) -> jax.Array:
  """Computes cos(θ^f, θ^l) over the whole parameter vectors, scalar; 0 if one of them is zero."""
  lengths = jnp.sqrt(dot(federated, federated)) * jnp.sqrt(dot(local, local))
  return dot(federated, local) / jnp.maximum(lengths, jnp.finfo(jnp.float32).tiny)


def cosine_squared_factors(federated: PyTree, local: PyTree) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Returns (a, b, c) of the gradient of cos² (eq. 2.5):  ∂/∂θ^f = a·θ^l - b·θ^f,  ∂/∂θ^l = a·θ^f - c·θ^l."""
  product = dot(federated, local)
  f2 = dot(federated, federated)
  l2 = dot(local, local)
  tiny = jnp.finfo(jnp.float32).tiny
  a = 2.0 * product / jnp.maximum(f2 * l2, tiny)
  return a, a * product / jnp.maximum(f2, tiny), a * product / jnp.maximum(l2, tiny)


class Pair(NamedTuple):
  """The two endpoints of the line, or a pair of values that belong to them."""

  federated: PyTree
  local: PyTree


class Line(NamedTuple):
  """State of local training: both endpoints, their optimisers, the sums for `Info`, θ^f's statistics."""

  ends: Pair
  optimizers: Pair
  loss: jax.Array
  steps: jax.Array
  stats: PyTree


@checked
def superfed(
  model: Model,
  *,
  granularity: Annotated[str, Choice(("model", "layer"))] = "model",
  mu: NonNegative | jax.Array = 0.01,
  nu: NonNegative | jax.Array = 2.0,
  start_round: Round | jax.Array = 0,
  nu_from: Annotated[str, Choice(("start", "first"))] = "start",
  **local: Unpack[LocalSettings],
) -> ClientUpdate:
  """SuPerFed's client part; its state is the local model θ^l, and the personalised model at λ is θ(λ).

  It reports `cosine`, cos(θ^f, θ^l) after local training; before round L θ^l is at its initial value. F_i,
  which a mixing part may request, is the loss of the received model, λ = 0; the λ of the evaluation is
  selected later.

  Args:
    model: the model of both endpoints.
    granularity: "model" for SuPerFed-MM, "layer" for SuPerFed-LM.
    mu: μ >= 0, weight of the proximal term, eq. 2.4.
    nu: ν >= 0, weight of the orthogonality term, eq. 2.5; see `nu_from`.
    start_round: L, the first round in which λ is drawn and θ^l moves (algorithm 2.3), counted from 0. The
      paper gives it as a fraction of the rounds, as configurations do.
    nu_from: the round from which ν acts. "start": L, before which θ^l does not move and a round is FedAvg's
      or FedProx's. "first": the first round, as algorithm 2.4 is printed, which before L sets only λ = 0; ν
      then turns θ^f and θ^l away from each other in every step, and θ^l's weights decay.
    **local: local training, see `LocalSettings`; it acts on both endpoints alike.

  Raises:
    SettingError: a setting is out of range; from `check_rounds`, the run ends before L.
  """
  recipe = recipe_of(model, local)

  def step_on_line(fitted, center, tx, mixes, training: Line, batch: Batch) -> Line:
    federated, local = training.ends
    lam = draw_lambda(batch.key, federated, granularity)
    if mixes is not None:
      lam = jax.tree.map(lambda drawn: jnp.where(mixes, drawn, 0.0), lam)
    loss, gradient, seen = fitted.gradient(mix(federated, local, lam), training.stats, batch)
    # Before L, which comes here with nu_from="first" alone, statistics are FedAvg's.
    stats = training.stats
    if mixes is not None and model.stateful:
      stats = jax.tree.map(lambda old, new: jnp.where(mixes, old, new), stats, seen)
    a, b, c = (nu * factor for factor in cosine_squared_factors(federated, local))
    gradients = Pair(  # eq. 2.3
      jax.tree.map(
        lambda g, t, f, l, o: (1.0 - t) * g + mu * (f - o) + a * l - b * f,
        gradient, lam, federated, local, center,
      ),
      jax.tree.map(lambda g, t, f, l: t * g + a * f - c * l, gradient, lam, federated, local),
    )  # fmt: skip
    updates, optimizers = zip(*map(tx.update, gradients, training.optimizers, training.ends))
    ends = optax.apply_updates(training.ends, updates_barrier(Pair(*updates)))
    return Line(ends, Pair(*optimizers), training.loss + loss, training.steps + 1, stats)

  def run_steps(key, broadcast, state, data, context, training: Line, first, last) -> Line:
    center, tx = broadcast.params, recipe.optimizer(context)

    def before(training):  # λ = 0: only the federated model is trained
      (federated, local), (own, other), loss, steps, stats = training
      trained = sgd.Local(federated, own, loss, steps, stats)
      trained = sgd.run_steps(key, recipe, data, trained, tx, sgd.proximal_gradient(center, mu), first, last)
      ends, optimizers = Pair(trained.params, local), Pair(trained.optimizer, other)
      return Line(ends, optimizers, trained.loss, trained.steps, trained.stats)

    def after(training, mixes=None):
      step = functools.partial(step_on_line, recipe.fitted(data), center, tx, mixes)
      return recipe.for_each_batch(key, data, step, training, first, last)

    if nu_from == "first":
      return after(training, context.round >= start_round)
    return lax.cond(context.round >= start_round, after, before, training)

  def start(broadcast, state, context) -> Line:
    ends, tx = Pair(broadcast.params, state), recipe.optimizer(context)
    return Line(ends, Pair(*map(tx.init, ends)), jnp.float32(0.0), jnp.int32(0), broadcast.stats)

  def finish(broadcast, state, data, context, training: Line):
    (federated, local), stats = training.ends, training.stats
    if model.stateful:
      stats = lax.cond(
        context.round >= start_round,
        lambda: own_statistics(model, federated, stats, data, recipe.settings["batch_size"]),
        lambda: stats,
      )
    info = Info.of_sum(training.loss, training.steps, {"cosine": cosine(federated, local)})
    return Message(federated, stats=stats), local, info

  training = LocalTraining(recipe.steps, start, run_steps, finish, recipe.gradients)
  between = line(model, recipe.settings["batch_size"])
  client = supervised(
    recipe, training, lambda broadcast, state, *_: received(model)(broadcast), global_model=received(model),
    name="superfed_mm" if granularity == "model" else "superfed_lm", line=between,
    init=lambda key, broadcast, data, context: model.init(jax.random.fold_in(key, context.client)),
  )  # fmt: skip

  def remarks(data: FederatedData) -> Iterator[str]:
    yield from recipe.remarks(data)
    if nu_from == "first" and is_zero(start_round):
      yield 'nu_from = "first": no effect, as L = 0 is the first round.'

  starts = starts_within(start_round, "local models would never move")
  return client._replace(
    personalize=between,
    studies=client.studies._replace(lambdas=LAMBDAS, milestones={"L": start_round}),
    needs=client.needs._replace(check_rounds=starts, remarks=remarks),
  )


@variant_of(superfed, "granularity")
def superfed_mm(model: Model, **settings) -> ClientUpdate:
  """SuPerFed-MM's client part: `superfed` with one λ for the model; see there for the settings."""
  return superfed(model, granularity="model", **settings)


@variant_of(superfed, "granularity")
def superfed_lm(model: Model, **settings) -> ClientUpdate:
  """SuPerFed-LM's client part: `superfed` with one λ for each layer; see there for the settings."""
  return superfed(model, granularity="layer", **settings)
