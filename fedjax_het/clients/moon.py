r"""MOON: the features of the trained model stay near the received model's and away from the previous one's.

Li, He, Song, Model-Contrastive Federated Learning, CVPR 2021, equations 3 and 4. With features z of the
trained model, z_g of the received one, z_p of the client's model after its last round, and temperature T,

    L = L_task + μ mean_x -log( e^{cos(z, z_g)/T} / (e^{cos(z, z_g)/T} + e^{cos(z, z_p)/T}) ).

z is the input of the model's last layer. The authors' comparisons add a projection head to the model of every
method; add it to the model to do as they do.
"""

from typing import Unpack

import jax
import jax.numpy as jnp

from fedjax_het.clients.local_settings import LocalSettings
from fedjax_het.clients.one_model import one_model
from fedjax_het.clients.recipe import recipe_of
from fedjax_het.clients.supervised import received, supervised
from fedjax_het.errors import is_zero
from fedjax_het.local import weighted_mean
from fedjax_het.models import Model
from fedjax_het.models.features import with_features
from fedjax_het.parts import ClientUpdate, Message
from fedjax_het.settings import NonNegative, Positive, checked


def cosine(a: jax.Array, b: jax.Array) -> jax.Array:
  """Computes the cosine of the angle between the rows of a and b, float32 [B]; 0 where a row is 0."""
  squares = jnp.square(a).sum(-1) * jnp.square(b).sum(-1)
  return (a * b).sum(-1) * jax.lax.rsqrt(jnp.maximum(squares, 1e-16))


def contrast(z: jax.Array, near: jax.Array, far: jax.Array, temperature: float | jax.Array) -> jax.Array:
  """Computes -log(e^{cos(z, near)/T} / (e^{cos(z, near)/T} + e^{cos(z, far)/T})), float32 [B], of [B, d]."""
  return jax.nn.softplus((cosine(z, far) - cosine(z, near)) / temperature)


@checked
def moon(
  model: Model, *, mu: NonNegative = 1.0, temperature: Positive = 0.5, **local: Unpack[LocalSettings]
) -> ClientUpdate:
  """MOON's client part; its state is the client's model after its last round.

  Before its first round that is the run's first broadcast.

  Args:
    model: the model that clients train; it has to name its head.
    mu: μ >= 0, weight of the contrastive term, in the paper 1 to 10; 0 leaves it out and is FedAvg.
    temperature: T > 0, of the term.
    **local: local training, see `LocalSettings`.

  Raises:
    SettingError: a setting is out of range; when a run is set up, the model has no features.
  """
  recipe, plain = recipe_of(model, local), is_zero(mu)

  def term(broadcast, state, context):
    def apart(params, seen):
      featured = with_features(model)
      near, far = (featured.logits(own, seen.batch.x).features for own in (received(model)(broadcast), state))
      return mu * weighted_mean(contrast(seen.features, near, far, temperature), seen.batch.weight)

    return apart

  def finish(broadcast, state, context, local):
    return Message(local.params, stats=local.stats), model.joined(local.params, local.stats)

  part = supervised(
    recipe, one_model(recipe) if plain else one_model(recipe, term=term, finish=finish), name="moon",
    init=lambda key, broadcast, *_: () if plain else received(model)(broadcast),
  )  # fmt: skip
  if plain:
    part = part._replace(needs=part.needs.without_effect("mu = 0", temperature=(temperature, 0.5)))
  return part
