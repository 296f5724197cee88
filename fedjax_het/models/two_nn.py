"""TwoNN, the multilayer perceptron of federated learning, and its linear sibling.

Sources: McMahan et al., AISTATS 2017 ("2NN"); the authors' Federated-Learning-in-PyTorch,
src/models/twonn.py: inputs-200-200-C with ReLU.
"""

import math

import jax

from fedjax_het.models.base import Model, Params, dense, flatten, xavier


def two_nn(shape: tuple[int, ...] = (28, 28, 1), num_classes: int = 10, hidden: int = 200) -> Model:
  """f(x) = W3 relu(W2 relu(W1 x + b1) + b2) + b3; 199,210 parameters on MNIST.

  Args:
    shape: of one example, flattened row-major.
    num_classes: C, the number of logits.
    hidden: width of both hidden layers.
  """
  init = xavier({"fc1": (math.prod(shape), hidden), "fc2": (hidden, hidden), "fc3": (hidden, num_classes)})

  def apply(params: Params, x: jax.Array) -> jax.Array:
    h = jax.nn.relu(dense(params["fc1"], flatten(x)))
    h = jax.nn.relu(dense(params["fc2"], h))
    return dense(params["fc3"], h)

  return Model(init, apply, "two_nn")


def logistic_regression(shape: tuple[int, ...] = (15,), num_classes: int = 1) -> Model:
  """f(x) = W x + b; one logit for a binary task (16 parameters on Heart), C for C classes.

  Args:
    shape: of one example, flattened row-major.
    num_classes: the number of logits.
  """

  def apply(params: Params, x: jax.Array) -> jax.Array:
    return dense(params["fc"], flatten(x))

  return Model(xavier({"fc": (math.prod(shape), num_classes)}), apply, "logistic_regression")
