"""Functions that Python goes through once."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax

Given = ParamSpec("Given")
Result = TypeVar("Result")


def traced_once(function: Callable[Given, Result]) -> Callable[Given, Result]:
  """The same function of arrays, traced once for arguments of the same shapes and dtypes.

  Within a program it is a part like any other, and asking for its shapes first costs nothing. Called on its
  own it is one program, not one for each of its operations.
  """
  return jax.jit(function, inline=True)
