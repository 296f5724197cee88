r"""FedEvg: clients shape a shared synthetic set through their energy models' gradients (thesis, chapter IV).

The server broadcasts M synthetic examples x̃ with fixed, balanced labels ỹ. A client trains a classifier f on
its data as an energy model, E(x, y) = -f(x)[y] (algorithm 4.1), and uploads for each (x̃, ỹ) as received

    e·∇E(x̃)  and  e,   e = exp(sgn(-E))       "signed", one of 1/e, 1, e: stable, and the thesis's own choice,
                       e = exp(-E)            "raw", which makes equation 4.13 the gradient of equation 4.11,
                                              or another weight of `clients.energies`.

Models are not uploaded. `server.sgld` and `server.particles` need the weighted sums Σ_i w_i e_i ∇E_i and Σ_i
w_i e_i only.

A local step takes a mini-batch (x, y) of up to B real examples and min(B, M) slots (x̃, ỹ) of the synthetic
set, also if the mini-batch has fewer real examples, and minimises

    [-mean f(x)[y] + mean f(x̆)[ỹ]] + CE(x, y) + λ CE(x̃, ỹ).

x̆ is a slot's Langevin chain: it starts the round at x̃, takes R steps  x̆ <- x̆ + γ ∇f(x̆)[ỹ] + σ ε
(equation 4.9) per local step that draws the slot, and persists between the client's steps. Training lowers
the energy of real data and raises that of the chain's samples (equation 4.4). Section IV-2.3 names other
starts of chains (`chain_start`), equation 4.8 another energy (`density`), and algorithm 4.2 another place of
the examples in the last term (`shown`).
"""

from typing import Annotated, Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import optax

from fedjax_het.clients.energies import (
  DENSITIES,
  Cap,
  Density,
  Energy,
  check_energy,
  clipped,
  energy_gradient,
  signals,
)
from fedjax_het.clients.local_settings import AdamSettings, adam_training
from fedjax_het.clients.objective import check_model, training_loss
from fedjax_het.errors import SettingError, check_pixels, is_zero
from fedjax_het.langevin import langevin_step
from fedjax_het.local import for_each_batch, weighted_mean
from fedjax_het.models import Model
from fedjax_het.models.model import trains_as_used
from fedjax_het.models.tried import mistakes_in_training
from fedjax_het.parts import ClientUpdate, Info, Message, Needs, Studies
from fedjax_het.settings import Choice, Count, Decay, NonNegative, Positive, Whole, checked
from fedjax_het.tasks import mean_loss

PyTree = Any
STARTS = ("persistent", "data", "normal", "uniform")
START = (
  2**31 - 1
)  # fold of a local step's key for the noise in which chains start; folds 0 to R - 1 are steps'
SHOWN = ("received", "start", "end")


class Local(NamedTuple):
  """State of a client's local training in FedEvg.

  Attributes:
    params: the classifier's parameters.
    optimizer: Adam's state.
    chains: x̆, current positions of all slots' chains, [M, ...].
    loss: sum of the steps' losses.
    steps: number of steps taken.
  """

  params: PyTree
  optimizer: PyTree
  chains: jax.Array
  loss: jax.Array
  steps: jax.Array


def labels_of(num_classes: int, per_class: int) -> jax.Array:
  """Returns the balanced synthetic labels ỹ, int32 [M], sorted by class and concrete even under tracing."""
  with jax.ensure_compile_time_eval():
    return jnp.repeat(jnp.arange(num_classes), per_class)


def contrast(
  real: jax.Array, weight: jax.Array, sampled: jax.Array, sampled_weight: jax.Array | None = None
) -> jax.Array:
  """Contrastive loss, mean E(x, y) - mean E(x̆, ỹ), float32 scalar; its gradient estimates ∇(-log p(x, y)).

  The gradient is that of equation 4.4.

  Args:
    real: f(x)[y] of real examples, or another -E, [B].
    weight: 1 for a real example, 0 for padding, [B].
    sampled: -E of the model's samples, [M].
    sampled_weight: 1 for a sample, 0 for padding, [M]; None for samples only.
  """
  found = sampled.mean() if sampled_weight is None else weighted_mean(sampled, sampled_weight)
  return found - weighted_mean(real, weight)


def nearest(synthetic: jax.Array, labels: jax.Array, num_classes: int, x: jax.Array) -> jax.Array:
  """Nearest-neighbour logits [B, C]: minus the squared distance to each class's nearest synthetic example."""
  own, theirs = x.reshape(x.shape[0], -1), synthetic.reshape(synthetic.shape[0], -1)
  squares = (own**2).sum(1)[:, None] - 2.0 * own @ theirs.T + (theirs**2).sum(1)
  return -squares.reshape(x.shape[0], num_classes, len(labels) // num_classes).min(axis=2)


@checked
def fedevg(
  model: Model,
  *,
  per_class: Count = 10,
  energy: Energy = "signed",
  cap: Cap | None = None,
  upload_norm: Positive | None = None,
  start_scale: Positive = 1.0,
  persistent: bool = False,
  chain_steps: Annotated[int, Whole(0)] = 1,
  chain_step_size: NonNegative = 1.0,
  chain_noise: NonNegative = 0.01,
  chain_start: Annotated[str, Choice(STARTS)] = "persistent",
  density: Density = "joint",
  shown: Annotated[str, Choice(SHOWN)] = "received",
  lam: NonNegative = 0.1,
  clip: Positive | None = 3.0,
  bounded: bool = True,
  lr_decay: Decay = 0.9 ** (1 / 50),
  **local: Unpack[AdamSettings],
) -> ClientUpdate:
  """FedEvg's client part, for use with `server.sgld`, the thesis's server part, or `server.particles`.

  The broadcast's `params` are x̃, float32 [M, ...]. For raw energies its `extra` is log Σ w e of the rounds
  before, [M], which energies are taken relative to, so that they cannot overflow; equation 4.13 is invariant
  to it, unless an energy changes by more than 60 nats in a round (then its exponent is clipped). Otherwise
  `extra` is (). Personalised models are the clients' classifiers if they are persistent. Otherwise, and as
  the global model, x̃ itself is evaluated as a nearest-neighbour classifier (`studies.downstream` trains a
  classifier on it).

  Args:
    model: the classifier, whose `shape` and `num_classes` define what is synthesised.
    per_class: synthetic examples per class; M = classes x per_class.
    energy: kind of weight, "signed", "raw", "centred", "absolute" or "even", see `clients.energies`.
    cap: bound c on the exponent of a weight, |log e| <= c; None for signed and even weights, 60 for others.
    upload_norm: C > 0, bound on the L2 norm of a client's whole upload; for even weights only, whose values
      reveal nothing about the data. With uniform mixing and the server's `signal_noise` the uploads of a run
      are differentially private at user level. None for no bound.
    start_scale: standard deviation > 0 of the normal distribution that x̃ is initialised from.
    persistent: whether a client keeps its classifier across rounds; otherwise each round starts with a new
      one.
    chain_steps: R >= 0, Langevin steps per local step.
    chain_step_size: γ, step size of a chain.
    chain_noise: σ, noise scale of a chain.
    chain_start: where a local step's chains start: "persistent", where the slots' chains stand (algorithm
      4.2); "data", at the step's real examples with their labels (contrastive divergence); "normal" or
      "uniform", at noise from N(0, I) or U(0, 1) with the slots' labels. All but the first forget the chains.
    density: the density whose likelihood the contrastive term raises, and that chains sample: "joint",
      E(x, y) = -f(x)[y]; or "marginal", E(x) = -log Σ_y exp f(x)[y], which with CE(x, y) is the likelihood of
      (x, y) too (Grathwohl et al., 2020). Uploads are of the joint energy, because x̃ has labels.
    shown: the examples of the term with λ: "received" x̃; or those of the slots' chains at the "start" of the
      local step, algorithm 4.2 as printed (line 14 is before line 17), or at its "end".
    lam: λ, weight of the synthetic examples' cross-entropy.
    clip: bound on every entry of a gradient with respect to x; None for none.
    bounded: whether chains are clipped to [0, 1], as pixels are, and examples must lie there; the server part
      has a separate setting for x̃.
    lr_decay: factor on the learning rate per round, in (0, 1].
    **local: local training, see `AdamSettings`; a step takes `batch_size` B real and min(B, M) synthetic
      examples.

  Raises:
    SettingError: a setting is out of range or has no effect, or the model has no declared shape, fewer than
      two logits, running statistics or dropout; when a run is set up, examples lie outside [0, 1] although
      chains are bounded.
  """
  check_model(model)
  check_energy(energy, cap, upload_norm)
  local, optimizer_of = adam_training(local, lr_decay)
  epochs, steps, batch_size = local["epochs"], local["steps"], local["batch_size"]
  if is_zero(chain_steps):
    for name, value, usual in (
      ("chain_step_size", chain_step_size, 1.0), ("chain_noise", chain_noise, 0.01),
      ("chain_start", chain_start, "persistent"), ("shown", shown, "received"),
    ):  # fmt: skip
      if not isinstance(value, jax.Array) and value != usual:
        raise SettingError(name, value, "has no effect without chains", "Leave it out, or set chain_steps.")
  if shown != "received" and chain_start != "persistent":
    problem = f"chains that start at {chain_start} forget where slots were"
    raise SettingError("shown", shown, problem, "Leave it out, or use chain_start='persistent'.")
  if shown != "received" and is_zero(lam):
    raise SettingError("shown", shown, "has no effect with lam = 0", "Leave it out, or set lam.")
  if not isinstance(model.shape, tuple) or not model.shape or model.num_classes < 2 or not model.task.classes:
    raise SettingError(
      "model", model.name, "does not say its shape, or has fewer than two logits, the energies of classes",
      "Use one with `shape` and `num_classes`, such as models.energy_mlp(shape, num_classes=2).",
    )  # fmt: skip
  if not trains_as_used(model):
    raise SettingError(
      "model", model.name, "has running statistics or dropout: its energy is no function of x alone",
      "Use group normalisation, and no dropout.",
    )  # fmt: skip
  labels = labels_of(model.num_classes, per_class)
  slots = min(batch_size, len(labels))
  score = DENSITIES[density]

  def start(key, persistent, y_tilde, batch):
    """Returns the chains' start, their labels, and their weights in the contrast; None for equal ones."""
    if chain_start == "data":
      return batch.x, batch.y, batch.weight
    if chain_start == "persistent":
      return persistent, y_tilde, None
    draw = jax.random.normal if chain_start == "normal" else jax.random.uniform
    return draw(jax.random.fold_in(key, START), persistent.shape), y_tilde, None

  def walk(key, params, x, y):
    """Runs R Langevin steps of the chains x with labels y."""

    def step(r, x):
      gradient = clipped(energy_gradient(model, params, x, y, score)[0], clip)
      return langevin_step(jax.random.fold_in(key, r), x, gradient, chain_step_size, chain_noise, bounded)

    return jax.lax.fori_loop(0, chain_steps, step, x)

  def update(key, broadcast, state, data, context):
    model_key, data_key = jax.random.split(key)
    optimizer = optimizer_of(context)

    def step(local: Local, batch) -> Local:
      slot_key, chain_key = jax.random.split(batch.key)
      chosen = jax.random.permutation(slot_key, len(labels))[:slots]
      y_tilde = labels[chosen]
      began, y_chain, counted = start(chain_key, local.chains[chosen], y_tilde, batch)
      chains = walk(chain_key, local.params, began, y_chain)
      examples = {"received": broadcast.params[chosen], "start": began, "end": chains}[shown]

      def objective(params):
        logits, sampled = model.apply(params, batch.x), model.apply(params, chains)
        energies = contrast(score(logits, batch.y), batch.weight, score(sampled, y_chain), counted)
        own = mean_loss(model.task, logits, batch.y, batch.weight)
        synthetic = model.apply(params, examples)
        return energies + own + lam * mean_loss(model.task, synthetic, y_tilde, jnp.ones(slots))

      with mistakes_in_training(model):
        loss, gradient = jax.value_and_grad(objective)(local.params)
      updates, state = optimizer.update(gradient, local.optimizer, local.params)
      params = optax.apply_updates(local.params, updates)
      kept = local.chains.at[chosen].set(chains) if chain_start == "persistent" else local.chains
      return Local(params, state, kept, local.loss + loss, local.steps + 1)

    params = state if persistent else model.init(model_key)
    local = Local(params, optimizer.init(params), broadcast.params, jnp.float32(0.0), jnp.int32(0))
    local = for_each_batch(data_key, data, batch_size, epochs, step, local, last=steps)
    upload = signals(model, local.params, broadcast, labels, data, energy, cap, clip, upload_norm)
    return upload, local.params if persistent else state, Info.of_sum(local.loss, local.steps)

  def apply(params, x):
    if isinstance(params, jax.Array):
      return nearest(params, labels, model.num_classes, x)
    return model.apply(params, x)

  judged = model._replace(apply=apply)

  def check_examples(least, largest):
    remedy = "Scale them, or set bounded=False, here and of sgld (of particles pixels='free')."
    check_pixels("bounded", True, least, largest, remedy)

  def own_model(broadcast, state):
    return state if persistent else broadcast.params

  def init_broadcast(key):
    extra = jnp.zeros(len(labels)) if energy == "raw" else ()
    return Message(start_scale * jax.random.normal(key, (len(labels), *model.shape)), extra)

  return ClientUpdate(
    init_broadcast=init_broadcast,
    init=lambda key, broadcast, data, context: (
      model.init(jax.random.fold_in(key, context.client)) if persistent else ()
    ),
    update=update,
    loss=lambda broadcast, state, data, context: training_loss(judged, own_model(broadcast, state), data),
    personalize=lambda broadcast, state, *_: own_model(broadcast, state),
    apply=apply,
    task=model.task,
    global_model=lambda broadcast: broadcast.params,
    name="fedevg",
    studies=Studies(synthesize=lambda key, broadcast: (broadcast.params, labels)),
    needs=Needs(
      check_examples=check_examples if bounded else None, uploads_model=False, upload_norm=upload_norm
    ),
  )
