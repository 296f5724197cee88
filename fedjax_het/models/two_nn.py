"""TwoNN, the multilayer perceptron of federated learning, and its linear sibling.

Sources: McMahan et al., AISTATS 2017 ("2NN"); the authors' Federated-Learning-in-PyTorch,
src/models/twonn.py: inputs-200-200-C with ReLU.
"""

import itertools
import math

import jax

from fedjax_het.errors import check_range
from fedjax_het.models.base import Model, Params, dense, flatten, xavier


def two_nn(
  shape: tuple[int, ...] = (28, 28, 1),
  num_classes: int = 10,
  hidden: int = 200,
  layers: int = 2,
  bias: bool = True,
) -> Model:
  """f(x) = W3 relu(W2 relu(W1 x + b1) + b2) + b3; 199,210 parameters on MNIST.

  With `layers=3, bias=False` the model of the same name in SuPerFed's published code: 238,800 parameters.

  Args:
    shape: of one example, flattened row-major.
    num_classes: C, the number of logits.
    hidden: width of the hidden layers.
    layers: number of hidden layers, at least 1.
    bias: whether layers have biases.

  Raises:
    SettingError: `hidden` or `layers` is below 1.
  """
  check_range("hidden", hidden, 1)
  check_range("layers", layers, 1)
  widths = [math.prod(shape), *[hidden] * layers, num_classes]
  names = [f"fc{i + 1}" for i in range(layers + 1)]
  init = xavier(dict(zip(names, itertools.pairwise(widths))), bias)

  def apply(params: Params, x: jax.Array) -> jax.Array:
    h = flatten(x)
    for name in names[:-1]:
      h = jax.nn.relu(dense(params[name], h))
    return dense(params[names[-1]], h)

  return Model(init, apply, "two_nn", tuple(shape), num_classes)


def logistic_regression(shape: tuple[int, ...] = (15,), num_classes: int = 1) -> Model:
  """f(x) = W x + b; one logit for a binary task (16 parameters on Heart), C for C classes.

  Args:
    shape: of one example, flattened row-major.
    num_classes: the number of logits.
  """

  def apply(params: Params, x: jax.Array) -> jax.Array:
    return dense(params["fc"], flatten(x))

  init = xavier({"fc": (math.prod(shape), num_classes)})
  return Model(init, apply, "logistic_regression", tuple(shape), num_classes)
