r"""FedDisco: clients whose labels are spread like all clients' count more.

Ye et al., FedDisco: Federated Learning with Discrepancy-Aware Collaboration, ICML 2023, equation 8. With
client i's discrepancy d_i between its label distribution and a target,

    p_i ∝ max(n_i / n - a d_i + b, 0),

n_i / n over the cohort; p_i = n_i / n where all are 0. As in the authors' code the KL divergences of the
cohort are divided by their sum.
"""

from typing import Annotated

import jax
import jax.numpy as jnp
from numpy.typing import ArrayLike

from fedjax_het.errors import checked_counts
from fedjax_het.mixing.responses import beyond_one
from fedjax_het.mixing.static import shares_of_examples
from fedjax_het.parts import Feedback, Mixing, Needs, Release
from fedjax_het.settings import Choice, NonNegative, checked


def discrepancies(counts: ArrayLike, target: str) -> jax.Array:
  """Computes KL(a client's label distribution ‖ the target), float32 [K], from label counts [K, C].

  Args:
    counts: examples of each class of each client, int [K, C].
    target: "even" over the classes, or "global", the distribution of all clients' labels.
  """
  own = jnp.asarray(counts, jnp.float32)
  share = own / jnp.maximum(own.sum(1, keepdims=True), 1.0)
  aim = jnp.full(own.shape[1], 1.0 / own.shape[1]) if target == "even" else own.sum(0) / own.sum()
  ratio = jnp.where(share > 0, share, 1.0) / jnp.where(share > 0, aim, 1.0)
  return (share * jnp.log(ratio)).sum(1)


@checked
def feddisco(
  counts: ArrayLike, a: NonNegative = 0.5, b: NonNegative = 0.1,
  target: Annotated[str, Choice(("even", "global"))] = "even",
) -> Mixing:  # fmt: skip
  """FedDisco's mixing part.

  Args:
    counts: examples of each class that each client trains on, int [K, C]; configurations give the data's.
    a: a >= 0, weight of the discrepancy; 0 with b = 0 is static mixing.
    b: b >= 0, added to each coefficient.
    target: the distribution from which discrepancies are measured: "even" over the classes, or "global".

  Raises:
    SettingError: `counts` are not [K, C] numbers >= 0, have a client without examples, or are fractions; a
      setting is out of range; from `check_cohort`, the cohort has one client.
  """
  if not isinstance(counts, jax.core.Tracer):
    checked_counts(counts)
  d = discrepancies(counts, target)

  def update(state, feedback: Feedback):
    static = shares_of_examples(feedback)
    here = jnp.ones_like(static, bool) if feedback.present is None else feedback.present
    own = jnp.where(here, d[feedback.cohort], 0.0)
    own = own / jnp.where(own.sum() > 0, own.sum(), 1.0)
    found = jnp.where(here, jax.nn.relu(static - a * own + b), 0.0)
    return jnp.where(found.sum() > 0, found / jnp.where(found.sum() > 0, found.sum(), 1.0), static), state

  return Mixing(
    lambda sizes: (),
    update,
    "feddisco",
    needs=Needs(
      num_clients=jnp.asarray(counts).shape[0], check_cohort=beyond_one, releases=(Release("label counts"),)
    ),
    takes_absent=True,
  )
