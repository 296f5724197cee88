"""Checks of example shapes that raise `SettingError` before a model is built."""

import inspect
import numbers
from collections.abc import Callable
from typing import Any

from fedjax_het.errors import SettingError


def is_shape(node: Any) -> bool:
  """Whether `node` is the shape of one array, a tuple of integers, and not a tree of shapes."""
  return isinstance(node, tuple) and all(isinstance(size, numbers.Integral) for size in node)


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
