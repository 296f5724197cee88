"""Refuses the earlier names of a NamedTuple's fields with the present ones."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from fedjax_het.errors.kinds import SettingError

Kind = TypeVar("Kind", bound=type)


def renamed(**paths: str) -> Callable[[Kind], Kind]:
  """Returns a class decorator by which a NamedTuple refuses earlier names of its fields.

  The constructor and `_replace` raise `SettingError` for such a keyword, and reading such an attribute raises
  `AttributeError`. Both errors name the present spelling.

  Args:
    **paths: earlier name -> the present field, or "field.inner" for a field of the NamedTuple `Field` in it.
  """

  def spelled(name: str) -> str:
    field, _, inner = paths[name].partition(".")
    return f"{field}={field.capitalize()}({inner}=...)" if inner else f"{field}=..."

  def decorate(kind: Any) -> Any:
    def checked(function: Callable[..., Any]) -> Callable[..., Any]:
      @functools.wraps(function)
      def call(*args: Any, **fields: Any) -> Any:
        for name in fields:
          if name in paths:
            setting = f"{kind.__name__}'s {name}"
            raise SettingError(setting, fields[name], "is an earlier name", f"Write {spelled(name)}")
        return function(*args, **fields)

      return call

    def missing(part: Any, name: str) -> Any:
      hint = f"; its value is .{paths[name]}" if name in paths else ""
      raise AttributeError(f"{kind.__name__} has no attribute {name!r}{hint}", name=name, obj=part)

    kind.__new__, kind._replace, kind.__getattr__ = checked(kind.__new__), checked(kind._replace), missing
    return kind

  return decorate
