r"""FedKD: a private mentor and a shared mentee teach each other, and the mentee's update is sent compressed.

Wu, Wu, Lyu, Huang, Xie, Communication-Efficient Federated Learning via Knowledge Distillation, Nature
Communications 2022, equations 1 to 7 and the section on dynamic gradient approximation. Client i keeps a
mentor q_i and a map W_i of features, and is sent the mentee w. With logits f, features z and cross entropies
L_q, L_w of a batch, each step moves both models along losses in which all of the other model is fixed:

    mentor:           L_q + λ (KL(w ‖ q) + ‖z_q - z_w W‖²/d) / max(L_q + L_w, l),
    mentee and W_i:   L_w + λ (KL(q ‖ w) + ‖z_q - z_w W‖²/d) / max(L_q + L_w, l).

λ = 1 in the paper, which has no bound l: the quotient then grows without end where a client's examples are
easy, such as those of two classes, and training diverges. Of each matrix of the mentee's update [P, Q], for a
convolution's kernel one row for each place and input channel, the r largest singular values and their vectors
are sent, r being the least number with Σ_{k<=r} σ_k² > T(t) Σ_k σ_k², where in round t of R

    T(t) = T_start + (t + 1)/R (T_end - T_start).

That is r (P + Q + 1) numbers; where these are not fewer than P Q, the update is sent as it is, and so are
vectors. One number a matrix says r. As r depends on the update, arrays keep their shapes, and `Info.sent`
has the bytes. Clients are judged by their mentor; the mentee is the global model.

Checked against the authors' code (wuch15/FedKD) for r, T(t) and the division by both losses. There one sum
of all losses is differentiated, so that each model's also moves the other; here each has its own, as in the
paper. The code compresses the averaged update once more on its way to clients that have the mentee of the
round before; here clients keep no mentee and are sent it whole. Both models have the same layers, of which
the last hidden one is compared, and W starts as the identity.
"""

import functools
from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp

from fedjax_het.clients import sgd
from fedjax_het.clients.calibration import check_method
from fedjax_het.clients.fml import divergence
from fedjax_het.clients.local_settings import LocalSettings
from fedjax_het.clients.objective import Seen
from fedjax_het.clients.recipe import Recipe, recipe_of
from fedjax_het.clients.supervised import received, supervised
from fedjax_het.errors import check_same_rounds, is_one, is_zero
from fedjax_het.local import Batch, weighted_mean
from fedjax_het.models import Model
from fedjax_het.models.features import Featured, feature_size, with_features
from fedjax_het.parts import ClientUpdate, Info, LocalTraining, Message
from fedjax_het.settings import Count, NonNegative, Positive, Weight, checked
from fedjax_het.tasks import mean_loss

PyTree = Any


class Mentee(NamedTuple):
  """What is trained of the mentee: its parameters, and the map W of its features, float32 [d, d]."""

  params: PyTree
  bridge: jax.Array


class Private(NamedTuple):
  """A client's state: the mentor, joined with statistics, and W, float32 [d, d]."""

  mentor: PyTree
  bridge: jax.Array


class Two(NamedTuple):
  """Training of the mentor and of the mentee."""

  mentor: sgd.Local
  mentee: sgd.Local


times = functools.partial(jnp.dot, precision=jax.lax.Precision.HIGHEST)


def low_rank(change: jax.Array, energy: float | jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Approximates an update by the largest singular values that hold a share of its energy.

  Args:
    change: the update of a tensor, float32 [..., Q], two axes or more; its leading axes are the P rows.
    energy: T in [0, 1], the share of Σ σ² to be exceeded; all values where there are too few.

  Returns:
    (the approximation, like `change`; how many numbers are sent of it, int32 scalar; whether these would be
    as many as the tensor has, so that it is sent as it is, bool scalar).
  """
  matrix = change.reshape(-1, change.shape[-1])
  wide = matrix.shape[0] < matrix.shape[1]
  tall = matrix.T if wide else matrix
  # The eigenvectors of the smaller Gram matrix are singular vectors, and its eigenvalues σ², the least first.
  squares, vectors = jnp.linalg.eigh(times(tall.T, tall))
  squares, vectors = jnp.maximum(squares[::-1], 0.0), vectors[:, ::-1]
  held = jnp.cumsum(squares)
  rank = jnp.minimum(1 + (held <= energy * held[-1]).sum(dtype=jnp.int32), len(held))
  kept = jnp.where(jnp.arange(len(held)) < rank, vectors, 0.0)
  near = times(times(tall, kept), kept.T)
  near = (near.T if wide else near).reshape(change.shape)
  numbers = rank * sum(matrix.shape) + rank
  whole = numbers >= matrix.size
  return near, 1 + jnp.where(whole, matrix.size, numbers).astype(jnp.int32), whole


def compressed(params: PyTree, center: PyTree, energy: float | jax.Array) -> tuple[PyTree, jax.Array]:
  """Returns (the model as the server decodes it, how many numbers are sent, int32 scalar).

  Args:
    params: the trained model's parameters.
    center: those that the client received.
    energy: T, see `low_rank`.
  """
  sent = jnp.int32(0)

  def one(leaf: jax.Array, start: jax.Array) -> jax.Array:
    nonlocal sent
    if leaf.ndim < 2:
      sent = sent + leaf.size
      return leaf
    near, numbers, whole = low_rank(leaf - start, energy)
    sent = sent + numbers
    return jnp.where(whole, leaf, start + near)

  return jax.tree.map(one, params, center), sent


@checked
def fedkd(
  model: Model,
  *,
  lam: NonNegative = 1.0,
  least_loss: Positive = 1.0,
  energy_start: Weight = 0.95,
  energy_end: Weight = 0.98,
  rounds: Count = 100,
  **local: Unpack[LocalSettings],
) -> ClientUpdate:
  """FedKD's client part; its state is `Private`, at first the received model.

  Args:
    model: the model that clients train two of; its last layer is a dense one.
    lam: λ >= 0, weight of what the models teach each other; 0 leaves it out.
    least_loss: the least L_q + L_w that is divided by, > 0; the paper has no bound.
    energy_start: T_start in [0, 1], the share of an update's energy that is sent, before round 0; 1 at both
      ends sends updates as they are.
    energy_end: T_end in [0, 1], the share in the last round.
    rounds: R, the run's number of rounds.
    **local: local training, see `LocalSettings`, of each of both models.

  Raises:
    SettingError: a setting is out of range, or the labels are no classes; when a run is set up, the model has
      no linear head; from `check_rounds`, the run has another R.
  """
  recipe = recipe_of(model, local)
  check_method("fedkd", model)

  def start(broadcast, state: Private, context) -> Two:
    tx, own = recipe.optimizer(context), model.split(state.mentor)
    shared = Mentee(broadcast.params, state.bridge)
    return Two(sgd.start(own.params, own.stats, tx), sgd.start(shared, broadcast.stats, tx))

  def run_steps(key, broadcast, state, data, context, work: Two, first, last) -> Two:
    tx, fitted = recipe.optimizer(context), recipe.fitted(data)
    task = fitted.trained.task

    def seen_by(params: PyTree, stats: PyTree, batch: Batch) -> Featured:
      return with_features(model).logits(model.joined(params, stats), batch.x)

    def both(own: Featured, other: Featured, apart: jax.Array, batch: Batch) -> jax.Array:
      """Returns what a model learns from the other one; `apart` are distances of features, [B]."""
      losses = [mean_loss(task, one.outputs, batch.y, batch.weight) for one in (own, other)]
      taught = weighted_mean(divergence(other.outputs, own.outputs) + apart, batch.weight)
      return lam * taught / jnp.maximum(sum(losses), least_loss)

    def of_mentor(mentee: sgd.Local):
      def term(params: PyTree, seen: Seen) -> jax.Array:
        other = seen_by(mentee.params.params, mentee.stats, seen.batch)
        apart = jnp.square(seen.features - other.features @ mentee.params.bridge).mean(-1)
        return both(Featured(seen.outputs, seen.features), other, apart, seen.batch)

      return term

    def of_mentee(mentor: sgd.Local):
      def term(params: Mentee, seen: Seen) -> jax.Array:
        other = seen_by(mentor.params, mentor.stats, seen.batch)
        apart = jnp.square(other.features - seen.features @ params.bridge).mean(-1)
        return both(Featured(seen.outputs, seen.features), other, apart, seen.batch)

      return term

    def one(own: sgd.Local, term: Any, batch: Batch, release: int, at: Any = None) -> sgd.Local:
      trained: Recipe = fitted if is_zero(lam) else fitted._replace(term=term)
      loss, gradient, stats = trained.gradient(own.params, own.stats, batch, at, release=release)
      return sgd.stepped(own, tx, gradient, loss, stats)

    def step(work: Two, batch: Batch) -> Two:
      mentor, mentee = work
      taught = one(mentor, of_mentor(mentee), batch, 0)
      return Two(taught, one(mentee, of_mentee(mentor), batch, 1, lambda own: own.params))

    return recipe.for_each_batch(key, data, step, work, first, last)

  def finish(broadcast, state, data, context, work: Two):
    mentor, (params, bridge) = work.mentor, work.mentee.params
    info = Info.of_sum(mentor.loss, mentor.steps)
    if not (is_one(energy_start) and is_one(energy_end)):
      share = (jnp.asarray(context.round, jnp.float32) + 1.0) / rounds
      energy = energy_start + share * (energy_end - energy_start)
      params, sent = compressed(params, broadcast.params, energy)
      of_stats = sum(leaf.size for leaf in jax.tree.leaves(work.mentee.stats))
      info = info._replace(sent=4 * (sent + of_stats))
    upload = Message(params, stats=work.mentee.stats)
    return upload, Private(model.joined(mentor.params, mentor.stats), bridge), info

  def check_rounds(own: int) -> None:
    why = "the sent energy grows over so many rounds"
    check_same_rounds("fedkd's rounds", rounds, own, why, "fedkd(..., ")

  made = supervised(
    recipe, LocalTraining(recipe.steps, start, run_steps, finish, 2 * recipe.gradients, recipe.counted),
    lambda broadcast, state, *_: state.mentor, name="fedkd", global_model=received(model),
    init=lambda key, broadcast, *_: Private(received(model)(broadcast), jnp.eye(feature_size(model))),
  )  # fmt: skip
  compresses = not (is_one(energy_start) and is_one(energy_end))
  transformed = () if compresses else made.needs.transformed
  return made._replace(needs=made.needs._replace(check_rounds=check_rounds, transformed=transformed))
