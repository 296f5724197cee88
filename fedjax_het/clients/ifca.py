r"""IFCA: several models, of which each client chooses the one that fits its data and trains it.

Ghosh, Chung, Yin, Ramchandran, An Efficient Framework for Clustered Federated Learning, NeurIPS 2020,
algorithm 1, model averaging. The server broadcasts θ_1, ..., θ_M. Client i takes

    m_i = argmin_m F_i(θ_m),

trains θ_{m_i} locally and uploads it; θ_m becomes the mean of the models that were trained from it, weighted
by n_i, and stays where nobody chose it. A client is evaluated with the model that it would choose. The models
start from different draws, for models that start alike would stay alike.
"""

from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp

from fedjax_het import mixing, server
from fedjax_het.clients.addressed import copies, pick
from fedjax_het.clients.local_settings import LocalSettings
from fedjax_het.clients.objective import training_loss
from fedjax_het.clients.one_model import one_model
from fedjax_het.clients.recipe import recipe_of
from fedjax_het.clients.supervised import supervised
from fedjax_het.models import Model
from fedjax_het.parts import ClientUpdate, LocalTraining, Message, Pooled
from fedjax_het.settings import Count, checked

PyTree = Any


class Chosen(NamedTuple):
  """State of local training: which of the models the client chose, -1 before, and that model's training."""

  cluster: jax.Array
  local: Any


@checked
def ifca(model: Model, *, models: Count = 2, **local: Unpack[LocalSettings]) -> ClientUpdate:
  """IFCA's client part; clients keep nothing, and there is no global model.

  The figures `share_0`, `share_1`, ... of a round are the shares of the cohort that chose each model.

  Args:
    model: the model that clients train.
    models: M >= 1, the number of models; 1 is FedAvg.
    **local: local training, see `LocalSettings`.

  Raises:
    SettingError: a setting is out of range.
  """
  recipe = recipe_of(model, local)

  def choice(broadcast: Message, data: Any) -> jax.Array:
    losses = jax.lax.map(lambda own: training_loss(model, model.joined(*own), data), broadcast.pooled)
    return jnp.argmin(jnp.where(jnp.isfinite(losses), losses, jnp.inf)).astype(jnp.int32)

  plain = one_model(recipe)

  def start(broadcast, state, context) -> Chosen:
    params, stats = pick(broadcast.pooled, jnp.int32(0))
    return Chosen(jnp.int32(-1), plain.start(Message(params, stats=stats), (), context))

  def run_steps(key, broadcast, state, data, context, work: Chosen, first, last) -> Chosen:
    # The choice needs the data, which `start` does not see. Later pieces of the walk keep the first one's.
    def begin() -> Chosen:
      cluster = choice(broadcast, data)
      params, stats = pick(broadcast.pooled, cluster)
      return Chosen(cluster, plain.start(Message(params, stats=stats), (), context))

    work = jax.lax.cond(work.cluster < 0, begin, lambda: work)
    params, stats = pick(broadcast.pooled, work.cluster)
    message = Message(params, stats=stats)
    return work._replace(local=plain.run_steps(key, message, (), data, context, work.local, first, last))

  def finish(broadcast, state, data, context, work: Chosen):
    params, stats = pick(broadcast.pooled, work.cluster)
    upload, _, info = plain.finish(Message(params, stats=stats), (), data, context, work.local)
    weights = jax.nn.one_hot(work.cluster, models) * jnp.float32(data.length)
    values = copies((upload.params, upload.stats), models)
    shares = {f"share_{m}": jnp.float32(work.cluster == m) for m in range(models)}
    return Message((), pooled=Pooled(values, weights)), state, info._replace(figures=shares)

  def init_broadcast(key):
    params = jax.vmap(model.init)(jax.random.split(key, models))
    return Message((), pooled=(params, copies(model.stats, models)))

  def own_model(broadcast: Message, data: Any) -> PyTree:
    return model.joined(*pick(broadcast.pooled, choice(broadcast, data)))

  made = supervised(
    recipe, LocalTraining(recipe.steps, start, run_steps, finish, recipe.gradients),
    lambda broadcast, *_: model.joined(*pick(broadcast.pooled, jnp.int32(0))), name="ifca",
    init_broadcast=init_broadcast,
  )  # fmt: skip

  def membership(broadcast: Message, state: PyTree, data: Any, context: Any) -> jax.Array:
    return jax.nn.one_hot(choice(broadcast, data), models)

  return made._replace(
    studies=made.studies._replace(membership=membership),
    personalize=lambda broadcast, state, data, context, lam: own_model(broadcast, data),
    loss=lambda broadcast, state, data, context: training_loss(model, own_model(broadcast, data), data),
    needs=made.needs._replace(
      brings={"mixing": mixing.uniform(), "server": server.sgd()}, sees_data=("personalize",),
      upload_bits=lambda upload: 32 + sum(
        8 * leaf.dtype.itemsize * (leaf.size // models) for leaf in jax.tree.leaves(upload.pooled.values)
      ),
    ),
  )  # fmt: skip
