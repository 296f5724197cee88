r"""Clustered federated learning: a cluster is split in two when its updates are long and nearly cancel.

Sattler, Müller, Samek, Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization under
Privacy Constraints, IEEE TNNLS 2020, algorithm 1. At first all clients are one cluster c with one model. In a
round every client trains its cluster's model, and a cluster of more than two clients with

    ‖Σ_{i∈c} (n_i/n_c) Δ_i‖ < ε₁       and       max_{i∈c} ‖Δ_i‖ > ε₂

is split: complete linkage of 1 - cos(Δ_i, Δ_j) joins the nearest groups until two are left. Both start from
the model of c; then each cluster's model moves by the mean of its clients' updates.

Checked against the authors' code (felisat/clustered-federated-learning): norms, linkage, the order of split
and mean, no split in the first 20 rounds, ε₁ = 0.4 and ε₂ = 1.6. That code counts all clients of a cluster
alike; here they count by n_i, as in FedAvg and in the paper's objective. There is no limit on the number of
clusters there; here it is a setting, as models are kept in one array.
"""

from typing import Annotated, NamedTuple, Unpack

import jax
import jax.numpy as jnp
from jax import lax
from numpy.typing import ArrayLike

from fedjax_het import mixing, vectors
from fedjax_het.clients.addressed import all_in_every_round, combined, copies, count_of, pick, reciprocal
from fedjax_het.clients.local_settings import LocalSettings
from fedjax_het.clients.one_model import one_model
from fedjax_het.clients.recipe import recipe_of
from fedjax_het.clients.supervised import received, supervised
from fedjax_het.data.container import FederatedData
from fedjax_het.models import Model
from fedjax_het.parts import ClientUpdate, Feedback, Message, PyTree, ServerUpdate
from fedjax_het.settings import NonNegative, Whole, checked

Clusters = Annotated[int, Whole(1)]
Rounds = Annotated[int, Whole(0)]
FAR = 1e9  # above any distance between groups that can be joined


class Grouped(NamedTuple):
  """State of the server: who is where, and the clusters' models.

  Attributes:
    clusters: cluster of each client, int32 [K].
    number: how many clusters there are, int32 scalar.
    models: (params, statistics) of each cluster, leaves [M, ...]; those from `number` on are not used.
    mean: the least of the clusters' norms of the mean update in the last round, float32 scalar.
    largest: the largest of their largest norms.
  """

  clusters: jax.Array
  number: jax.Array
  models: PyTree
  mean: jax.Array
  largest: jax.Array


@checked
def cfl(
  model: Model,
  sizes: ArrayLike,
  *,
  eps1: NonNegative = 0.4,
  eps2: NonNegative = 1.6,
  warmup_rounds: Rounds = 20,
  clusters: Clusters = 8,
  rounds: int | None = None,
  **local: Unpack[LocalSettings],
) -> ClientUpdate:
  """CFL's client part, which brings its server; clients keep nothing, and there is no global model.

  Figures of a round: how many `clusters` there are, `mean_update`, the least norm of a cluster's mean update,
  and `largest_update`, the largest norm of a client's. ε₁ and ε₂ depend on the model and the learning rate:
  look at these two before choosing them.

  Args:
    model: the model that clients train.
    sizes: training examples of each client, int [K]; configurations give the data's.
    eps1: ε₁ >= 0, below which a cluster's mean update is short; 0 never splits and is FedAvg.
    eps2: ε₂ >= 0, above which a client's update is long.
    warmup_rounds: rounds before the first split.
    clusters: M >= 1, the most clusters.
    rounds: the run's rounds, for a remark; None for none.
    **local: local training, see `LocalSettings`; the paper's is plain SGD.

  Raises:
    SettingError: a setting is out of range; from `check_cohort`, a cohort is not all clients.
  """
  recipe = recipe_of(model, local)

  def remarks(data: FederatedData):
    yield from recipe.remarks(data)
    if rounds is not None and warmup_rounds >= rounds:
      yield f"warmup_rounds = {warmup_rounds}: the run ends after {rounds}, so that no cluster is split."

  part = supervised(recipe, one_model(recipe), lambda broadcast, *_: received(model)(broadcast), name="cfl")
  server = clustered(count_of(sizes), clusters, eps1, eps2, warmup_rounds)
  needs = part.needs._replace(
    brings={"mixing": mixing.static(), "server": server}, num_clients=count_of(sizes), remarks=remarks,
    check_cohort=all_in_every_round("cfl"),
  )  # fmt: skip

  def groups(broadcast, state: Grouped, clients) -> jax.Array:
    there = jnp.arange(clusters) < state.number
    return jnp.where(there, jax.nn.one_hot(state.clusters, clusters), jnp.nan)

  return part._replace(needs=needs, studies=part.studies._replace(groups=groups))


def two_groups(near: jax.Array, members: jax.Array) -> jax.Array:
  """Splits clients in two by complete linkage; returns which are in the group of the first one, bool [K].

  The two groups with the least largest distance 1 - near between their clients are joined until two are left.

  Args:
    near: similarities, float32 [K, K].
    members: whom to split, bool [K], at least two; the others are in no group.
  """
  size = len(near)
  among = members[:, None] & members[None, :] & ~jnp.eye(size, dtype=bool)
  distances = jnp.where(among, 1.0 - near, FAR)

  def join(_: int, carry: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
    distances, group, left = carry
    first, second = jnp.divmod(jnp.argmin(distances), size)
    far = jnp.maximum(distances[first], distances[second]).at[first].set(FAR).at[second].set(FAR)
    after = distances.at[first].set(far).at[:, first].set(far).at[second].set(FAR).at[:, second].set(FAR)
    goes_on = left > 2
    return (
      jnp.where(goes_on, after, distances), jnp.where(goes_on & (group == second), first, group), left - 1,
    )  # fmt: skip

  start = distances, jnp.arange(size), members.sum()
  group = lax.fori_loop(0, max(size - 2, 0), join, start)[1]
  return members & (group == group[jnp.argmax(members)])


def clustered(
  num_clients: int, most: int, eps1: float | jax.Array, eps2: float | jax.Array, warmup_rounds: int
) -> ServerUpdate:
  """Returns CFL's server part, whose state is `Grouped`; see `cfl`."""

  def init(broadcast: Message) -> Grouped:
    models = copies((broadcast.params, broadcast.stats), most)
    zero = jnp.float32(0.0)
    return Grouped(jnp.zeros(num_clients, jnp.int32), jnp.int32(1), models, zero, zero)

  def update(key: jax.Array, state: Grouped, broadcast: Message, aggregate: Message, feedback: Feedback):
    own, order = state.clusters, jnp.argsort(feedback.cohort)  # all clients, by their numbers
    sent = pick(feedback.uploads(), order)
    before = pick(state.models, own)
    changes = jax.tree.map(jnp.subtract, (sent.params, sent.stats), before)
    gram = vectors.products(changes[0])
    norms, near = jnp.sqrt(jnp.maximum(jnp.diag(gram), 0.0)), vectors.cosines(changes[0])
    sizes = feedback.sizes[order].astype(jnp.float32)

    def shares(own: jax.Array) -> jax.Array:
      """Returns n_i / n_c of the clients in each cluster, float32 [M, S]; 0 of others and of empty ones."""
      inside = jnp.where(own == jnp.arange(most)[:, None], sizes, 0.0)
      return inside * reciprocal(inside.sum(1, keepdims=True))

    weights = shares(own)
    squares = (weights * jnp.dot(weights, gram, precision=lax.Precision.HIGHEST)).sum(1)
    means = jnp.sqrt(jnp.maximum(squares, 0.0))
    longest = jnp.where(own == jnp.arange(most)[:, None], norms, 0.0).max(1)

    def split(m: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
      now, count = carry
      inside = own == m
      wanted = (means[m] < eps1) & (longest[m] > eps2) & (inside.sum() > 2)
      wanted = wanted & (feedback.round >= warmup_rounds) & (count < most)
      apart = lax.cond(wanted, two_groups, lambda near, inside: inside, near, inside)
      return jnp.where(inside & ~apart, count, now), count + wanted.astype(jnp.int32)

    now, count = lax.fori_loop(0, most, split, (own, state.number))
    parent = jnp.arange(most).at[now].set(own)  # the cluster that a cluster's clients were in
    moved = jax.tree.map(jnp.add, pick(state.models, parent), combined(shares(now), changes))
    there = jnp.arange(most) < state.number
    after = Grouped(
      now, count, moved,
      jnp.where(there, means, jnp.inf).min(), longest.max(),
    )  # fmt: skip
    return broadcast, after

  def send(state: Grouped, broadcast: Message, i: jax.Array) -> Message:
    params, stats = pick(state.models, state.clusters[i])
    return broadcast._replace(params=params, stats=stats)

  def figures(state: Grouped, feedback: Feedback) -> dict[str, jax.Array]:
    return {
      "clusters": state.number.astype(jnp.float32), "mean_update": state.mean,
      "largest_update": state.largest,
    }  # fmt: skip

  return ServerUpdate(
    init, update, "cfl", takes_feedback=True, send=send, figures=figures, uses_aggregate=False
  )
