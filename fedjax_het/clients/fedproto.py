r"""FedProto: clients share the mean feature of each class, and no parameters.

Tan et al., FedProto: Federated Prototype Learning across Heterogeneous Clients, AAAI 2022, equations 4 to 6.
With the features z of the client's own model, its prototypes are C_{i,c} = mean of z over its n_{i,c}
examples of class c, after local training. The server's are C_c = Σ_i n_{i,c} C_{i,c} / Σ_i n_{i,c} over the
cohort; a class that nobody of the cohort has keeps its last prototype. A client minimises

    F_i(θ_i) + λ mean_x ‖z - C_y‖² / d.

A class that no client has ever sent has no term. A client predicts the class of the nearest prototype, or by
its own head. The authors' code averages clients' prototypes alike; the paper's weights are used here.
"""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp

from fedjax_het import mixing, server
from fedjax_het.clients.calibration import check_method
from fedjax_het.clients.local_settings import LocalSettings
from fedjax_het.clients.one_model import one_model
from fedjax_het.clients.recipe import Recipe, check_plain_labels, recipe_of
from fedjax_het.clients.supervised import supervised
from fedjax_het.data.container import ClientData
from fedjax_het.errors import is_zero
from fedjax_het.local import sum_over_blocks, weighted_mean
from fedjax_het.models import Model
from fedjax_het.models.features import feature_size, with_features
from fedjax_het.parts import ClientUpdate, Message, Pooled
from fedjax_het.settings import Choice, NonNegative, checked

PyTree = Any


class Prototypes(NamedTuple):
  """A vector for each class, such as the mean feature or the mean logits of its examples.

  Attributes:
    mean: C_c, float32 [C, d].
    known: 1 for a class that some client has sent, else 0, float32 [C].
  """

  mean: jax.Array
  known: jax.Array


class Personal(NamedTuple):
  """A client's model for evaluation: its own, joined with statistics, and the prototypes."""

  model: PyTree
  prototypes: Prototypes


def sums_by_class(features: Any, data: ClientData, num_classes: int) -> tuple[jax.Array, jax.Array]:
  """Returns (Σ z of each class, float32 [C, d], number of examples n_c, float32 [C]) of a client's examples.

  Args:
    features: (x [B, ...]) -> z, float32 [B, d].
    data: the client's examples.
    num_classes: C.
  """

  def of(x: Any, y: jax.Array, inside: jax.Array) -> tuple[jax.Array, jax.Array]:
    own = jax.nn.one_hot(y, num_classes) * inside[:, None]
    return own.T @ features(x), own.sum(0)

  return sum_over_blocks(data, of)


def means_by_class(features: Any, data: ClientData, num_classes: int) -> tuple[jax.Array, jax.Array]:
  """Returns (mean z of each class, 0 where it has no examples, float32 [C, d]; n_c), see `sums_by_class`."""
  sums, counts = sums_by_class(features, data, num_classes)
  return sums / jnp.maximum(counts, 1.0)[:, None], counts


def sharing_means(
  recipe: Recipe,
  of: Callable[[PyTree, Any], jax.Array],
  size: Callable[[], int],
  term: Callable[..., Any] | None,
  **more: Any,
) -> ClientUpdate:
  """Returns local training of a model of each client's own, of which the means of z by class are shared.

  After local training a client uploads the mean of z over its examples of each class, weighted by their
  number; the broadcast's `pooled` is `Prototypes`. The part brings uniform mixing and `server.sgd`.

  Args:
    recipe: local training.
    of: (the client's model, joined with statistics, x [B, ...]) -> z, float32 [B, d].
    size: () -> d.
    term: see `one_model`; None for local training without a term.
    **more: `name`, and other arguments of `supervised`; by default the personalised model is the client's.
  """
  model = recipe.model

  def begin(broadcast, state, context):
    own = model.split(state)
    return own.params, own.stats

  training = one_model(recipe, begin=begin, term=term)

  def finish(broadcast, state, data, context, local):
    own = model.joined(local.params, local.stats)
    mean, counts = means_by_class(lambda x: of(own, x), data, model.num_classes)
    _, _, info = training.finish(broadcast, state, data, context, local)
    return Message((), pooled=Pooled(Prototypes(mean, jnp.ones_like(counts)), counts)), own, info

  def init_broadcast(key):
    count = model.num_classes
    return Message((), pooled=Prototypes(jnp.zeros((count, size())), jnp.zeros(count)))

  part = supervised(
    recipe, training._replace(finish=finish),
    **{"own_model": lambda broadcast, state, *_: state, **more},
    init_broadcast=init_broadcast, init=lambda key, *_: model.joined(model.init(key), model.stats),
  )  # fmt: skip
  brings = {"mixing": mixing.uniform(), "server": server.sgd()}
  return part._replace(needs=part.needs._replace(brings=brings))


@checked
def fedproto(
  model: Model,
  *,
  lam: NonNegative = 1.0,
  predict: Annotated[str, Choice(("prototypes", "head"))] = "prototypes",
  **local: Unpack[LocalSettings],
) -> ClientUpdate:
  """FedProto's client part; its state is the client's whole model. There is no global model.

  Args:
    model: the model that clients train; it has to name its head, a dense layer.
    lam: λ >= 0, weight of the distance to the prototypes; 0 leaves it out.
    predict: whether a client predicts by the nearest of the "prototypes" or by its own "head".
    **local: local training, see `LocalSettings`.

  Raises:
    SettingError: a setting is out of range, the labels are no classes, or `mixup` is given; when a run is set
      up, the model has no linear head.
  """
  recipe = recipe_of(model, local)
  check_method("fedproto", model, counted=True)
  if not is_zero(lam):
    check_plain_labels(recipe, "fedproto")

  def term(broadcast, state, context):
    prototypes: Prototypes = broadcast.pooled

    def pull(params, seen):
      squares = jnp.square(seen.features - prototypes.mean[seen.batch.y]).mean(-1)
      return lam * weighted_mean(prototypes.known[seen.batch.y] * squares, seen.batch.weight)

    return pull

  def apply(params: Any, x: jax.Array) -> jax.Array:
    seen = with_features(model).logits(params.model, x)
    if predict == "head":
      return seen.outputs
    away = jnp.square(seen.features[:, None] - params.prototypes.mean).sum(-1)
    return jnp.where(params.prototypes.known > 0, -away, -1e9)

  made = sharing_means(
    recipe, lambda own, x: with_features(model).logits(own, x).features, lambda: feature_size(model),
    None if is_zero(lam) else term, name="fedproto", apply=apply,
    own_model=lambda broadcast, state, *_: Personal(state, broadcast.pooled),
  )  # fmt: skip
  return made._replace(studies=made.studies._replace(prototypes=lambda broadcast: tuple(broadcast.pooled)))
