"""Derives client-part factories that fix some settings of another factory."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

from fedjax_het.errors import check_choice

Factory = TypeVar("Factory", bound=Callable[..., Any])


def variant_of(factory: Callable[..., Any], *fixed: str) -> Callable[[Factory], Factory]:
  """Decorator for a factory that passes its settings to `factory`: gives it the remaining signature.

  Args:
    factory: the factory that receives the settings; its docstring describes them.
    *fixed: settings that the decorated factory fixes and does not accept.

  Returns:
    A decorator, after which `inspect.signature` lists the settings, `inspect.unwrap` finds `factory`, and an
    unknown setting raises a `SettingError` that suggests the nearest name.
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
