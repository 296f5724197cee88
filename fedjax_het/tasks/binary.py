"""Yes or no by one logit, P(y = 1) = sigmoid: classification with two classes, where yes may weigh more."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.tasks.classification import classification, cross_entropy
from fedjax_het.tasks.labels import check_classes, check_shape, labels_of
from fedjax_het.tasks.task import Task, check_weights


def binary(positive_weight: float | jax.Array = 1.0) -> Task:
  """Labels 0 and 1, told apart by one logit, [B, 1].

  Args:
    positive_weight: w > 0, what the loss of an example with y = 1 is multiplied by in training: that of a
      batch is -(Σ_{y=0} log P(0) + w·Σ_{y=1} log P(1)) / B. Metrics weigh all examples alike.

  Raises:
    SettingError: a weight that is not one number above 0.
  """
  check_weights("positive_weight", positive_weight, (0,), above=0.0)
  base = classification()

  def losses(logits: jax.Array, y: jax.Array) -> tuple[jax.Array, None]:
    return jnp.where(y == 1, positive_weight, 1.0) * cross_entropy(logits, y), None

  def check_outputs(y: np.ndarray, rows: np.ndarray, shape: tuple[int, ...], num_classes: int) -> None:
    check_shape("binary", shape, "[B, 1]", shape == (1,))
    base.check_outputs(y, rows, shape, num_classes)

  def check(y: np.ndarray, num_examples: int, rows: np.ndarray, num_classes: int | None = None) -> None:
    base.check(y, num_examples, rows, num_classes and 2)

  return base._replace(
    name="binary", check=check, losses=losses, check_outputs=check_outputs, outputs=lambda num_classes: 1
  )


def balanced_positive(y: np.ndarray) -> float | tuple[float, ...]:
  """The weight n_0 / n_1 with which yes and no count alike; 1 where all are alike.

  Args:
    y: labels 0 and 1, int [n] or several an example, [n, A], for each of which there is one; of all clients'
      training examples.
  """
  y = labels_of(y)
  check_classes(y, 2, np.arange(len(y)), ", no and yes")
  yes = np.sum(y == 1, axis=0)
  no = len(y) - yes
  return np.where((yes > 0) & (no > 0), no / np.maximum(yes, 1), 1.0).tolist()
