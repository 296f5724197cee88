"""FedCVAE and FedCGAN: conditional generative models trained by FedAvg.

They are baselines of the thesis's chapter IV. A client trains each part of the generative model on the part's
loss with Adam, whose state is reset each round; the whole parameter tree is uploaded, and the server averages
it by n_i.
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
from fedjax_het.models.model import Model
from fedjax_het.models.zoo.generative import GENERATORS, Generative
from fedjax_het.parts import ClientUpdate, Info, Message, Needs, Studies


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
  """Client part of a federated conditional generative model.

  It is evaluated as a nearest-neighbour classifier on `per_class` generated examples per class, made from
  fixed noise.

  Args:
    model: the generative model.
    per_class: examples per class that the server generates for display and evaluation.
    lr: Adam's learning rate in round 0.
    lr_decay: factor on the learning rate per round.
    b1: Adam's β₁, decay of the first moment.
    b2: Adam's β₂, decay of the second moment.
    weight_decay: L2 coefficient, added to the gradient before Adam.
    epochs: E, epochs of local training per round.
    steps: maximum number of local steps per round; None for no limit.
    batch_size: B, local mini-batch size.
    name: name of the method in tables.

  Raises:
    SettingError: a setting is out of range, or the model is not generative; when a run is set up, examples
      lie outside [0, 1], the range of a bounded model's outputs.
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
    return Message(local.params), state, Info.of_sum(local.loss, local.steps)

  def apply(params, x):
    examples = model.generate(params, jax.random.key(0), labels)
    return nearest(examples, labels, model.num_classes, x)

  def check_examples(least, largest):
    check_pixels("model", model.name, least, largest, "Scale them, or take one that is not `bounded`.")

  classifier = Model(model.init, apply, model.name, num_classes=model.num_classes)

  return ClientUpdate(
    init_broadcast=lambda key: Message(model.init(key)),
    init=lambda *_: (),
    update=update,
    loss=lambda broadcast, state, data, context: training_loss(classifier, broadcast.params, data),
    personalize=lambda broadcast, *_: broadcast.params,
    apply=apply,
    global_model=lambda broadcast: broadcast.params,
    name=name,
    studies=Studies(
      synthesize=lambda key, broadcast: (model.generate(broadcast.params, key, labels), labels)
    ),
    needs=Needs(check_examples=check_examples if model.bounded else None),
  )


@variant_of(generative, "name")
def fedcvae(model: Generative, **settings) -> ClientUpdate:
  """FedCVAE's client part: `generative` with a conditional variational autoencoder."""
  return generative(model, name="fedcvae", **settings)


@variant_of(generative, "name")
def fedcgan(model: Generative, **settings) -> ClientUpdate:
  """FedCGAN's client part: `generative` with a conditional adversarial pair."""
  return generative(model, name="fedcgan", **settings)
