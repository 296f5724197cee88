"""TwoNN, the multilayer perceptron of federated learning; logistic regression; and an energy model.

Sources: McMahan et al., AISTATS 2017 ("2NN"); the authors' Federated-Learning-in-PyTorch,
src/models/twonn.py: inputs-200-200-C with ReLU. Energies: Grathwohl et al., ICLR 2020.
"""

import jax

from fedjax_het.models.layers.basic import Perceptron, network
from fedjax_het.models.model import Model
from fedjax_het.models.shapes import model_factory
from fedjax_het.settings import Count


@model_factory
def two_nn(
  shape: tuple[int, ...] = (28, 28, 1),
  num_classes: int = 10,
  hidden: Count = 200,
  layers: Count = 2,
  bias: bool = True,
) -> Model:
  """TwoNN, a multilayer perceptron: W3 relu(W2 relu(W1 x + b1) + b2) + b3; 199,210 parameters on MNIST.

  With `layers=3, bias=False` it is the model of the same name in SuPerFed's published code: 238,800
  parameters.

  Args:
    shape: shape of one example, which is flattened row-major.
    num_classes: C, the number of logits.
    hidden: width of the hidden layers.
    layers: number of hidden layers, at least 1.
    bias: whether layers have biases.

  Raises:
    SettingError: `hidden` or `layers` is below 1.
  """
  module = Perceptron((*[int(hidden)] * int(layers), num_classes), use_bias=bias)
  head = (f"fc{layers + 1}",)
  return Model(*network(module, shape), "two_nn", tuple(shape), num_classes, head=head)


@model_factory
def logistic_regression(shape: tuple[int, ...] = (15,), num_classes: int = 1) -> Model:
  """Logistic regression, f(x) = W x + b: one logit for a binary task (16 parameters on Heart), else C.

  Args:
    shape: shape of one example, which is flattened row-major.
    num_classes: the number of logits.
  """
  return Model(*network(Perceptron((num_classes,)), shape), "logistic_regression", tuple(shape), num_classes)


@model_factory
def energy_mlp(
  shape: tuple[int, ...] = (8, 8, 1),
  num_classes: int = 10,
  hidden: Count = 256,
  layers: Count = 2,
  spectral: bool = True,
) -> Model:
  """Energy MLP, D-hidden-...-hidden-C with Swish and a last layer of spectral norm 1, for smooth energies.

  A joint energy model, E(x, y) = -f(x)[y], E(x) = -log Σ_y exp f(x)[y], as FedEvg's clients train it (thesis,
  chapter IV): Swish makes the energy smooth in x, and the last layer's norm of 1 makes energies grow more
  slowly; the hidden layers' norms are unconstrained.

  Args:
    shape: shape of one example, which is flattened row-major to D numbers.
    num_classes: C, the number of logits.
    hidden: width of the hidden layers.
    layers: number of hidden layers, at least 1.
    spectral: whether the last layer's kernel is divided by its spectral norm.

  Raises:
    SettingError: `hidden` or `layers` is below 1.
  """
  module = Perceptron((*[int(hidden)] * int(layers), num_classes), jax.nn.swish, spectral=spectral)
  head = (f"fc{layers + 1}",)
  return Model(*network(module, shape), "energy_mlp", tuple(shape), num_classes, head=head)
