"""Models as pairs of pure functions, by name."""

import inspect
from collections.abc import Callable

from fedjax_het.errors import check_choice
from fedjax_het.models.base import Model, count_parameters
from fedjax_het.models.two_cnn import two_cnn
from fedjax_het.models.two_nn import logistic_regression, two_nn

MODELS: dict[str, Callable[..., Model]] = {
  "two_nn": two_nn,
  "two_cnn": two_cnn,
  "logistic_regression": logistic_regression,
}


def make(name: str, shape: tuple[int, ...], num_classes: int, **options: object) -> Model:
  """The model called `name` for examples of `shape` and `num_classes` logits.

  Args:
    name: a key of `MODELS`.
    shape: of one example, without the batch axis.
    num_classes: the number of logits.
    **options: the factory's own, such as `hidden`.

  Raises:
    SettingError: the model or one of its options is unknown.
  """
  check_choice("model", name, MODELS)
  factory = MODELS[name]
  known = [
    option for option in inspect.signature(factory).parameters if option not in ("shape", "num_classes")
  ]
  for option in options:
    check_choice(f"{name}'s option", option, known)
  return factory(tuple(shape), num_classes, **options)


__all__ = ["MODELS", "Model", "count_parameters", "logistic_regression", "make", "two_cnn", "two_nn"]
