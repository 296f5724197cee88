r"""FedBN: normalisation layers, with their running statistics, are each client's own; all else is FedAvg.

Li, Jiang, Zhang, Kamp, Dou, FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR
2021, algorithm 1. A normalisation layer is one that has a parameter `scale`, whatever its name. There is no
global model, unless the model has no such layers: then the method is FedAvg.
"""

from typing import Any, NamedTuple, Unpack

import jax
from flax import traverse_util

from fedjax_het.clients.heads import joined
from fedjax_het.clients.local_settings import LocalSettings
from fedjax_het.clients.one_model import one_model
from fedjax_het.clients.recipe import recipe_of
from fedjax_het.clients.supervised import supervised
from fedjax_het.models import Model
from fedjax_het.parts import ClientUpdate, Message
from fedjax_het.settings import checked

PyTree = Any


class Norms(NamedTuple):
  """Client state: parameters of its normalisation layers, and the model's running statistics."""

  params: PyTree
  stats: PyTree


def parted(params: PyTree) -> tuple[PyTree, PyTree]:
  """Splits a model's parameters, nested dicts, into (normalisation layers, all others)."""
  flat = traverse_util.flatten_dict(params)
  layers = {path[:-1] for path in flat if path[-1] == "scale"}
  norms = {path: own for path, own in flat.items() if path[:-1] in layers}
  rest = {path: own for path, own in flat.items() if path not in norms}
  return traverse_util.unflatten_dict(norms), traverse_util.unflatten_dict(rest)


@checked
def fedbn(model: Model, **local: Unpack[LocalSettings]) -> ClientUpdate:
  """FedBN's client part; its state is the client's normalisation layers with their running statistics.

  Args:
    model: the model that clients train.
    **local: local training, see `LocalSettings`.

  Raises:
    SettingError: a setting is out of range.
  """
  recipe = recipe_of(model, local)
  norms = jax.eval_shape(lambda key: parted(model.init(key))[0], jax.random.key(0))
  personal = bool(jax.tree.leaves((norms, model.stats)))

  def begin(broadcast: Message, state: Norms, context: Any) -> tuple[PyTree, PyTree]:
    return joined(broadcast.params, state.params), state.stats

  def finish(broadcast, state, context, local):
    own, shared = parted(local.params)
    return Message(shared), Norms(own, local.stats)

  def own_model(broadcast: Message, state: Norms, *_) -> PyTree:
    return model.joined(*begin(broadcast, state, None))

  made = supervised(
    recipe, one_model(recipe, begin=begin, finish=finish), own_model, name="fedbn",
    init_broadcast=lambda key: Message(parted(model.init(key))[1]),
    init=lambda key, *_: Norms(parted(model.init(key))[0], model.stats),
    global_model=None if personal else lambda broadcast: broadcast.params,
  )  # fmt: skip

  def remarks(data):
    yield from recipe.remarks(data)
    if not personal:
      yield f"algorithm.name = fedbn: {model.name} has no normalisation layers, and so this is FedAvg."

  return made._replace(needs=made.needs._replace(remarks=remarks))
