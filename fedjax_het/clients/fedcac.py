r"""FedCAC: parameters that matter to a client are averaged with similar clients only, the others with all.

Wu, Liu, Niu, Zhu, Tang, Bold but Cautious: Unlocking the Potential of Personalized Federated Learning through
Cautiously Aggressive Collaboration, ICCV 2023, equations 2 to 6. Client i starts from what it is sent, s_i,
and is trained to θ_i. Of each tensor the share τ with the largest |θ_i (θ_i - s_i)| is critical, M_i = 1
there. With the overlap O_ij = 1 - ‖M_i - M_j‖₁ / (2 ‖M_i‖₁), its mean and its maximum over i ≠ j, client i's
friends after t = 1, 2, ... rounds are those with O_ij >= mean + (t/β) (max - mean), and

    c_i = mean of θ_j over i and its friends,       s_i <- M_i c_i + (1 - M_i) θ,       θ = Σ_j p_j θ_j.

The server keeps s_k of all K clients, with which they are judged. θ is the global model. The paper has all
clients in every round; with fewer, friends are among the cohort. Checked against the authors' method in
PFLlib, whose default β = 0 fails there; running statistics are averaged with all. A number that training does
not move is never critical.
"""

from typing import Any, Unpack

import jax
import jax.numpy as jnp
from numpy.typing import ArrayLike

from fedjax_het import mixing, vectors
from fedjax_het.clients.addressed import Mixed, combined, count_of, pick, reciprocal
from fedjax_het.clients.local_settings import LocalSettings
from fedjax_het.clients.one_model import one_model
from fedjax_het.clients.recipe import recipe_of
from fedjax_het.clients.supervised import received, supervised
from fedjax_het.models import Model
from fedjax_het.parts import ClientUpdate, Feedback, Message, ServerUpdate
from fedjax_het.settings import Positive, Share, checked

PyTree = Any


@checked
def fedcac(
  model: Model,
  sizes: ArrayLike,
  *,
  tau: Share = 0.5,
  beta: Positive = 100.0,
  **local: Unpack[LocalSettings],
) -> ClientUpdate:
  """FedCAC's client part, which brings its server; clients keep nothing.

  The figure `friends` of a round is the mean number of a client's friends.

  Args:
    model: the model that clients train.
    sizes: training examples of each client, int [K]; configurations give the data's.
    tau: τ in [0, 1], the share of a tensor that is critical; 0 is FedAvg.
    beta: β > 0, rounds after which a client has no friends but those of the largest overlap.
    **local: local training, see `LocalSettings`.

  Raises:
    SettingError: a setting is out of range.
  """
  recipe, num_clients = recipe_of(model, local), count_of(sizes)

  def finish(broadcast, state, context, local):
    mask = jax.tree.map(lambda new, old: critical(new, old, tau), local.params, broadcast.params)
    return Message(local.params, stats=local.stats, extra=mask), state

  part = supervised(
    recipe, one_model(recipe, finish=finish), lambda broadcast, *_: received(model)(broadcast), name="fedcac",
    global_model=received(model),
    init_broadcast=lambda key: Message(model.init(key), stats=model.stats),
  )  # fmt: skip
  needs = part.needs._replace(
    brings={"mixing": mixing.static(), "server": cautious(num_clients, beta)}, num_clients=num_clients,
    transformed=("params",), upload_bits=bits,
  )  # fmt: skip
  return part._replace(needs=needs, studies=part.studies._replace(graph=Mixed.graph))


def bits(upload: Message) -> int:
  """Returns the bits of an upload's shapes: the model's, and one for each number of the mask."""
  model = sum(8 * leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves((upload.params, upload.stats)))
  return model + sum(leaf.size for leaf in jax.tree.leaves(upload.extra))


def critical(new: jax.Array, old: jax.Array, tau: float | jax.Array) -> jax.Array:
  """Returns 1 for the ⌊τ n⌋ of n numbers with the largest |θ (θ - s)|, if it is above 0; else 0, int8.

  Numbers equal to the least of them are all 1.
  """
  found = jnp.abs(new * (new - old))
  count = jnp.floor(jnp.float32(tau) * found.size + 1e-4).astype(jnp.int32)
  ordered = jnp.sort(found.ravel(), descending=True)
  least = jnp.where(count > 0, ordered[jnp.maximum(count - 1, 0)], jnp.inf)
  return ((found >= least) & (found > 0)).astype(jnp.int8)


def friendship(masks: PyTree, round: jax.Array, beta: float | jax.Array) -> jax.Array:
  """Returns whether j is i or a friend of it after round `round`, counted from 0, bool [K, K].

  Args:
    masks: M, leaves int8 [K, ...].
    round: index of the round.
    beta: β.
  """

  both = vectors.products(masks)
  sizes, itself = jnp.diag(both), jnp.eye(len(both), dtype=bool)
  differ = sizes[:, None] + sizes[None, :] - 2.0 * both
  overlap = jnp.where(itself, -jnp.inf, 1.0 - differ * 0.5 * reciprocal(sizes)[:, None])
  pairs = max(len(both) * (len(both) - 1), 1)
  mean, largest = jnp.where(itself, 0.0, overlap).sum() * (1.0 / pairs), overlap.max()
  share = jnp.float32(round + 1) * (1.0 / beta)
  return itself | (overlap - mean >= share * (largest - mean))


def cautious(num_clients: int, beta: float | jax.Array) -> ServerUpdate:
  """Returns FedCAC's server part, whose state is `Mixed`, of s_k and the weights of c_k; see `fedcac`."""

  def update(key: jax.Array, state: Mixed, broadcast: Message, aggregate: Message, feedback: Feedback):
    sent = feedback.uploads()
    near = friendship(sent.extra, feedback.round, beta).astype(jnp.float32)
    weights = near * (1.0 / near.sum(1, keepdims=True))
    own = combined(weights, sent.params)
    starts = jax.tree.map(
      lambda mask, mine, all_: jnp.where(mask > 0, mine, all_), sent.extra, own, aggregate.params
    )
    return aggregate._replace(extra=()), state.after(feedback.cohort, weights, starts)

  def send(state: Mixed, broadcast: Message, i: jax.Array) -> Message:
    return broadcast._replace(params=pick(state.sent, i))

  def figures(state: Mixed, feedback: Feedback) -> dict[str, jax.Array]:
    return {"friends": (state.weights > 0)[feedback.cohort].sum(1).mean() - 1.0}

  return ServerUpdate(
    lambda broadcast: Mixed.first(broadcast.params, num_clients), update, "fedcac",
    takes_feedback=True, send=send, figures=figures,
  )  # fmt: skip
