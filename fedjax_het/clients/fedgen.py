r"""FedGen: a generator of features at the server learns from all clients' heads, and regularises clients.

Zhu, Hong, Zhou, Data-Free Knowledge Distillation for Heterogeneous Federated Learning, ICML 2021, equations 4
to 6 and algorithm 1. G makes a feature z of the last hidden layer out of a label y and noise ε, uniform in
[0, 1]. Client i has n_{i,y} examples of y, its model the head h_i. After local training the server takes
steps of Adam on

    E_{y, ε} CE(Σ_i ω_{i,y} h_i(G(y, ε)), y) + γ exp(-mean_{a,b} |ε_a - ε_b|² |z_a - z_b|),

where ω_{i,y} = n_{i,y} / Σ_j n_{j,y} over the cohort, labels are drawn by Σ_i n_{i,y}, and the last term, of
all pairs of a batch, mean over coordinates, keeps features apart. In the next rounds a client minimises, with
ŷ from the server's distribution of labels,

    F_i(θ) + α_t E_ŷ CE(h(G(ŷ, ε)), ŷ) + β_t mean_x KL(ĥ(G(y, ε)) ‖ f(x)),      α_t = α δ^t, β_t = β δ^t,

in which G is fixed, and with a hat also h. Models are averaged as the mixing says.

Checked against the authors' code (zhuangdizhu/FedGen): sizes, rates, the decay δ = 0.98 of α, β and of the
server's rate, 50 steps a round, the diversity term, no regularisation in the first round. There G has a batch
norm, the ensemble's loss is Σ_i ω_{i,y} CE(h_i, y) and labels are drawn uniformly; the paper's loss and its
distribution are used here, and G has no norm layer. α and β are 1, the authors' for EMNIST: with their 10 for
MNIST at 0.01 without momentum, steps with the momentum 0.9 and a rate of 0.05 diverge.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_het.clients.addressed import combined, reciprocal
from fedjax_het.clients.calibration import check_method, counts_of
from fedjax_het.clients.fml import divergence
from fedjax_het.clients.local_settings import LocalSettings
from fedjax_het.clients.objective import adam, decayed
from fedjax_het.clients.one_model import one_model
from fedjax_het.clients.recipe import check_plain_labels, recipe_of
from fedjax_het.clients.supervised import supervised
from fedjax_het.errors import is_zero
from fedjax_het.local import trips, weighted_mean
from fedjax_het.models import Model
from fedjax_het.models.features import LinearHead, feature_size, linear_head
from fedjax_het.modes import promoting
from fedjax_het.parts import ClientUpdate, Feedback, Message, ServerUpdate
from fedjax_het.settings import Count, Decay, NonNegative, Positive, checked

PyTree = Any
GENERATED = 0x67656E  # folded into a step's key for labels and noise; the key itself is the recipe's


class Generator(NamedTuple):
  """The parameters of G(y, ε) = relu((ε, one-hot y) A + a) B + b, see `generated`.

  Attributes:
    hidden: (A float32 [N + C, H], a float32 [H]), N being the length of ε.
    last: (B float32 [H, d], b float32 [d]).
  """

  hidden: tuple[jax.Array, jax.Array]
  last: tuple[jax.Array, jax.Array]


class Shared(NamedTuple):
  """What is sent beside the model.

  Attributes:
    generator: G.
    labels: the distribution of labels of the last cohort, float32 [C].
  """

  generator: Generator
  labels: jax.Array


class Taught(NamedTuple):
  """State of FedGen's server: the generator's Adam, and the ensemble's mean cross entropy of a round."""

  optimizer: PyTree
  loss: jax.Array


def generated(own: Generator, noise: jax.Array, y: jax.Array) -> jax.Array:
  """Returns features G(y, ε), float32 [B, d], of noise ε, float32 [B, N], and labels y, int [B]."""
  classes = len(own.hidden[0]) - noise.shape[1]
  given = jnp.concatenate([noise, jax.nn.one_hot(y, classes)], axis=1)
  return jax.nn.relu(given @ own.hidden[0] + own.hidden[1]) @ own.last[0] + own.last[1]


def drawn_labels(key: jax.Array, labels: jax.Array, count: int) -> jax.Array:
  """Draws labels, int32 [count], from a distribution, float32 [C]."""
  chances = jnp.where(labels > 0, jnp.log(jnp.where(labels > 0, labels, 1.0)), -jnp.inf)
  return jax.random.categorical(key, chances, shape=(count,)).astype(jnp.int32)


def alike(noise: jax.Array, features: jax.Array) -> jax.Array:
  """Computes exp(-mean_{a,b} |ε_a - ε_b|² |z_a - z_b|), float32 scalar, mean over coordinates.

  Args:
    noise: ε, float32 [B, N].
    features: z, float32 [B, d].
  """
  far = jnp.square(noise[:, None] - noise).mean(-1)
  return jnp.exp(-(far * jnp.abs(features[:, None] - features).mean(-1)).mean())


@checked
def fedgen(
  model: Model,
  *,
  alpha: NonNegative = 1.0,
  beta: NonNegative = 1.0,
  decay: Decay = 0.98,
  diversity: NonNegative = 1.0,
  generated_batch: Count = 32,
  noise: Count = 32,
  hidden: Count = 256,
  server_steps: Count = 50,
  server_lr: Positive = 3e-4,
  server_weight_decay: NonNegative = 1e-2,
  **local: Unpack[LocalSettings],
) -> ClientUpdate:
  """FedGen's client part, which brings its server; clients keep nothing.

  The figure `ensemble_loss` of a round is the mean of the ensemble's cross entropy over the server's steps.

  Args:
    model: the model that clients train; its last layer is a dense one with a logit for each class.
    alpha: α >= 0, weight of the generated examples; the first regularised round is t = 1, with α δ.
    beta: β >= 0, weight of the divergence from what the head says of generated features of the same labels.
    decay: δ in (0, 1], the factor of α, β and the server's rate from round to round.
    diversity: γ >= 0, weight of the term that keeps generated features apart.
    generated_batch: generated examples in a client's step, and in the server's.
    noise: the length of ε.
    hidden: H, the width of the generator.
    server_steps: the server's steps in each round.
    server_lr: Adam's rate at the server in round 0.
    server_weight_decay: L2 weight decay >= 0 of the generator.
    **local: local training, see `LocalSettings`.

  Raises:
    SettingError: a setting is out of range, the labels are no classes, or `mixup` is given; when a run is set
      up, the model has no linear head.
  """
  recipe, off = recipe_of(model, local), is_zero(alpha) and is_zero(beta)
  check_method("fedgen", model, counted=True)
  if not off:
    check_plain_labels(recipe, "fedgen")
  head_of = linear_head(model)

  def term(broadcast, state, context):
    shared: Shared = broadcast.extra
    strength = jnp.where(context.round > 0, decayed(1.0, decay, context.round), 0.0)

    def regularised(params, seen):
      keys = jax.random.split(jax.random.fold_in(seen.batch.key, GENERATED), 3)
      head, real = head_of(params), seen.batch.weight
      y = drawn_labels(keys[0], shared.labels, generated_batch)
      z = generated(shared.generator, jax.random.uniform(keys[1], (generated_batch, noise)), y)
      right = optax.softmax_cross_entropy_with_integer_labels(head(z), y).mean()
      same = generated(shared.generator, jax.random.uniform(keys[2], (len(real), noise)), seen.batch.y)
      apart = divergence(lax.stop_gradient(head(same)), seen.outputs)
      return strength * (alpha * right + beta * weighted_mean(apart, real))

    return regularised

  training = one_model(recipe, term=None if off else term)

  def finish(broadcast, state, data, context, local):
    upload, state, info = training.finish(broadcast, state, data, context, local)
    return upload._replace(extra=counts_of(data, model.num_classes)), state, info

  def init_broadcast(key):
    sizes, d = (noise + model.num_classes, hidden), feature_size(model)
    one, two = (jax.random.fold_in(key, GENERATED + layer) for layer in range(2))
    generator = Generator(
      ((2.0 / sizes[0]) ** 0.5 * jax.random.normal(one, sizes), jnp.zeros(hidden)),
      (hidden**-0.5 * jax.random.normal(two, (hidden, d)), jnp.zeros(d)),
    )
    labels = jnp.full(model.num_classes, 1.0 / model.num_classes)
    return Message(model.init(key), extra=Shared(generator, labels), stats=model.stats)

  made = supervised(
    recipe, training._replace(finish=finish), name="fedgen", init_broadcast=init_broadcast
  )  # fmt: skip
  teach = generating(
    head_of, server_lr, server_weight_decay, decay, diversity, server_steps, generated_batch, noise
  )
  return made._replace(needs=made.needs._replace(brings={"server": teach}, transformed=("params",)))


def generating(
  head_of: Callable[[PyTree], LinearHead], lr: Any, weight_decay: Any, decay: Any, diversity: Any, steps: int,
  batch_size: int, noise: int,
) -> ServerUpdate:  # fmt: skip
  """Returns FedGen's server part, whose state is `Taught`; see `fedgen`."""

  def optimizer(round: jax.Array) -> optax.GradientTransformation:
    return promoting(adam(0.9, 0.999, weight_decay)(decayed(lr, decay, round)))

  def init(broadcast: Message) -> Taught:
    return Taught(optimizer(jnp.int32(0)).init(broadcast.extra.generator), jnp.float32(0.0))

  def update(key: jax.Array, state: Taught, broadcast: Message, aggregate: Message, feedback: Feedback):
    sent = feedback.uploads()
    counts = sent.extra
    total = counts.sum(0)
    # Of each label y, the head whose logits are Σ_i ω_iy h_i.
    heads = combined((counts * reciprocal(total)).T, jax.vmap(head_of)(sent.params))
    labels = total * (1.0 / total.sum())
    tx = optimizer(feedback.round)

    def loss(own: Generator, key: jax.Array) -> tuple[jax.Array, jax.Array]:
      of_labels, of_noise = jax.random.split(key)
      y, drawn = (
        drawn_labels(of_labels, labels, batch_size),
        jax.random.uniform(of_noise, (batch_size, noise)),
      )
      z = generated(own, drawn, y)
      logits = jnp.einsum("bd,bdc->bc", z, heads.kernel[y]) + heads.bias[y]
      wrong = optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()
      return wrong + diversity * alike(drawn, z), wrong

    def step(i: jax.Array, carry: tuple[Generator, PyTree, jax.Array]):
      own, kept, losses = carry
      gradient, wrong = jax.grad(loss, has_aux=True)(own, jax.random.fold_in(key, i))
      updates, kept = tx.update(gradient, kept, own)
      return optax.apply_updates(own, updates), kept, losses + wrong

    start = broadcast.extra.generator, state.optimizer, jnp.float32(0.0)
    own, kept, losses = lax.fori_loop(0, trips(steps), step, start)
    return aggregate._replace(extra=Shared(own, labels)), Taught(kept, losses * (1.0 / steps))

  def figures(state: Taught, feedback: Feedback) -> dict[str, jax.Array]:
    return {"ensemble_loss": state.loss}

  return ServerUpdate(init, update, "fedgen", takes_feedback=True, figures=figures)
