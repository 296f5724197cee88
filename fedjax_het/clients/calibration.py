r"""Losses calibrated by a client's own label counts, and the penalty on correlated features.

With n_c the client's training examples of class c, n = Σ_c n_c, and strength τ, cross entropy is taken of the
logits f'_c:

    logit_adjustment   f_c + τ log(n_c / n)     (Menon et al., ICLR 2021, equation 10; τ = 1 is the balanced
                                                softmax of Ren et al., NeurIPS 2020, equation 4)
    fedlc              f_c - τ n_c^(-1/4)       (Zhang et al., Federated Learning with Label Distribution Skew
                                                via Logits Calibration, ICML 2022, equation 7)
    fedrs              τ f_c if n_c = 0         (Li and Zhan, FedRS, KDD 2021, equation 5)

A class without examples has no part in the first two sums, as their limit n_c -> 0 says. FedLC's equation
sums over the other classes only, which is unbounded below; the label's own class is kept in the sum here.
FedRS's strength is its α, 1 for plain cross entropy.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_het.data.container import ClientData
from fedjax_het.errors import SettingError
from fedjax_het.local import Batch
from fedjax_het.models import Model
from fedjax_het.tasks import Task

NEVER = -1e9  # the logit of a class that takes no part

RULES: dict[str, Callable[[jax.Array, jax.Array, Any], jax.Array]] = {
  "logit_adjustment": lambda f, n, tau: jnp.where(
    n > 0, f + tau * jnp.log(jnp.maximum(n, 1) / n.sum()), NEVER
  ),
  "fedlc": lambda f, n, tau: jnp.where(n > 0, f - tau * jnp.maximum(n, 1.0) ** -0.25, NEVER),
  "fedrs": lambda f, n, tau: jnp.where(n > 0, f, tau * f),
}
"""Calibrations by name: (logits float32 [B, C], counts float32 [C], τ) -> calibrated logits [B, C]."""

BELOW_ONE = ("fedrs",)  # those whose strength is at most 1, with which they are plain cross entropy
LEAVING_OUT = ("logit_adjustment", "fedlc")  # those in which classes without examples have no part


def counts_of(data: ClientData, num_classes: int) -> jax.Array:
  """Returns n_c, the client's training examples of each class, float32 [C]."""
  rows = jnp.arange(data.limit)
  inside = rows < data.length
  _, y = data.take(jnp.where(inside, rows, 0))
  return jnp.zeros(num_classes).at[y].add(inside.astype(jnp.float32))


def check_method(name: str, model: Model, counted: bool = False) -> None:
  """Raises `SettingError` for a method of classes around a model of other labels; see `check_classes`."""
  check_classes("algorithm", name, model.task, model.num_classes, "Choose another method.", counted)


def check_classes(
  setting: str, value: Any, task: Task, num_classes: int, remedy: str = "Leave it out.", counted: bool = False
) -> None:
  """Raises `SettingError` unless the labels are one class of two or more logits.

  With `counted` the number of classes has to be known, so that a model may not leave it unspecified.
  """
  if counted and task.classes and num_classes == 0:
    problem = "needs the number of classes, and the model does not say its num_classes"
    raise SettingError(setting, value, problem, "Give the model num_classes.")
  if not task.classes or num_classes == 1:
    problem = f"goes by classes with a logit each, and the labels of {task.name} have none"
    raise SettingError(setting, value, problem, remedy)


def calibrated(task: Task, rule: str, tau: float | jax.Array, counts: jax.Array) -> Task:
  """Returns the task whose losses are of calibrated logits; metrics have the plain ones.

  Args:
    task: a task whose labels are classes, with one logit for each.
    rule: a name of `RULES`.
    tau: the strength τ.
    counts: n_c, float32 [C].
  """
  return task._replace(losses=lambda outputs, y: task.losses(RULES[rule](outputs, counts, tau), y))


def correlation(features: jax.Array, batch: Batch) -> jax.Array:
  """Computes ‖Corr(z)‖_F² / d², float32 scalar, of a batch's features z [B, d].

  Shi et al., Towards Understanding and Mitigating Dimensional Collapse in Heterogeneous Federated Learning,
  ICLR 2023, equation 6, with all entries of the correlation matrix. A feature of variance 0 correlates with
  nothing; a batch of fewer than two real examples gives 0.
  """
  real = batch.weight[:, None]
  count = real.sum()
  centered = (features - (features * real).sum(0) / jnp.maximum(count, 1.0)) * real
  variance = jnp.square(centered).sum(0) / jnp.maximum(count - 1.0, 1.0)
  scaled = centered * jax.lax.rsqrt(variance + 1e-8)
  # ‖ZᵀZ‖_F = ‖ZZᵀ‖_F, and a batch has fewer rows than features.
  gram = scaled @ scaled.T / jnp.maximum(count - 1.0, 1.0)
  return jnp.where(count > 1.0, jnp.square(gram).sum(), 0.0) / features.shape[1] ** 2
