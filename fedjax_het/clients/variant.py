"""Derives client-part factories that fix some settings of another factory."""

from collections.abc import Callable
from typing import Any, TypeVar

from fedjax_het.settings import checked, signature_of

Factory = TypeVar("Factory", bound=Callable[..., Any])


def variant_of(factory: Callable[..., Any], *fixed: str) -> Callable[[Factory], Factory]:
  """Decorator for a factory that passes its settings to `factory`: gives it the remaining signature.

  Args:
    factory: the factory that receives the settings; its docstring describes them.
    *fixed: settings that the decorated factory fixes and does not accept.

  Returns:
    A decorator, after which the factory is `checked`, `inspect.signature` lists the settings, and
    `inspect.unwrap` finds `factory`.
  """
  signature = signature_of(factory)
  left = [parameter for name, parameter in signature.parameters.items() if name not in fixed]

  def sign(variant: Factory) -> Factory:
    vars(variant)["__declared__"] = signature.replace(parameters=left)
    made = checked(variant)
    vars(made)["__wrapped__"] = factory
    return made

  return sign
