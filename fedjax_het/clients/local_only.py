r"""Local training alone: nothing travels, and every client trains a model of its own from the same start.

It is the first row of comparisons of personalised methods: what clients gain by federation is the distance
from it.
"""

from typing import Unpack

from fedjax_het import mixing, server
from fedjax_het.clients.local_settings import LocalSettings
from fedjax_het.clients.one_model import one_model
from fedjax_het.clients.recipe import recipe_of
from fedjax_het.clients.supervised import supervised
from fedjax_het.models import Model
from fedjax_het.parts import ClientUpdate, Message
from fedjax_het.settings import checked


@checked
def local_only(model: Model, **local: Unpack[LocalSettings]) -> ClientUpdate:
  """Client part that trains each client's own model and sends nothing; its state is that model.

  There is no global model. Mixing and server have nothing to do, so that no others can be chosen.

  Args:
    model: the model that clients train.
    **local: local training, see `LocalSettings`.

  Raises:
    SettingError: a setting is out of range.
  """
  recipe = recipe_of(model, local)

  def begin(broadcast, state, context):
    own = model.split(state)
    return own.params, own.stats

  def finish(broadcast, state, context, local):
    return Message(()), model.joined(local.params, local.stats)

  part = supervised(
    recipe, one_model(recipe, begin=begin, finish=finish), lambda broadcast, state, *_: state, name="local",
    init_broadcast=lambda key: Message(()),
    init=lambda key, *_: model.joined(model.init(key), model.stats),
  )  # fmt: skip
  return part._replace(needs=part.needs._replace(brings={"mixing": mixing.uniform(), "server": server.sgd()}))
