"""FedCVAE and FedCGAN: conditional generative models trained by FedAvg.

They are baselines of the thesis's chapter IV. A client trains each part of the generative model on the part's
loss with Adam, whose state is reset each round; the whole parameter tree is uploaded, and the server averages
it by n_i.
"""

from typing import Unpack

import jax
import jax.numpy as jnp
import optax

from fedjax_het.clients.fedevg import labels_of, nearest
from fedjax_het.clients.local_settings import AdamSettings, adam_training
from fedjax_het.clients.objective import training_loss
from fedjax_het.clients.sgd import Local
from fedjax_het.clients.variant import variant_of
from fedjax_het.errors import SettingError, check_pixels
from fedjax_het.local import for_each_batch
from fedjax_het.models.model import Model
from fedjax_het.models.zoo.generative import GENERATORS, Generative
from fedjax_het.parts import ClientUpdate, Info, Message, Needs, Studies
from fedjax_het.settings import Count, Decay, checked


@checked
def generative(
  model: Generative,
  *,
  per_class: Count = 10,
  lr_decay: Decay = 0.9 ** (1 / 5),
  name: str = "generative",
  **local: Unpack[AdamSettings],
) -> ClientUpdate:
  """Client part of a federated conditional generative model.

  It is evaluated as a nearest-neighbour classifier on `per_class` generated examples per class, made from
  fixed noise.

  Args:
    model: the generative model.
    per_class: examples per class that the server generates for display and evaluation.
    lr_decay: factor on the learning rate per round, in (0, 1].
    name: name of the method in tables.
    **local: local training, see `AdamSettings`.

  Raises:
    SettingError: a setting is out of range, or the model is not generative; when a run is set up, examples
      lie outside [0, 1], the range of a bounded model's outputs.
  """
  local, optimizer_of = adam_training(local, lr_decay)
  epochs, steps, batch_size = local["epochs"], local["steps"], local["batch_size"]
  if not isinstance(model, Generative):
    name = getattr(model, "name", type(model).__name__)
    raise SettingError("model", name, "generates nothing", f"Use one of {', '.join(GENERATORS)}.")
  labels = labels_of(model.num_classes, per_class)

  def update(key, broadcast, state, data, context):
    optimizer = optimizer_of(context)

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
