"""What the shapes of examples must be."""

import inspect
import numbers
from collections.abc import Callable
from typing import Any

from fedjax_het.errors import SettingError


def is_shape(node: Any) -> bool:
  """Whether this is the shape of one array, and no tree of shapes."""
  return isinstance(node, tuple) and all(isinstance(size, numbers.Integral) for size in node)


def check_image(shape: Any, smallest: int = 1, remedy: str = "Use larger images: resize=32.") -> None:
  """Raises `SettingError` unless `shape` is that of an image.

  Args:
    shape: of one example, to be (height, width, channels).
    smallest: the least height and width.
    remedy: what to do where an image is smaller.
  """
  if len(shape) != 3:
    axis = "Add an axis of channels: x[..., None]." if len(shape) == 2 else "Use two_nn instead."
    raise SettingError("shape", shape, "not (height, width, channels)", axis)
  if min(shape[:2]) < smallest:
    raise SettingError("shape", shape, f"not at least {smallest} x {smallest} pixels", remedy)


def check_halved(shape: Any, times: int) -> None:
  """Raises `SettingError` unless `shape` is that of an image which can be halved so often."""
  check_image(shape)
  if shape[0] % 2**times or shape[1] % 2**times:
    problem = f"height and width not divisible by {2**times}"
    raise SettingError("shape", shape, problem, "Resize the images: resize=32.")


def check_reads(name: str, factory: Callable[..., Any], shape: Any) -> None:
  """Raises `SettingError` for a tree of shapes where a model reads one array, as its default shape is."""
  own = inspect.signature(factory).parameters.get("shape")
  if own and is_shape(own.default) and not is_shape(shape):
    raise SettingError("shape", shape, f"{name} reads one array", "Of trees take a model of texts, as bert.")
