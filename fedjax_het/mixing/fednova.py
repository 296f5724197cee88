r"""FedNova: updates are divided by how much their local steps count, so that clients of many steps do not.

Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization, NeurIPS
2020, equations 8 and 9. With client i's update Δ_i after τ_i steps, whose gradients count a_i in all (τ_i for
plain SGD, see `LocalTraining.counted`), and p_i = n_i / n,

    θ <- θ + τ_eff Σ_i p_i Δ_i / a_i,      τ_eff = Σ_i p_i a_i.

Clients with equal a_i make it FedAvg. Running statistics are averaged by p.
"""

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_het.errors import SettingError
from fedjax_het.mixing.responses import beyond_one
from fedjax_het.mixing.static import shares_of_examples
from fedjax_het.parts import ClientUpdate, Feedback, Mixing, Needs
from fedjax_het.settings import checked


def normalised(p: jax.Array, counted: jax.Array) -> jax.Array:
  """Returns the scales s_i = τ_eff / a_i, float32 [S], 1 where a_i = 0.

  Args:
    p: the coefficients, float32 [S], with sum 1.
    counted: a_i >= 0, float32 [S].
  """
  effective = (p * counted).sum()
  return jnp.where(counted > 0, effective / jnp.where(counted > 0, counted, 1.0), 1.0)


@checked
def fednova() -> Mixing:
  """FedNova's mixing part, for client parts of local SGD whose `LocalTraining` says how its steps count.

  Raises:
    SettingError: (by `federated`) the client part does not say how its steps count; from `check_cohort`, the
      cohort has one client.
  """

  def adapt_to(client: ClientUpdate) -> Mixing:
    if client.training is None or client.training.counted is None:
      problem = f"needs to know how the steps add up, and {client.name} with this optimizer does not say it"
      raise SettingError("mixing", "fednova", problem, "Use a method of local SGD, such as fedavg.")
    counted = client.training.counted

    def scale(feedback: Feedback) -> jax.Array:
      assert feedback.steps is not None
      # One client at a time: over [S] the last bits of the momentum's powers depend on the number of devices.
      each = lax.map(lambda steps: counted(steps, feedback.round), feedback.steps)
      return normalised(shares_of_examples(feedback), each)

    return part._replace(scale=scale, adapt_to=None)

  def lonely(feedback: Feedback) -> jax.Array:
    problem = "asks the client part how its steps add up"
    raise SettingError("mixing", "fednova", problem, "Give it to fh.federated.")

  part = Mixing(
    lambda sizes: (), lambda state, feedback: (shares_of_examples(feedback), state), "fednova", lonely,
    needs=Needs(check_cohort=beyond_one), takes_absent=True, adapt_to=adapt_to,
  )  # fmt: skip
  return part
