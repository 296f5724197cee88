"""Checks of example shapes that raise `SettingError` before a model is built."""

import functools
import inspect
import numbers
from collections.abc import Callable
from typing import Any, TypeVar, cast

from fedjax_het.errors import SettingError, check_whole, listed
from fedjax_het.settings import checked

Factory = TypeVar("Factory", bound=Callable[..., Any])


def is_shape(node: Any) -> bool:
  """Returns whether `node` is the shape of one array, a tuple of integers, and not a tree of shapes."""
  return isinstance(node, tuple) and all(isinstance(size, numbers.Integral) for size in node)


def shape_of(shape: Any) -> tuple[int, ...]:
  """Returns the shape of one example as a tuple of whole numbers.

  Raises:
    SettingError: `shape` is not a tuple, list or array of whole numbers above 0.
  """
  sizes = listed("shape", shape, "whole numbers, the sizes of one example's axes")
  for size in sizes:
    check_whole("shape", size, 1)
  return tuple(int(size) for size in sizes)


def model_factory(factory: Factory) -> Factory:
  """Decorates a function (shape, num_classes, ...) -> model with checks of its arguments.

  The shape is converted to a tuple of whole numbers, except for models of trees of arrays, which check their
  shapes themselves. All other settings are checked by their declarations, see `settings.checked`.

  Raises:
    SettingError: (raised by the decorated function) the shape, the number of classes or a setting is invalid.
  """
  signature, made_of = inspect.signature(factory), checked(factory)
  trees = not is_shape(signature.parameters["shape"].default)

  @functools.wraps(made_of)
  def make(*args: Any, **options: Any) -> Any:
    try:
      given = signature.bind(*args, **options).arguments
    except TypeError:
      return made_of(*args, **options)  # raises an error that names the setting, or the function
    if "shape" in given and not trees:
      given["shape"] = shape_of(given["shape"])
    if "num_classes" in given:
      check_whole("num_classes", given["num_classes"], 1)
    return made_of(**given)

  return cast(Factory, make)


def check_image(shape: Any, smallest: int = 1, remedy: str = "Use larger images: resize=32.") -> None:
  """Raises `SettingError` unless `shape` is an image's (height, width, channels).

  Args:
    shape: shape of one example.
    smallest: minimum height and width, in pixels.
    remedy: the advice that the error gives for images that are too small.
  """
  if len(shape) != 3:
    axis = "Add an axis of channels: x[..., None]." if len(shape) == 2 else "Use two_nn instead."
    raise SettingError("shape", shape, "not (height, width, channels)", axis)
  if min(shape[:2]) < smallest:
    raise SettingError("shape", shape, f"not at least {smallest} x {smallest} pixels", remedy)


def check_halved(shape: Any, times: int) -> None:
  """Raises `SettingError` unless `shape` is an image whose height and width are divisible by 2^times."""
  check_image(shape)
  if shape[0] % 2**times or shape[1] % 2**times:
    problem = f"height and width not divisible by {2**times}"
    raise SettingError("shape", shape, problem, "Resize the images: resize=32.")


def check_reads(name: str, factory: Callable[..., Any], shape: Any) -> None:
  """Raises `SettingError` if `shape` is a tree of shapes but the model's default shape is one array's."""
  own = inspect.signature(factory).parameters.get("shape")
  if own and is_shape(own.default) and not is_shape(shape):
    raise SettingError(
      "shape", shape, f"{name} reads one array", "For trees take a text model, such as bert."
    )
