r"""Fine-tuning at evaluation: each client's model is trained on before it is judged.

Wang et al., Federated Evaluation of On-Device Personalization, 2019; Collins et al., FedAvg with Fine Tuning:
Local Updates Lead to Representation Learning, NeurIPS 2022. Training rounds stay as they are. At an
evaluation a copy of the client's model, that of `ClientUpdate.personalize`, takes E epochs of SGD on F_i. The
draws of these epochs depend on the client and the round alone.
"""

from typing import Annotated, Any, Unpack, cast

import jax

from fedjax_het.clients import sgd
from fedjax_het.clients.heads import joined as joined_layers
from fedjax_het.clients.heads import parting, with_rest_fixed
from fedjax_het.clients.local_settings import OF_RATE, LocalSettings
from fedjax_het.clients.recipe import recipe_of
from fedjax_het.data.container import FederatedData
from fedjax_het.errors import SettingError
from fedjax_het.models import Model
from fedjax_het.parts import ClientUpdate, Context, Message
from fedjax_het.settings import Choice, Count, Default, checked, with_defaults

PyTree = Any
KEY = 1_000_033  # of the draws of fine-tuning
Layers = Annotated[str, Choice(("all", "head", "body"))]


class FinetuneSettings(LocalSettings, total=False):
  """Local training of fine-tuning: `LocalSettings` with another default.

  Attributes:
    epochs: E, passes over the client's training examples.
  """

  epochs: Annotated[Count, Default(5)]  # type: ignore[misc]


@checked
def finetuned(
  client: ClientUpdate, *, layers: Layers = "all", **local: Unpack[FinetuneSettings]
) -> ClientUpdate:
  """Returns a client part whose personalised models are fine-tuned before they are evaluated.

  Args:
    client: any client part that evaluates parameters of one model.
    layers: which layers are trained: "all", those of the model's "head", or those of its "body".
    **local: local training, see `LocalSettings`, with 5 epochs by default, at the rate η = lr: without
      `lr_decay`, `schedule`, `schedule_rounds` and `warmup`, which go by rounds.

  Raises:
    SettingError: the client part evaluates other things than the parameters of one model; a setting is out of
      range, or goes by rounds.
  """
  model = client.studies.model
  if not isinstance(model, Model):
    problem = f"fine-tunes the parameters of one model, which {client.name} does not evaluate"
    raise SettingError("finetune", dict(local), problem, "Leave it out.")
  for name in OF_RATE:
    if name in local:
      problem = "goes by the rounds of a run, and fine-tuning begins anew at each evaluation"
      raise SettingError(name, local[name], problem, "Leave it out, and set lr.")  # type: ignore[literal-required]
  recipe = recipe_of(model, cast(LocalSettings, with_defaults(FinetuneSettings, local)))
  part = parting(model, "") if layers != "all" else None

  def personalize(broadcast: Message, state: PyTree, data: Any, context: Context, lam: jax.Array) -> PyTree:
    params, stats = model.split(client.personalize(broadcast, state, data, context, lam))
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(KEY), context.client), context.round)
    tx, own, fixed, trained = recipe.optimizer(context._replace(round=0)), params, None, recipe
    if part is not None:
      body, head = part(params)
      own, fixed = (head, body) if layers == "head" else (body, head)
      trained = recipe._replace(model=with_rest_fixed(model, fixed))
    done = sgd.run_steps(key, trained, data, sgd.start(own, stats, tx), tx)
    return model.joined(done.params if fixed is None else joined_layers(done.params, fixed), done.stats)

  def remarks(data: FederatedData):
    return dict.fromkeys((*client.needs.remarks(data), *recipe.remarks(data)))

  sees = tuple(dict.fromkeys((*client.needs.sees_data, "personalize")))
  return client._replace(
    personalize=personalize,
    name=f"{client.name}_ft",
    needs=client.needs._replace(sees_data=sees, remarks=remarks),
  )
