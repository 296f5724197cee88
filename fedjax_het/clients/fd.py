r"""FD: clients share the mean logits of each class, and no parameters.

Jeong et al., Communication-Efficient On-Device Machine Learning: Federated Distillation and Augmentation
under Non-IID Private Data, 2018, section 2. After local training a client sends, for each class c that it
has, the mean of its logits f over its n_{i,c} examples of c; the server's are Σ_i n_{i,c} f_{i,c} / Σ_i
n_{i,c} over the cohort, f̄_c, and a class that nobody of the cohort has keeps its last one. A client minimises

    F_i(θ_i) + λ mean_x d(f(x), f̄_y),

where d is the cross entropy of softmax(f) with the probabilities softmax(f̄_y), or ‖f - f̄_y‖² / C. A class
that no client has ever sent has no term. The paper averages the logits seen during training, and leaves a
client's own ones out. Other libraries have either d; no code of the authors was at hand.
"""

from collections.abc import Callable
from typing import Annotated, Unpack

import jax
import jax.numpy as jnp

from fedjax_het.clients.calibration import check_method
from fedjax_het.clients.fedproto import Prototypes, sharing_means
from fedjax_het.clients.local_settings import LocalSettings
from fedjax_het.clients.recipe import check_plain_labels, recipe_of
from fedjax_het.errors import is_zero
from fedjax_het.local import weighted_mean
from fedjax_het.models import Model
from fedjax_het.parts import ClientUpdate
from fedjax_het.settings import Choice, NonNegative, checked

DISTANCES: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {  # of logits [B, C] from the shared ones
  "cross_entropy": lambda f, mean: -(jax.nn.softmax(mean) * jax.nn.log_softmax(f)).sum(-1),
  "squared": lambda f, mean: jnp.square(f - mean).mean(-1),
}


@checked
def fd(
  model: Model,
  *,
  lam: NonNegative = 1.0,
  distance: Annotated[str, Choice(DISTANCES)] = "cross_entropy",
  **local: Unpack[LocalSettings],
) -> ClientUpdate:
  """FD's client part; its state is the client's whole model. There is no global model.

  Args:
    model: the model that clients train; it has to name its head.
    lam: λ >= 0, weight of the distance to the mean logits; 0 leaves it out and is local training.
    distance: d: "cross_entropy", the paper's, or "squared".
    **local: local training, see `LocalSettings`.

  Raises:
    SettingError: a setting is out of range, the labels are no classes, or `mixup` is given.
  """
  recipe = recipe_of(model, local)
  check_method("fd", model, counted=True)
  if not is_zero(lam):
    check_plain_labels(recipe, "fd")

  def term(broadcast, state, context):
    shared: Prototypes = broadcast.pooled

    def pull(params, seen):
      away = DISTANCES[distance](seen.outputs, shared.mean[seen.batch.y])
      return lam * weighted_mean(shared.known[seen.batch.y] * away, seen.batch.weight)

    return pull

  return sharing_means(
    recipe, model.logits, lambda: model.num_classes, None if is_zero(lam) else term, name="fd"
  )
