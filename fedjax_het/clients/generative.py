"""FedCVAE and FedCGAN: a conditional generator, averaged like any model (FedAvg over another tree).

The baselines of the thesis's chapter IV. A client trains each part of the generator on that part's own loss,
with Adam, fresh each round; what it uploads and what the server averages by n_i is the whole tree.
"""

import jax
import jax.numpy as jnp
import optax

from fedjax_het.clients.fedevg import labels_of, nearest
from fedjax_het.clients.objective import adam, check_training, decayed, training_loss
from fedjax_het.clients.sgd import Local
from fedjax_het.clients.variant import variant_of
from fedjax_het.errors import SettingError, check_pixels, check_whole
from fedjax_het.local import for_each_batch
from fedjax_het.models.generative import GENERATORS, Generative
from fedjax_het.models.model import Model
from fedjax_het.parts import ClientUpdate, Info, Message


def generative(
  model: Generative,
  *,
  per_class: int = 10,
  lr: float = 1e-3,
  lr_decay: float = 0.9 ** (1 / 5),
  b1: float = 0.5,
  b2: float = 0.999,
  weight_decay: float = 1e-4,
  epochs: int = 1,
  steps: int | None = None,
  batch_size: int = 64,
  name: str = "generative",
) -> ClientUpdate:
  """The client part of a federated conditional generator.

  Evaluated as a classifier: by the nearest of `per_class` generated examples of a class, of always the same
  noise.

  Args:
    model: the generator.
    per_class: examples a class that the server generates to show and to judge.
    lr: Adam's step size in round 0.
    lr_decay: factor on it each round.
    b1: Adam's first decay.
    b2: Adam's second decay.
    weight_decay: added to the gradient before Adam.
    epochs: E, passes through a client's data each round.
    steps: at most so many local steps a round; None takes all.
    batch_size: B.
    name: name in tables.

  Raises:
    SettingError: a setting out of range, or a model that generates nothing; when a run is set up, examples
      beyond [0, 1], which is where it generates.
  """
  check_training(
    lr=lr, lr_decay=lr_decay, b1=b1, b2=b2, weight_decay=weight_decay, epochs=epochs, batch_size=batch_size
  )
  check_whole("per_class", per_class, 1)
  if steps is not None:
    check_whole("steps", steps, 1)
  if not isinstance(model, Generative):
    name = getattr(model, "name", type(model).__name__)
    raise SettingError("model", name, "generates nothing", f"Use one of {', '.join(GENERATORS)}.")
  labels = labels_of(model.num_classes, per_class)

  def update(key, broadcast, state, data, context):
    optimizer = adam(b1, b2, weight_decay)(decayed(lr, lr_decay, context.round))

    def step(local: Local, batch) -> Local:
      params, states, total = dict(local.params), dict(local.optimizer), local.loss
      for i, (part, loss) in enumerate(model.losses.items()):
        part_key = jax.random.fold_in(batch.key, i)

        def own_loss(own, params=params, part=part, loss=loss, part_key=part_key):
          return loss({**params, part: own}, batch.x, batch.y, batch.weight, part_key)

        value, gradient = jax.value_and_grad(own_loss)(params[part])
        updates, states[part] = optimizer.update(gradient, states[part], params[part])
        params[part] = optax.apply_updates(params[part], updates)
        total += value
      return Local(params, states, total, local.steps + 1)

    params = dict(broadcast.params)
    states = {part: optimizer.init(params[part]) for part in model.losses}
    local = Local(params, states, jnp.float32(0.0), jnp.int32(0))
    local = for_each_batch(key, data, batch_size, epochs, step, local, last=steps)
    return Message(local.params), state, Info(local.loss / local.steps, local.steps)

  def apply(params, x):
    examples = model.generate(params, jax.random.key(0), labels)
    return nearest(examples, labels, model.num_classes, x)

  def check_examples(least, largest):
    check_pixels("model", model.name, least, largest, "Scale them, or take one that is not `bounded`.")

  classifier = Model(model.init, apply, model.name, num_classes=model.num_classes)

  return ClientUpdate(
    share=lambda key: Message(model.init(key)),
    init=lambda *_: (),
    update=update,
    loss=lambda broadcast, state, data, context: training_loss(classifier, broadcast.params, data),
    personalize=lambda broadcast, *_: broadcast.params,
    apply=apply,
    globalize=lambda broadcast: broadcast.params,
    synthesize=lambda key, broadcast: (model.generate(broadcast.params, key, labels), labels),
    name=name,
    check_examples=check_examples if model.bounded else None,
  )


@variant_of(generative, "name")
def fedcvae(model: Generative, **settings) -> ClientUpdate:
  """FedCVAE's client part: `generative` of a conditional variational autoencoder."""
  return generative(model, name="fedcvae", **settings)


@variant_of(generative, "name")
def fedcgan(model: Generative, **settings) -> ClientUpdate:
  """FedCGAN's client part: `generative` of a conditional adversarial pair."""
  return generative(model, name="fedcgan", **settings)
