"""A client part that is another one with some of its settings fixed."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

from fedjax_het.errors import check_choice

Factory = TypeVar("Factory", bound=Callable[..., Any])


def variant_of(factory: Callable[..., Any], *fixed: str) -> Callable[[Factory], Factory]:
  """Signs a factory that hands its settings on with what is left of another one's signature.

  Args:
    factory: what the settings are handed on to; its docstring says what they are.
    *fixed: the settings that are not handed on.

  Returns:
    A decorator, after which `inspect.signature` lists the settings and `inspect.unwrap` finds `factory`, and
    a setting that there is not raises a `SettingError` with the nearest one's name.
  """
  signature = inspect.signature(factory)
  left = [parameter for name, parameter in signature.parameters.items() if name not in fixed]
  known = {parameter.name for parameter in left}
  settable = [parameter.name for parameter in left if parameter.kind is parameter.KEYWORD_ONLY]

  def sign(variant: Factory) -> Factory:
    @functools.wraps(variant)
    def checked(*parts: Any, **settings: Any) -> Any:
      for name in settings:
        if name not in known:
          check_choice(f"{variant.__name__}'s setting", name, settable)
      return variant(*parts, **settings)

    vars(checked).update(__signature__=signature.replace(parameters=left), __wrapped__=factory)
    return cast(Factory, checked)

  return sign
