r"""SosicFL: clients are assigned regions of a simplex of solutions and train its endpoints together.

Solution Simplex Clustering for Heterogeneous Federated Learning (SosicFL), sections 3.2 and 3.4 to 3.6.

The server keeps endpoints θ_1, ..., θ_{M+1} of the last layer (or of all layers), and a single copy of all
other parameters. A client has a region R of the simplex Δ^M around its center μ, see `regions`. In every step
it draws α uniformly on R (or takes the next of Ω_tr points of the round), computes the gradient at w_α = Σ_m
α_m θ_m, and moves

    θ_m <- θ_m - α_m·γ·∇F_i(w_α)                     (eq. 8)

by one backward pass. The server averages by n_i / n (eq. 9). The personalised model is w_μ, or predicts what
Ω_te points of R predict on average; the global model is w_{1/(M+1)}. Before a late start t̃ regions are not
used: clients draw α on the whole simplex and are evaluated at w_{1/(M+1)} too.

SosicFL+ is Ditto on the endpoints: a client also keeps personalised endpoints, trained likewise on its region
with a proximal term towards the received endpoints, in every round (in the paper they follow when SosicFL has
ended).
"""

import functools
from collections.abc import Callable, Iterator
from typing import Annotated, Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_het.clients import sgd
from fedjax_het.clients.ditto import Pair, walk_both
from fedjax_het.clients.heads import Head, Parted, joined, parting
from fedjax_het.clients.local_settings import LocalSettings
from fedjax_het.clients.objective import check_model
from fedjax_het.clients.recipe import recipe_of
from fedjax_het.clients.regions import Regions, check_given, remarks_on
from fedjax_het.clients.sgd import mean_loss
from fedjax_het.clients.simplex import uniform_on_region, uniform_on_simplex
from fedjax_het.clients.supervised import starts_within, supervised
from fedjax_het.clients.variant import variant_of
from fedjax_het.data.container import Array, ClientData, FederatedData
from fedjax_het.errors import SettingError
from fedjax_het.models import Model
from fedjax_het.parts import ClientUpdate, Context, Info, LocalTraining, Message, Needs, Release, Simplex
from fedjax_het.settings import Choice, Count, NonNegative, Round, checked

PyTree = Any
POINTS = 2**31 - 1  # folded into the key of a round's points; epochs fold in 0, 1, ...
TEST_POINTS = 0  # seed of the points of evaluations


class Owner(NamedTuple):
  """Client state: the region's center μ and radius η and, in SosicFL+, personalised endpoints."""

  center: jax.Array
  radius: jax.Array
  params: PyTree = ()
  stats: PyTree = ()


class Ensemble(NamedTuple):
  """Several points of one simplex, whose predictions are averaged: points [Ω, M + 1] and endpoints."""

  points: jax.Array
  params: PyTree
  stats: PyTree


def mean_prediction(logits: jax.Array) -> jax.Array:
  """Returns the logits [B, C] of the mean probabilities over several models, from theirs, [Ω, B, C].

  For C > 1, log of the mean of softmax; for one logit, the log-odds of the mean of sigmoid.
  """
  mean = functools.partial(jax.nn.logsumexp, axis=0, b=1.0 / logits.shape[0])
  if logits.shape[-1] == 1:
    return mean(jax.nn.log_sigmoid(logits)) - mean(jax.nn.log_sigmoid(-logits))
  return mean(jax.nn.log_softmax(logits))


@checked
def sosicfl_plus(
  model: Model,
  regions: Regions,
  *,
  layers: Annotated[str, Choice(("head", "all"))] = "head",
  head: Head = "",
  points: Count | None = None,
  test_points: Count | None = None,
  start_round: Round | jax.Array = 0,
  lam: NonNegative | None = 1.0,
  local_epochs: Count | None = None,
  name: str = "sosicfl_plus",
  **local: Unpack[LocalSettings],
) -> ClientUpdate:
  """SosicFL+'s client part; its state is the client's region and its personalised endpoints.

  Momentum and weight decay act on each endpoint as a separate parameter: with either, an endpoint also moves
  if its α_m is 0.

  Args:
    model: the model that clients train.
    regions: regions of K clients, in the order of the clients' indices.
    layers: layers that have endpoints, "head" or "all".
    head: layers of the head if not `Model.head`, see `heads.parting`.
    points: Ω_tr: None draws a new point in each local step; a number draws so many points per round, which
      the steps use in turn. Personalised endpoints have separate points, equally many.
    test_points: Ω_te: None evaluates a client at its center, as in section 3.5; a number averages the
      predicted probabilities of so many points, uniform on its region and the same in every evaluation and
      run. Before t̃ they are of the whole simplex. Losses F_i for a mixing are at the center.
    start_round: t̃, the first round in which a client draws on its region; before it, on the whole simplex.
      With `math.inf` (start=1.0 in a configuration) always on the whole simplex: all clients learn one
      simplex.
    lam: λ >= 0, weight of the proximal term of personalised endpoints; None is SosicFL, which has none.
    local_epochs: epochs of the personalised endpoints per round, after those of the received ones;
      None takes as many as `epochs`.
    name: name of the method in tables.
    **local: local training, see `LocalSettings`; `epochs` are the received endpoints'.

  Raises:
    SettingError: regions are not valid (`check_given`); a setting is out of range or has no effect; endpoints
      of all layers with a model that has running statistics; when a run is set up, the model lacks a layer of
      the head; from `check_rounds`, the run ends before t̃.
  """
  check_model(model)
  if layers == "all" and head:
    raise SettingError(
      "head", head, "all layers have endpoints, and it would have no effect", "Leave it out."
    )
  if layers == "all" and model.stateful:
    raise SettingError(
      "model", model.name, "has running statistics, which no two points of a simplex of all layers share",
      "Use sosicfl, whose endpoints are of the head alone, or a model without batch normalisation.",
    )  # fmt: skip
  check_given(regions)
  if lam is None and local_epochs is not None and not isinstance(local_epochs, jax.Array):
    problem = "is for personalised endpoints, and with lam = None there are none"
    raise SettingError("local_epochs", local_epochs, problem, "Leave it out, or set lam.")
  recipe = recipe_of(model, local)
  recipes = recipe, recipe.with_epochs(local_epochs)
  centers = jnp.asarray(regions.centers, jnp.float32)
  radius = regions.radius if isinstance(regions.radius, jax.Array) else np.float32(regions.radius)
  count = centers.shape[1]
  if count == 1:
    for setting, value in (("points", points), ("test_points", test_points), ("start_round", start_round)):
      if not isinstance(value, jax.Array) and value:
        problem = "with one endpoint all points of the simplex are one: no effect"
        raise SettingError(setting, value, problem, "Leave it out.")
  if test_points is not None and not model.task.classes:
    problem = f"the task {model.task.name} predicts no class probabilities, which could be averaged"
    raise SettingError("test_points", test_points, problem, "Leave it out.")
  middle = jnp.full((count,), 1.0 / count)
  part = parting(model, head) if layers == "head" else lambda params: Parted({}, params)

  def at(params: PyTree, alpha: jax.Array) -> PyTree:
    """Returns the model w_α = Σ_m α_m θ_m."""
    single, endpoints = part(params)
    mixed = lambda leaf: jnp.tensordot(alpha, leaf, 1, precision=jax.lax.Precision.HIGHEST)  # noqa: E731
    return joined(single, jax.tree.map(mixed, endpoints))

  def on_region(key: jax.Array, state: Owner, round: int | jax.Array) -> jax.Array:
    """Draws α uniformly on the client's region or, before t̃, on the simplex."""
    return lax.cond(
      round >= start_round,
      lambda: uniform_on_region(key, state.center, state.radius),
      lambda: uniform_on_simplex(key, count),
    )

  def drawn(state: Owner, round: int | jax.Array) -> Callable[[sgd.Step, PyTree], PyTree]:
    """Returns (step, params) -> w_α, with α uniform on the client's region or, before t̃, on the simplex."""

    def point(step: sgd.Step, params: PyTree) -> PyTree:
      key = step.key
      if points is not None:
        key = jax.random.fold_in(jax.random.fold_in(step.walk, POINTS), step.number % points)
      return at(params, on_region(key, state, round))

    return point

  def init_broadcast(key: jax.Array) -> Message:
    single, first = part(model.init(key))
    others = [part(model.init(jax.random.fold_in(key, m)))[1] for m in range(1, count)]
    return Message(
      joined(single, jax.tree.map(lambda *own: jnp.stack(own), first, *others)), stats=model.stats
    )

  def init(key, broadcast, data, context) -> Owner:
    own = () if lam is None else (broadcast.params, broadcast.stats)
    return Owner(centers[context.client], jnp.float32(radius), *own)

  def start(broadcast, state: Owner, context):
    tx = recipe.optimizer(context)
    received = sgd.start(broadcast.params, broadcast.stats, tx)
    return received if lam is None else Pair(received, sgd.start(state.params, state.stats, tx))

  def run_steps(key, broadcast, state: Owner, data, context, work, first, last):
    tx, of_region = recipe.optimizer(context), drawn(state, context.round)
    if lam is None:
      return sgd.run_steps(key, recipe, data, work, tx, None, first, last, of_region)
    near = sgd.proximal_gradient(broadcast.params, lam)
    return walk_both(key, recipes, data, work, tx, near, first, last, of_region)

  def finish(broadcast, state: Owner, data, context, work):
    if lam is None:
      return Message(work.params, stats=work.stats), state, Info.of_sum(work.loss, work.steps)
    received, own = work
    after = state._replace(params=own.params, stats=own.stats)
    return Message(received.params, stats=received.stats), after, mean_loss(received, own)

  def kept(broadcast: Message, state: Owner) -> tuple[PyTree, PyTree]:
    return (broadcast.params, broadcast.stats) if lam is None else (state.params, state.stats)

  def own_model(broadcast: Message, state: Owner, context: Context) -> PyTree:
    params, stats = kept(broadcast, state)
    return model.joined(at(params, jnp.where(context.round >= start_round, state.center, middle)), stats)

  def ensemble(broadcast: Message, state: Owner, data: Any, context: Context, lam: jax.Array) -> PyTree:
    keys = jax.random.split(jax.random.fold_in(jax.random.key(TEST_POINTS), context.client), test_points or 1)
    drawn = jax.vmap(lambda key: on_region(key, state, context.round))(keys)
    return Ensemble(drawn, *kept(broadcast, state))

  def outputs(params: PyTree, x: jax.Array) -> jax.Array:
    if not isinstance(params, Ensemble):
      return model.logits(params, x)
    of = lambda alpha: model.logits(model.joined(at(params.params, alpha), params.stats), x)  # noqa: E731
    return mean_prediction(jax.vmap(of)(params.points))

  def global_model(broadcast: Message) -> PyTree:
    return model.joined(at(broadcast.params, middle), broadcast.stats)

  def remarks(data: FederatedData) -> Iterator[str]:
    yield from recipe.remarks(data)
    most = max(own.steps_of(data.limits[0]) for own in recipes[: 1 if lam is None else 2])
    if points is not None and points >= most:
      whose = "" if lam is None else " of the server's endpoints, or of its own,"
      yield f"points = {points}: no client takes more than {most} steps{whose} a round, so each draws one."
    if not np.isinf(start_round):
      yield from remarks_on(regions)

  never = jnp.isinf(jnp.asarray(start_round, jnp.float32))  # regions are then the whole simplex

  def steps(data: ClientData) -> int | Array:
    return recipe.steps(data) if lam is None else recipes[0].steps(data) + recipes[1].steps(data)

  training = LocalTraining(steps, start, run_steps, finish, recipe.gradients)
  client = supervised(
    recipe,
    training,
    own_model,
    name=name,
    init_broadcast=init_broadcast,
    init=init,
    global_model=global_model,
  )
  simplex = Simplex(
    lambda broadcast, alpha: model.joined(at(broadcast.params, alpha), broadcast.stats),
    jnp.where(never, middle, centers),
    jnp.where(never, 2.0, radius),
    regions.points,
    regions.clusters,
  )
  if test_points is not None:
    client = client._replace(personalize=ensemble, apply=outputs)
  return client._replace(
    studies=client.studies._replace(simplex=simplex, milestones={"t̃": start_round}, model=None),
    needs=Needs(
      num_clients=len(centers),
      check_rounds=starts_within(start_round, "no client would train its region", or_never=True),
      remarks=remarks,
      releases=(Release("label counts"),),
    ),
  )


@variant_of(sosicfl_plus, "lam", "local_epochs", "name")
def sosicfl(model: Model, regions: Regions, **settings) -> ClientUpdate:
  """SosicFL's client part: `sosicfl_plus` without personalised endpoints; see there for the settings."""
  return sosicfl_plus(model, regions, lam=None, name="sosicfl", **settings)


@variant_of(sosicfl, "layers", "head")
def sosicfl_all(model: Model, regions: Regions, **settings) -> ClientUpdate:
  """SosicFL-All's client part: `sosicfl` with endpoints of all layers; see there for the settings."""
  return sosicfl_plus(model, regions, layers="all", lam=None, name="sosicfl_all", **settings)
