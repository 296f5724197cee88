r"""FedPAC: features are aligned with the classes' means, and each client's head is a mixture of all heads.

Xu, Tong, Huang, Personalized Federated Learning with Feature Alignment and Classifier Collaboration, ICLR
2023, equations 5 to 10. A client is sent the body, its own head and the classes' mean features c_y. With the
body as received it has the means μ_{i,c} of its n_{i,c} examples, h_{i,c} = (n_{i,c}/n_i) μ_{i,c} and

    v_i = (mean ‖z‖² - Σ_c ‖h_{i,c}‖²) / n_i.

It trains the head with the body fixed, then the body with the head fixed on F_i + λ mean ‖z - c_y‖² / d, and
sends the model, h_i, v_i and the means after training. The server averages bodies by n_i, means by n_{i,c},
and gives client i the head Σ_j α_ij head_j, where α_i· minimises over the simplex

    Σ_j α_j² v_j + Σ_{j,l} α_j α_l <h_i - h_j, h_i - h_l>,

weights below 1e-3 are 0, and the others are scaled to the sum 1. Checked against the authors' code
(JianXu95/FedPAC), which solves the programs on the host; the matrix is a Gram matrix and therefore positive
semidefinite, so that none fails here. As there, a class without a shared mean has the client's own one, and
there is no alignment in the first round.
"""

from typing import Any, NamedTuple, Unpack, cast

import jax
import jax.numpy as jnp
from jax import lax
from numpy.typing import ArrayLike

from fedjax_het import mixing
from fedjax_het.clients import sgd
from fedjax_het.clients.addressed import Mixed, combined, count_of, pick
from fedjax_het.clients.calibration import check_method
from fedjax_het.clients.fedproto import Prototypes, means_by_class, sums_by_class
from fedjax_het.clients.heads import joined, parting
from fedjax_het.clients.local_settings import LocalSettings
from fedjax_het.clients.recipe import check_plain_labels, recipe_of
from fedjax_het.clients.supervised import received, supervised
from fedjax_het.data.container import ClientData
from fedjax_het.errors import is_zero
from fedjax_het.local import sum_over_blocks, weighted_mean
from fedjax_het.mixing.simplex import minimise_on_simplex
from fedjax_het.models import Model
from fedjax_het.models.features import feature_size, with_features
from fedjax_het.parts import ClientUpdate, Feedback, LocalTraining, Message, Pooled, ServerUpdate
from fedjax_het.settings import Count, NonNegative, Positive, checked

PyTree = Any
LEAST = 1e-3  # weights of heads below it are 0


class Described(NamedTuple):
  """What a client says of its features: h_i, float32 [C, d], and v_i, float32 scalar."""

  means: jax.Array
  variance: jax.Array


class Phases(NamedTuple):
  """State of local training.

  Attributes:
    there: whether the features of the received body have been described.
    described: see `Described`.
    own: the means μ_{i,c} under the received body, float32 [C, d].
    head: training of the head.
    body: training of the body.
  """

  there: jax.Array
  described: Described
  own: jax.Array
  head: sgd.Local
  body: sgd.Local


@checked
def fedpac(
  model: Model,
  sizes: ArrayLike,
  *,
  lam: NonNegative = 1.0,
  head_passes: Count = 1,
  head_lr: Positive = 0.1,
  **local: Unpack[LocalSettings],
) -> ClientUpdate:
  """FedPAC's client part, which brings its server; clients keep nothing, and there is no global model.

  The figure `own_head` of a round is the mean of α_ii.

  Args:
    model: the model that clients train; its last layer is a dense one.
    sizes: training examples of each client, int [K]; configurations give the data's.
    lam: λ >= 0, weight of the distance to the classes' means; 0 leaves it out.
    head_passes: epochs of the head, before those of the body.
    head_lr: the head's learning rate in round 0.
    **local: local training, see `LocalSettings`; `epochs` and `lr` are the body's.

  Raises:
    SettingError: a setting is out of range, the labels are no classes, or `mixup` is given; when a run is set
      up, the model has no linear head.
  """
  recipe, num_clients = recipe_of(model, local), count_of(sizes)
  check_method("fedpac", model, counted=True)
  check_plain_labels(recipe, "fedpac")
  part = parting(model, "")
  top = recipe.with_epochs(head_passes)
  top = top._replace(settings=cast(LocalSettings, {**top.settings, "lr": head_lr}))

  def features(params: PyTree, stats: PyTree):
    own = model.joined(params, stats)
    return lambda x: with_features(model).logits(own, x).features

  def describe(broadcast: Message, data: ClientData) -> tuple[Described, jax.Array]:
    """Returns (h_i and v_i, μ_i) under the received body."""
    seen = features(broadcast.params, broadcast.stats)
    sums, counts = sums_by_class(seen, data, model.num_classes)
    squares = sum_over_blocks(data, lambda x, y, inside: jnp.where(inside, (seen(x) ** 2).sum(1), 0.0).sum())
    per = 1.0 / jnp.float32(data.length)
    means = sums * per
    described = Described(means, (squares * per - jnp.square(means).sum()) * per)
    return described, sums * (1.0 / jnp.maximum(counts, 1.0))[:, None]

  def start(broadcast, state, context) -> Phases:
    body, head = part(broadcast.params)
    shape = model.num_classes, feature_size(model)
    return Phases(
      jnp.bool_(False), Described(jnp.zeros(shape), jnp.float32(0.0)), jnp.zeros(shape),
      sgd.start(head, broadcast.stats, top.optimizer(context)),
      sgd.start(body, broadcast.stats, recipe.optimizer(context)),
    )  # fmt: skip

  def run_steps(key, broadcast, state, data, context, work: Phases, first, last) -> Phases:
    said = lax.cond(work.there, lambda: (work.described, work.own), lambda: describe(broadcast, data))
    shared: Prototypes = broadcast.pooled
    target = jnp.where(shared.known[:, None] > 0, shared.mean, said[1])
    body = part(broadcast.params).body
    head = sgd.run_steps(
      key, top, data, work.head, top.optimizer(context), None, first, last,
      lambda step, own: joined(body, own),
    )  # fmt: skip

    def pull(params, seen):
      squares = jnp.square(seen.features - target[seen.batch.y]).mean(-1)
      return lam * shared.known.max() * weighted_mean(squares, seen.batch.weight)

    bottom = recipe if is_zero(lam) else recipe._replace(term=pull)
    first, last, key = sgd.afterwards(top.steps(data), first, last, key)
    trained = sgd.run_steps(
      key, bottom, data, work.body, recipe.optimizer(context), None, first, last,
      lambda step, own: joined(own, head.params),
    )  # fmt: skip
    return Phases(jnp.bool_(True), said[0], said[1], head, trained)

  def finish(broadcast, state, data, context, work: Phases):
    params, stats = joined(work.body.params, work.head.params), work.body.stats
    mean, counts = means_by_class(features(params, stats), data, model.num_classes)
    pooled = Pooled(Prototypes(mean, jnp.ones_like(counts)), counts)
    upload = Message(params, extra=work.described, stats=stats, pooled=pooled)
    return upload, state, sgd.mean_loss(work.head, work.body)

  def init_broadcast(key):
    shape = model.num_classes, feature_size(model)
    nothing = Prototypes(jnp.zeros(shape), jnp.zeros(shape[0]))
    return Message(model.init(key), stats=model.stats, pooled=nothing)

  training = LocalTraining(
    lambda data: top.steps(data) + recipe.steps(data), start, run_steps, finish, recipe.gradients
  )
  made = supervised(
    recipe, training, lambda broadcast, *_: received(model)(broadcast), name="fedpac",
    init_broadcast=init_broadcast,
  )  # fmt: skip
  needs = made.needs._replace(
    brings={"mixing": mixing.static(), "server": collaborating(num_clients, part)}, num_clients=num_clients,
    transformed=("params",),
  )  # fmt: skip
  studies = made.studies._replace(graph=Mixed.graph, prototypes=lambda broadcast: tuple(broadcast.pooled))
  return made._replace(needs=needs, studies=studies)


def weights_of_heads(described: Described) -> jax.Array:
  """Computes α, float32 [S, S], whose rows sum to 1, of leaves [S, ...]."""
  flat = described.means.reshape(len(described.variance), -1)

  def one(mine: jax.Array) -> jax.Array:
    apart = mine - flat
    matrix = jnp.dot(apart, apart.T, precision=lax.Precision.HIGHEST)
    own = minimise_on_simplex(matrix + jnp.diag(described.variance), jnp.zeros(len(flat)))
    own = jnp.where(own > LEAST, own, 0.0)
    return own * (1.0 / own.sum())

  return lax.map(one, flat)


def collaborating(num_clients: int, part: Any) -> ServerUpdate:
  """Returns FedPAC's server part, whose state is `Mixed`, of heads.

  Args:
    num_clients: K.
    part: (params) -> body and head, see `heads.parting`.
  """

  def init(broadcast: Message) -> Mixed:
    return Mixed.first(part(broadcast.params).head, num_clients)

  def update(key: jax.Array, state: Mixed, broadcast: Message, aggregate: Message, feedback: Feedback):
    sent = feedback.uploads()
    weights = weights_of_heads(sent.extra)
    heads = combined(weights, part(sent.params).head)
    return aggregate._replace(extra=()), state.after(feedback.cohort, weights, heads)

  def send(state: Mixed, broadcast: Message, i: jax.Array) -> Message:
    return broadcast._replace(params=joined(part(broadcast.params).body, pick(state.sent, i)))

  def figures(state: Mixed, feedback: Feedback) -> dict[str, jax.Array]:
    return {"own_head": jnp.diag(state.weights)[feedback.cohort].mean()}

  return ServerUpdate(init, update, "fedpac", takes_feedback=True, send=send, figures=figures)
