"""Classification, regression and generative models as pairs of pure functions, looked up by name."""

import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any

from fedjax_het.errors import check_choice, check_whole
from fedjax_het.models.from_flax import from_flax
from fedjax_het.models.model import Model, count_parameters, standardized
from fedjax_het.models.shapes import check_reads
from fedjax_het.models.transforms import freeze, frozen, lora, merged
from fedjax_het.models.weights.files import check_file
from fedjax_het.models.weights.starting import Reader, save_weights, with_weights
from fedjax_het.models.weights.torch_names import named as from_torch_names
from fedjax_het.models.zoo.bert import bert, distilbert, minilm
from fedjax_het.models.zoo.efficientnet import efficientnet_b0, efficientnet_lite0
from fedjax_het.models.zoo.generative import GENERATORS, Generative
from fedjax_het.models.zoo.gpt import gpt
from fedjax_het.models.zoo.leaf_cnn import femnist_cnn, leaf_cnn
from fedjax_het.models.zoo.lenet import lenet
from fedjax_het.models.zoo.m5 import m5
from fedjax_het.models.zoo.mobilenet import mobilenet
from fedjax_het.models.zoo.mobilenet_v2 import mobilenet_v2
from fedjax_het.models.zoo.mobilenet_v3 import mobilenet_v3_small
from fedjax_het.models.zoo.mobilevit import mobilevit
from fedjax_het.models.zoo.resnet10 import resnet10
from fedjax_het.models.zoo.resnets import resnet9, resnet18, resnet20
from fedjax_het.models.zoo.simple_cnn import simple_cnn
from fedjax_het.models.zoo.squeezenet import squeezenet
from fedjax_het.models.zoo.stacked_lstm import stacked_lstm
from fedjax_het.models.zoo.text_pair import text_pair
from fedjax_het.models.zoo.two_cnn import two_cnn
from fedjax_het.models.zoo.two_nn import energy_mlp, logistic_regression, two_nn
from fedjax_het.models.zoo.vgg import vgg9, vgg11
from fedjax_het.settings import check_settings, settings_of
from fedjax_het.tasks import Task, check_task, for_classes

MODELS: dict[str, Callable[..., Model]] = {
  "two_nn": two_nn,
  "two_cnn": two_cnn,
  "simple_cnn": simple_cnn,
  "lenet": lenet,
  "logistic_regression": logistic_regression,
  "text_pair": text_pair,
  "energy_mlp": energy_mlp,
  "resnet10": resnet10,
  "leaf_cnn": leaf_cnn,
  "femnist_cnn": femnist_cnn,
  "m5": m5,
  "stacked_lstm": stacked_lstm,
  "gpt": gpt,
  "bert": bert,
  "distilbert": distilbert,
  "minilm": minilm,
  "resnet9": resnet9,
  "resnet18": resnet18,
  "resnet20": resnet20,
  "mobilenet": mobilenet,
  "mobilenet_v2": mobilenet_v2,
  "mobilenet_v3_small": mobilenet_v3_small,
  "vgg9": vgg9,
  "vgg11": vgg11,
  "squeezenet": squeezenet,
  "efficientnet_b0": efficientnet_b0,
  "efficientnet_lite0": efficientnet_lite0,
  "mobilevit": mobilevit,
}

COMMON = {  # options that every classifier takes, in addition to its factory's
  "mean": "number subtracted from every input, or one number per channel",
  "std": "above 0, number that inputs are then divided by, or one number per channel",
  "weights": "file of weights to start from, .npz or .safetensors",
  "frozen": "comma-separated layers that are not trained, and neither sent nor counted",
}


def make(
  name: str, shape: Any, num_classes: int, task: Task | None = None, **options: Any
) -> Model | Generative:
  """Builds the model called `name` for examples of shape `shape` and `num_classes` classes.

  A classifier returns one logit per class. A binary task has a single logit z, P(y = 1) = 1 / (1 + exp(-z)).
  A factory that is called directly returns as many logits as its `num_classes` says, for any task.

  Args:
    name: a key of `MODELS` or, for FedCVAE and FedCGAN, of `GENERATORS`.
    shape: shape of one example, without the batch axis; a tree of shapes where examples are trees of arrays.
    num_classes: C, the number of classes; for other tasks the number of labels, targets or tokens, see
      `data.federate`.
    task: the learning task, see `tasks`; by default binary for 1 or 2 classes, else classification.
    **options: the factory's keyword arguments, such as `hidden`; classifiers also take the options in
      `COMMON`: `mean` and `std`, see `standardized`, `weights`, see `with_weights`, and `frozen`, the layers
      of `transforms.frozen`.

  Raises:
    SettingError: the model or an option is unknown, an option has the wrong type, `shape` is a tree and the
      model reads one array, or `task` is not a `Task`.
  """
  check_choice("model", name, (*MODELS, *GENERATORS))
  check_whole("num_classes", num_classes, 1)
  shape = tuple(shape) if isinstance(shape, Sequence) and not isinstance(shape, str) else shape
  check_reads(name, (MODELS | GENERATORS)[name], shape)
  if name in GENERATORS:
    check_settings(f"{name}'s option", GENERATORS[name], options, ("shape", "num_classes"))
    return GENERATORS[name](shape, num_classes, **options)
  factory = MODELS[name]
  for option in options:
    check_choice(f"{name}'s option", option, options_of(name))
  weights, not_trained = options.pop("weights", ""), options.pop("frozen", "")
  given = not isinstance(weights, str) or weights != ""
  inputs = {option: options.pop(option) for option in COMMON if option in options}
  check_settings(f"{name}'s option", factory, options, ("shape", "num_classes"))
  task = for_classes(num_classes) if task is None else task
  check_task(task)
  model = factory(shape, task.outputs(num_classes), **options)._replace(task=task)
  if given:
    model = with_weights(model, weights, reader_of(name))
  if not_trained != "":
    model = freeze(model, not_trained, "frozen")
  return standardized(model, **inputs) if inputs else model


def options_of(name: str) -> set[str]:
  """Returns the names of the options that `make` accepts for the model called `name`."""
  common = {*COMMON} if name in MODELS else set()
  return common | {*settings_of((MODELS | GENERATORS)[name])} - {"shape", "num_classes"}


def reader_of(name: str) -> Reader | None:
  """Returns the function that converts this model's PyTorch state dict, or None if its names are unknown.

  The function is registered in the dictionary `TORCH` of the module that defines the model's factory.
  """
  family = sys.modules[inspect.unwrap(MODELS[name]).__module__]
  return getattr(family, "TORCH", {}).get(name)


__all__ = [
  "COMMON",
  "GENERATORS",
  "MODELS",
  "Generative",
  "Model",
  "bert",
  "check_file",
  "count_parameters",
  "distilbert",
  "efficientnet_b0",
  "efficientnet_lite0",
  "energy_mlp",
  "femnist_cnn",
  "from_flax",
  "from_torch_names",
  "frozen",
  "gpt",
  "leaf_cnn",
  "lenet",
  "logistic_regression",
  "lora",
  "m5",
  "make",
  "merged",
  "minilm",
  "mobilenet",
  "mobilenet_v2",
  "mobilenet_v3_small",
  "mobilevit",
  "options_of",
  "reader_of",
  "resnet9",
  "resnet10",
  "resnet18",
  "resnet20",
  "save_weights",
  "simple_cnn",
  "squeezenet",
  "stacked_lstm",
  "standardized",
  "text_pair",
  "two_cnn",
  "two_nn",
  "vgg9",
  "vgg11",
  "with_weights",
]
