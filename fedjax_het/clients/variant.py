"""A client part that is another one with some of its settings fixed."""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

Factory = TypeVar("Factory", bound=Callable[..., Any])


def variant_of(factory: Callable[..., Any], *fixed: str) -> Callable[[Factory], Factory]:
  """Signs a factory that hands its settings on with what is left of another one's signature.

  Args:
    factory: what the settings are handed on to; its docstring says what they are.
    *fixed: the settings that are not handed on.

  Returns:
    A decorator, after which `inspect.signature` lists the settings and `inspect.unwrap` finds `factory`.
  """
  signature = inspect.signature(factory)
  left = [parameter for name, parameter in signature.parameters.items() if name not in fixed]

  def sign(variant: Factory) -> Factory:
    vars(variant).update(__signature__=signature.replace(parameters=left), __wrapped__=factory)
    return variant

  return sign
